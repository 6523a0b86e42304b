"""Every task from the experiment file to the report, at every unit; optimisers and schedules against plain loops."""

import json
import math
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch
from safetensors.torch import load_file

from sightline.apps.cli.run import summary_lines
from sightline.apps.report.comparison import (
    compare_runs,
    comparison_table,
    plain_comparison,
)
from sightline.apps.report.comparison_figure import comparison_charts, draw_comparison
from sightline.config import read
from sightline.console import RoundBar
from sightline.engine import build_experiment
from sightline.errors import InvalidInput, Refused
from sightline.formatting import METRICS
from tests.commands import command
from tests.tasks.conftest import experiment

MAIN = {"classification": "accuracy", "binary": "accuracy", "multilabel": "macro_f1", "regression": "rmse",
        "language": "perplexity", "own": "loss"}  # fmt: skip


@pytest.mark.parametrize("task", MAIN)
def test_every_task_runs_with_private_steps(run, task):
    check_run(run, task, "sample")


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["none", "client"])
@pytest.mark.parametrize("task", MAIN)
def test_every_task_runs_at_every_unit(run, task, unit):
    check_run(run, task, unit)


def check_run(run, task, unit):
    made = run(experiment(task, unit))
    summary, metric = made.summary, METRICS[MAIN[task]]
    assert summary["task"] == task
    assert next(iter(summary["metrics"])) == summary["metric"] == metric.name
    assert all(value is None or math.isfinite(value) for value in summary["metrics"].values())
    known = task in ("classification", "binary")
    assert (summary["test_accuracy"] is not None) is known
    assert math.isnan(made.test_accuracy) is not known
    assert (summary["epsilon"] is not None) is (unit != "none")
    assert summary["test_loss"] > 0
    lines = dict(summary_lines(summary))
    assert lines[f"test {metric.title}"] == metric.format_value(summary["metrics"][metric.name])
    assert ("%" in lines["clients' own test sets"]) is metric.percent
    page = made.report.read_text()
    assert f"Test {metric.title}" in page
    assert ("Test accuracy" in page) is known
    told = re.sub(r"<[^>]+>", " ", page)
    assert known or not re.search(r"accuracy [\d–]", told.replace("token accuracy", "").replace("label accuracy", ""))
    assert metric.title in made._repr_html_()


def test_regressions_learn(run):
    """By the direction of the metric: a better model has a smaller RMSE, near the noise of the targets."""
    plain = experiment("regression", rounds=8, local={"learning_rate": 0.2, "epochs": 4})
    rows = run(plain).rounds
    row = rows[-1]
    assert row["test_rmse"] < 0.25 < rows[0]["test_rmse"]
    assert row["client_rmse_worst"] >= row["client_rmse_decile"] >= row["client_rmse_mean"]
    assert row["test_r2"] > 0.5


def test_a_plain_loop_ends_where_the_run_does(run):
    """FedAvg of a linear regression by full-batch AdamW, with a schedule, against numpy alone."""
    local = {"optimizer": "adamw", "learning_rate": 0.05, "weight_decay": 0.1, "steps": 3, "betas": [0.8, 0.99],
             "schedule": "linear", "warmup": 1, "epochs": None}  # fmt: skip
    plain = experiment("regression", rounds=3, sampling={"samples": {"scheme": "full"}})
    plain["local"] = {key: value for key, value in local.items() if value is not None}
    made, setting = run(plain), build_experiment(read(plain))
    model = setting.start.double().numpy()
    for rate in (0.05, 0.05, 0.025):
        shards = [client.train for client in setting.federation.clients]
        ends = [descend_adamw(model, shard.x, shard.y, rate) for shard in shards]
        model = sum(len(shard) * end for shard, end in zip(shards, ends, strict=True)) / sum(map(len, shards))
    found = load_vector_by_name(made)
    np.testing.assert_allclose(np.concatenate([found["output.weight"].flatten(), found["output.bias"]]), model,
                               rtol=1e-4, atol=1e-5)  # fmt: skip


def descend_adamw(start, x, y, rate, *, steps=3, decay=0.1, betas=(0.8, 0.99), eps=1e-8):
    """Loshchilov and Hutter 2019, Algorithm 2, on the squared error of x w + b, in double precision."""
    w, mean, square = start.copy(), np.zeros_like(start), np.zeros_like(start)
    x = np.column_stack([x, np.ones(len(x))]).astype(np.float64)
    for step in range(1, steps + 1):
        gradient = 2 * x.T @ (x @ w - y) / len(y)
        mean = betas[0] * mean + (1 - betas[0]) * gradient
        square = betas[1] * square + (1 - betas[1]) * gradient**2
        away = mean / (1 - betas[0] ** step) / (np.sqrt(square / (1 - betas[1] ** step)) + eps)
        w = w - rate * (away + decay * w)
    return w


def test_a_schedule_reaches_a_step_that_the_server_takes(run):
    """Noise is drawn by the seed, so that half the learning rate in the only round is half the step."""
    privacy = {"unit": "sample", "noise_multiplier": 1.0, "where": "server"}
    plain = experiment("regression", rounds=2, local={"steps": 1, "schedule": "step", "decay_every": 1, "decay": 0.25})
    plain["local"].pop("epochs")
    plain["privacy"] = privacy
    steps = []
    for decay in (0.25, 0.5):
        plain["local"]["decay"] = decay
        first, last = (load_vector(run(plain | {"rounds": rounds}, seed=1)) for rounds in (1, 2))
        steps.append(last - first)
    torch.testing.assert_close(steps[1], 2 * steps[0], rtol=1e-3, atol=1e-6)


def load_vector_by_name(made):
    return load_file(made.directory / "model.safetensors")


def load_vector(made):
    return torch.cat([tensor.flatten() for _, tensor in sorted(load_vector_by_name(made).items())])


@pytest.mark.parametrize(("unit", "optimizer"), [("client", "adam"), ("sample", "adamw"), ("sample", "momentum")])
def test_optimizers_change_no_epsilon(run, unit, optimizer):
    """What an optimiser makes of noised gradients, or before clipping, is not a matter of accounting."""
    plain = run(experiment("multilabel", unit))
    other = run(experiment("multilabel", unit, local={"optimizer": optimizer, "schedule": "cosine", "warmup": 1}))
    assert other.epsilon == plain.epsilon
    assert not torch.equal(load_vector(other), load_vector(plain))


def test_own_data_in_sequences_and_own_losses(run, tmp_path, monkeypatch):
    (tmp_path / "mysequences.py").write_text(
        "import numpy as np\n"
        "def clients(clients, rng):\n"
        "    for _ in range(clients):\n"
        "        x = rng.standard_normal((12, 5, 2)); y = x[:, :, 0].sum(1)\n"
        "        yield x, y, x[:4], y[:4]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    data = {"source": "mysequences:clients", "partition": "natural", "clients": 3}
    plain = experiment("regression") | {"data": data, "model": {"name": "lstm", "hidden": 6, "task": "regression"}}
    assert run(plain).metrics["rmse"] > 0
    plain["model"] |= {"loss": "own_losses:huber"}
    summary = run(plain).summary
    assert (summary["task"], summary["metric"]) == ("regression", "rmse")
    plain["model"] = {"name": "linear", "loss": "own_losses:centred"}
    refused = experiment("own") | {"data": data | {"classes": 2}, "model": plain["model"]}
    assert run(refused).summary["metric"] == "loss"


def test_groups_and_kept_models_have_metrics_of_their_task(run):
    plain = experiment("regression", topology={"kind": "groups", "structure": "ring", "groups": 2, "period": 2})
    plain |= {"algorithm": {"name": "dp_ogl"}, "sampling": {"clients": {"scheme": "poisson", "rate": 0.9}}}
    plain["privacy"] = {"unit": "client", "noise_multiplier": 1.0}
    row = run(plain).rounds[-1]
    assert row["group_rmse_worst"] >= row["group_rmse_best"]
    row = run(experiment("regression") | {"algorithm": {"name": "pfedme"}}).rounds[-1]
    assert row["test_rmse"] == pytest.approx(math.sqrt(row["test_loss"]), rel=1e-5)


@pytest.mark.parametrize("unit", ["client", "sample"])
def test_parts_of_a_model_are_trained_for_its_task(run, unit):
    plain = experiment("regression", unit, model={"name": "mlp", "hidden": [6]}, local={"optimizer": "adam"})
    plain["algorithm"] = {"name": "fedavg", "split": {"parts": 2}}
    assert run(plain).metrics["rmse"] > 0


GUIDE = Path(__file__).parents[2] / "docs" / "tasks.md"


def test_the_loss_of_the_guide_runs(run, tmp_path, monkeypatch):
    """The page's own loss, and the page's own words for it."""
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (tmp_path / "losses.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    tables = [tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", GUIDE.read_text(), re.DOTALL)]
    for table in tables:
        made = run(experiment("regression", "sample") | table)
        assert made.summary["metric"] == "rmse"
    assert any("losses:pinball" in note for note in made.summary["notes"])


def test_comparisons_show_each_run_by_its_own_metric(run, tmp_path):
    made = [run(experiment(task, "sample")) for task in ("regression", "language", "classification")]
    comparison = compare_runs([one.directory for one in made])
    header, rows = comparison_table(comparison)
    assert {"Test RMSE", "Test perplexity", "Test accuracy", "Test MAE"} <= set(header)
    assert "Test loss" not in header
    place = header.index("Test RMSE")
    assert [row[place] for row in rows][1:] == ["–", "–"]
    assert "%" not in rows[0][place]
    titles = [chart.title for chart in comparison_charts(comparison)]
    assert "Test RMSE by round" in titles
    assert "Test accuracy for the epsilon spent" in titles
    plain = plain_comparison(comparison)
    assert plain["runs"][0]["metric"] == "rmse"
    assert plain["runs"][0]["test_accuracy"] is None
    assert "test_rmse" not in plain["runs"][2]
    page = tmp_path / "comparison.html"
    draw_comparison(compare_runs([made[0].directory]), page)
    assert "Test RMSE by round" in page.read_text()
    assert "ccuracy" not in page.read_text()


def test_progress_names_the_metric(capsys):
    with RoundBar("some", 2) as bar:
        bar.advance({"round": 1, "metric": "rmse", "epsilon": {"public": 1.0}})
        bar.advance({"round": 2, "metric": "rmse", "test_rmse": 0.51234, "epsilon": {"public": 2.0}})
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith("round 1/2  RMSE -")
    assert told[1] == "round 2/2  RMSE 0.5123  epsilon 2.000"


REFUSED = [
    ("regression", {"algorithm": {"name": "ifca"}, "topology": {"kind": "clusters", "count": 2}}, "correct predictions"),
    ("language", {"algorithm": {"name": "rdpcfl"}, "topology": {"kind": "clusters", "count": 2}}, "correct predictions"),
    ("regression", {"privacy": {"unit": "sample", "mechanism": "objective", "noise_multiplier": 1.0}},
     "proved for cross entropy"),
    ("regression", {"topology": {"kind": "groups", "structure": "labels"}, "algorithm": {"name": "dp_ogl"}},
     "no labels from which groups could be formed"),
    ("regression", {"local": {"compiled": True}}, "compiled code has the gradient of cross entropy"),
    ("binary", {"data": {"classes": 3}}, "it has 3 classes, but a binary task has two"),
    ("classification", {"local": {"optimizer": "adam", "compiled": True}}, "compiled training supports SGD only"),
    ("classification", {"local": {"optimizer": "adam"}, "algorithm": {"name": "scaffold"}}, "a control variate is"),
    ("classification", {"local": {"optimizer": "adam"}, "algorithm": {"name": "pfedme"}}, "plain gradient steps"),
    ("classification", {"local": {"optimizer": "sgd", "momentum": 0.9}}, 'optimizer = "sgd" has no momentum'),
    ("classification", {"local": {"optimizer": "momentum", "momentum": 0.0}}, 'optimizer = "momentum" needs momentum > 0'),
    ("classification", {"local": {"optimizer": "adamw", "momentum": 0.9}}, "uses betas instead"),
    ("classification", {"local": {"betas": [0.9, 0.99]}}, "only applies to adam and adamw"),
    ("classification", {"local": {"schedule": "step"}}, 'local.decay_every=missing: schedule = "step" needs it'),
    ("classification", {"local": {"decay": 0.5}}, 'only applies to schedule = "step'),
    ("classification", {"local": {"warmup": 2}}, "would never reach its value"),
    ("classification", {"privacy": {"unit": "sample", "noise_multiplier": 1.0, "where": "server"},
                        "local": {"optimizer": "adam", "steps": 1, "epochs": None}}, "the server adds noise to sums"),
    ("classification", {"privacy": {"unit": "sample", "mechanism": "output", "sensitivity": "clipped_model",
                                    "noise_multiplier": 1.0}, "local": {"schedule": "cosine"}}, "a constant learning rate"),
    ("classification", {"privacy": {"unit": "sample", "mechanism": "output", "sensitivity": "strongly_convex",
                                    "noise_multiplier": 1.0}, "local": {"optimizer": "adam", "weight_decay": 0.1}},
     "does not hold for adaptive steps"),
    ("classification", {"model": {"loss": "no loss"}}, "package.module:function"),
]  # fmt: skip


@pytest.mark.parametrize(("task", "changes", "words"), REFUSED)
def test_what_makes_no_sense_is_one_clear_line(task, changes, words):
    plain = experiment(task, **changes)
    plain["local"] = {key: value for key, value in plain["local"].items() if value is not None}
    with pytest.raises((InvalidInput, Refused), match=words) as caught:
        build_experiment(read(plain))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("local", "words"),
    [
        ({"optimizer": "adam"}, "can exceed eta m G"),
        ({"optimizer": "momentum"}, "momentum carries a gradient into steps after its segment"),
        ({"schedule": "cosine"}, "h2fdp sets the step sizes by algorithm.schedule"),
    ],
)
def test_segments_are_sums_of_plain_steps(local, words):
    plain = experiment("classification", "client", topology={"kind": "tree", "subnets": 2, "trusted": 0.5})
    plain |= {"algorithm": {"name": "h2fdp", "local_aggregation": 2}}
    plain["local"] = {"steps": 4, "learning_rate": 0.1, "batch_size": 8} | local
    with pytest.raises((InvalidInput, Refused), match=words):
        build_experiment(read(plain))


def test_momentum_has_a_default_and_its_old_meaning():
    assert read(experiment("classification", local={"optimizer": "momentum"})).local.momentum == 0.9
    old = read(experiment("classification", local={"momentum": 0.5})).local
    assert (old.optimizer, old.momentum, old.adaptive) == (None, 0.5, False)


def test_the_command_prints_metrics(tmp_path):
    file = tmp_path / "regression.toml"
    file.write_text(tomli_w.dumps(experiment("regression", "sample")))
    done = command("run", str(file), "--out", str(tmp_path / "run"), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found["metrics"]) == {"rmse", "mae", "r2"}
    assert found["test_accuracy"] is None
    assert found["client_rmse_worst"] >= found["client_rmse_mean"] > 0


def test_a_run_of_a_task_goes_on_where_it_stopped(run, tmp_path):
    """Losses, optimisers and schedules are all in the experiment file: a resumed run ends at the same bits."""
    import sightline

    plain = experiment("regression", "sample", rounds=3, local={"optimizer": "adam", "schedule": "cosine"})
    whole = run(plain)
    place = tmp_path / "broken"

    def stop(row):
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sightline.run(plain, out=place, progress=False, on_round=stop)
    again = sightline.run(place, resume=True, progress=False)
    assert torch.equal(load_vector(again), load_vector(whole))
    assert again.epsilon == whole.epsilon
    assert np.isfinite(again.metrics["rmse"])
