"""A user's own metrics: every task, test set and clients, notes and refusals; the model of the best round."""

import functools
import json
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import sklearn.metrics
import torch

import sightline
from sightline.errors import InvalidInput, Refused
from sightline.topology import client_name
from tests.commands import command
from tests.tasks.conftest import experiment

RNG = np.random.default_rng(3)


def some(count):
    y = RNG.integers(0, 3, size=count)
    return RNG.normal(size=(count, 4)) + 1.5 * y[:, None], y


CLIENTS = [(*some(24), *some(12)) for _ in range(4)]
TEST = some(30)
MACRO = functools.partial(sklearn.metrics.f1_score, average="macro")
PRIVATE = {"unit": "sample", "epsilon": 6.0, "delta": 1e-3}


def settings(**more):
    return {"name": "mine", "rounds": 3, "data": {"classes": 3}, "privacy": PRIVATE} | more


def test_scikit_learns_metrics_are_computed_on_the_test_set_and_per_client(run):
    metrics = [sklearn.metrics.balanced_accuracy_score, MACRO, sklearn.metrics.log_loss]
    seen = []

    def look(row, run):
        told = run.evaluate(*TEST, metrics=metrics)
        assert told["balanced_accuracy_score"] == row["test_balanced_accuracy_score"]
        seen.append({name: tensor.clone() for name, tensor in run.state_dict().items()})

    done = run(settings(), data=CLIENTS, test=TEST, metrics=metrics, on_round=look)
    said, probabilities = done.predict(TEST[0]), done.predict(TEST[0], probabilities=True).astype(float)
    assert done.metrics["balanced_accuracy_score"] == sklearn.metrics.balanced_accuracy_score(TEST[1], said)
    assert done.metrics["f1_score"] == MACRO(TEST[1], said)
    # scikit-learn's log loss of the probabilities is our own loss, computed by other code.
    assert done.metrics["log_loss"] == pytest.approx(done.summary["test_loss"], abs=1e-6)
    assert done.metrics["log_loss"] == pytest.approx(-np.log(probabilities[range(30), TEST[1]]).mean(), abs=1e-6)
    own = [MACRO(test_y, done.predict(test_x)) for _, _, test_x, test_y in CLIENTS]
    assert done.summary["client_f1_score_mean"] == pytest.approx(np.mean(own))
    assert done.summary["client_f1_score_worst"] == pytest.approx(min(own))
    losses = [done.evaluate(x, y)["loss"] for _, _, x, y in CLIENTS]
    assert done.summary["client_log_loss_worst"] == pytest.approx(max(losses), abs=1e-6)  # of a loss, the largest
    assert len(seen) == 3
    assert not all(torch.equal(seen[1][name], tensor) for name, tensor in seen[0].items())
    assert all(torch.equal(seen[-1][name], tensor) for name, tensor in done.state_dict().items())
    page = done.report.read_text()
    assert "Balanced accuracy score" in page
    assert "Test f1 score" in page


def test_a_comparison_shows_own_metrics_beside_others(run, monkeypatch):
    done = [run(settings(seed=seed), data=CLIENTS, test=TEST, metrics=[MACRO]) for seed in (0, 1)]
    folders = [str(one.directory) for one in (*done, run(settings(rounds=2), data=CLIENTS, test=TEST))]
    compared = sightline.compare(*folders)
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    frame = compared.to_frame()
    assert [row["test_f1_score"] for row in frame[:2]] == [one.metrics["f1_score"] for one in done]
    assert [np.isnan(row["client_f1_score_worst"]) for row in frame] == [False, False, True]
    assert "Test f1 score" in str(compared)
    shown = command("compare", *folders, "--columns", "test_f1_score,client_f1_score_worst", "--table", "csv")
    assert shown.stdout.splitlines()[0].endswith("test_f1_score,test_f1_score_std,client_f1_score_worst,"
                                                 "client_f1_score_worst_std")  # fmt: skip
    mean = np.mean([one.metrics["f1_score"] for one in done])
    assert float(shown.stdout.splitlines()[1].split(",")[-4]) == pytest.approx(mean)
    (group, _) = json.loads(command("compare", *folders, "--json").stdout)["groups"]
    assert group["test_f1_score"]["mean"] == pytest.approx(mean)
    wrong = command("compare", *folders, "--columns", "test_f1_scores")
    assert 'did you mean "test_f1_score"?' in wrong.stderr


def test_metrics_change_neither_model_nor_ledger(run):
    def spoil(targets, predictions):
        targets[:], predictions[:] = 0, 0
        return 1.0

    plain, other = (
        run(experiment("classification", "client")),
        run(experiment("classification", "client"), metrics=[spoil]),
    )
    assert all(torch.equal(other.state_dict()[name], one) for name, one in plain.state_dict().items())
    assert [repr(row) for row in plain.ledger] == [repr(row) for row in other.ledger]
    assert plain.test_accuracy == other.test_accuracy


def shares(targets, predictions):
    """The share of equal entries, and a check of what a metric is given."""
    assert isinstance(targets, np.ndarray)
    assert targets.shape == predictions.shape
    assert (targets >= 0).all()  # no padding of texts
    return float((targets == predictions).mean())


@pytest.mark.parametrize(
    ("task", "metric", "same"),
    [
        ("binary", sklearn.metrics.accuracy_score, "accuracy"),
        ("multilabel", shares, "label_accuracy"),
        ("regression", sklearn.metrics.root_mean_squared_error, "rmse"),
        ("language", shares, "token_accuracy"),
    ],
)
def test_every_task_gives_targets_and_predictions(run, task, metric, same):
    """Oracle: the task's own metric, computed from sums by other code."""
    if task == "language":
        vocabulary, texts = 9, [RNG.integers(0, 9, size=(10, 6)) for _ in range(4)]
        texts[0][:, 4:] = 0
        plain = experiment(task, data={"options": {"vocabulary": vocabulary}})
        plain["data"] = {"options": {"vocabulary": vocabulary}}
        done = run(plain, data=[(x, np.where(x > 0, x, -100)) for x in texts], metrics=[metric])
    else:
        done = run(experiment(task), metrics=[metric])
    assert done.metrics[metric.__name__] == pytest.approx(done.metrics[same], abs=1e-6)
    mean = f"client_{metric.__name__}_mean"
    assert np.isfinite(done.summary[mean])


def test_areas_under_curves_get_probabilities(run):
    done = run(experiment("binary"), metrics=[sklearn.metrics.roc_auc_score])
    assert 0 <= done.metrics["roc_auc_score"] <= 1
    assert done.metrics["roc_auc_score"] != done.metrics["accuracy"]


def test_models_of_clients_are_judged_on_their_own_shards(run):
    done = run(experiment("classification", algorithm={"name": "local"}), metrics=[sklearn.metrics.accuracy_score])
    assert done.metrics["accuracy_score"] == pytest.approx(done.summary["client_accuracy_mean"])
    kept = run(experiment("classification", algorithm={"name": "pfedme"}), metrics=[sklearn.metrics.accuracy_score])
    assert kept.metrics["accuracy_score"] == pytest.approx(kept.test_accuracy)


def test_a_metric_that_fails_later_is_missing_and_noted_once(run, capsys):
    def fragile(targets, predictions):
        if len(targets) == 12:
            raise ValueError("only one class")
        return 1.0

    done = run(settings(), data=CLIENTS, test=TEST, metrics=[fragile])
    assert done.metrics["fragile"] == 1.0
    assert done.summary["client_fragile_mean"] is None
    assert capsys.readouterr().err.count("metrics=fragile: ValueError on client-0: only one class") == 1


BAD = {
    "averaged": ([sklearn.metrics.f1_score], 'fails on .*multiclass.*functools.partial.*average="macro"'),
    "nameless": ([lambda targets, predictions: 1.0], r"has no name for a column; name it: metrics=\{"),
    "matrix": ([sklearn.metrics.confusion_matrix], r"an array of shape \(3, 3\), not one number"),
    "taken": ({"accuracy": sklearn.metrics.accuracy_score}, "the name of a built-in metric"),
    "twice": ([MACRO, sklearn.metrics.f1_score], "is given twice"),
    "word": ("accuracy", "is a list of functions"),
    "number": ([3], "metrics="),
}


@pytest.mark.parametrize("case", BAD)
def test_an_unusable_metric_is_one_line_and_leaves_nothing(case, tmp_path):
    metrics, words = BAD[case]
    with pytest.raises(InvalidInput, match=words) as error:
        sightline.run(settings(), data=CLIENTS, test=TEST, metrics=metrics, out=tmp_path / "run", progress=False)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def best(**more):
    return settings(keep_best="balanced_accuracy_score", data={"classes": 3, "public_test": True}, rounds=6) | more


METRICS = [sklearn.metrics.balanced_accuracy_score]


def test_the_best_round_is_kept_over_interruptions(tmp_path):
    models, rows = [], []

    def remember(row, run):
        rows.append(row["test_balanced_accuracy_score"])
        models.append(run.state_dict())

    objects = {"data": CLIENTS, "test": TEST, "metrics": METRICS, "progress": False}
    whole = sightline.run(best(), out=tmp_path / "whole", on_round=remember, **objects)
    first = int(np.argmax(rows))
    assert whole.summary["best"] == {"round": first + 1, "metric": "balanced_accuracy_score", "value": rows[first]}
    assert all(torch.equal(models[first][name], one) for name, one in whole.state_dict(best=True).items())
    assert whole.evaluate(*TEST, metrics=METRICS, best=True)["balanced_accuracy_score"] == rows[first]

    def stop(row):
        if row["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"data=\.\.\., test=\.\.\., metrics=\.\.\."):
        sightline.run(best(), out=tmp_path / "broken", on_round=stop, **objects)
    with pytest.raises(InvalidInput, match="keep_best=balanced_accuracy_score: the run measures accuracy, loss"):
        sightline.run(tmp_path / "broken", resume=True, **objects | {"metrics": ()})
    again = sightline.run(tmp_path / "broken", resume=True, **objects)
    assert again.summary["best"] == whole.summary["best"]
    assert (again.directory / "best.safetensors").read_bytes() == (whole.directory / "best.safetensors").read_bytes()


def test_a_run_goes_on_without_its_metrics_and_says_so(tmp_path, capsys):
    def stop(row):
        if row["round"] == 2:
            raise KeyboardInterrupt

    objects = {"data": CLIENTS, "test": TEST, "progress": False}
    with pytest.raises(KeyboardInterrupt):
        sightline.run(settings(), out=tmp_path / "run", on_round=stop, metrics=METRICS, **objects)
    done = sightline.run(tmp_path / "run", resume=True, **objects)
    assert "metrics=balanced_accuracy_score: not passed again" in capsys.readouterr().err
    assert ["test_balanced_accuracy_score" in row for row in done.rounds] == [True, True, False]
    assert np.isfinite(done.metrics["balanced_accuracy_score"])  # the last that is known


REFUSED = {
    "private": (settings(keep_best="accuracy"), {"test": TEST}, "release them without noise.*data.public_test"),
    "held out": (best(keep_best="accuracy"), {}, "48 of the 48 examples of the test set are also examples of clients"),
    "trained on": (best(keep_best="accuracy"), {"test": CLIENTS[0][:2]}, "24 of the 24 examples of the test set"),
    "personal": (best(keep_best="accuracy", algorithm={"name": "local"}), {"test": TEST}, "local tests every client"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_best_round_is_chosen_by_public_examples_only(case, tmp_path):
    plain, more, words = REFUSED[case]
    with pytest.raises(Refused, match=words):
        sightline.run(plain, data=CLIENTS, out=tmp_path / "run", progress=False, **more)
    assert not (tmp_path / "run").exists()


def test_without_a_promise_any_test_set_may_choose(run):
    done = run(settings(keep_best="loss", privacy={"unit": "none"}), data=CLIENTS, test=TEST)
    losses = [row["test_loss"] for row in done.rounds]
    assert done.summary["best"]["value"] == min(losses)
    assert re.search("best round", "\n".join(dict(lines(done.summary))))
    assert client_name(0) not in "".join(done.state_dict(best=True))
    with pytest.raises(InvalidInput, match="kept no model of a best round"):
        run(settings(rounds=1), data=CLIENTS, test=TEST).model(best=True)


def lines(summary):
    from sightline.apps.cli.run import summary_lines

    return summary_lines(summary)
