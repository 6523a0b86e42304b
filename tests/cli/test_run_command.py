"""The command line as a person meets it: exit codes, one line on stderr, nothing left behind."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from markupsafe import escape

from sightline.algorithms import REGISTRY
from sightline.apps.cli.info import experiment_text
from sightline.config import parse, read
from tests.commands import command

ROOT = Path(__file__).parents[2]
QUICKSTART = str(ROOT / "examples" / "quickstart.toml")
SHORT = ["--set", "rounds=2"]


def started(*words, cwd, **environment):
    """A real process."""
    return subprocess.run(
        [sys.executable, "-m", "sightline", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_COLOR": "1", **environment},
        check=False,
    )


def test_run_prints_a_summary_and_the_report(tmp_path):
    done = started("run", QUICKSTART, *SHORT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("test accuracy", "10th percentile", "epsilon", "trusted", "server", "report.html"):
        assert word in done.stdout
    assert "round 2/2" in done.stderr
    assert (tmp_path / "runs" / "quickstart" / "report.html").is_file()


def test_json_is_one_object_and_nothing_else(tmp_path):
    done = command("run", QUICKSTART, *SHORT, "--json", "--seed", "3", "--out", "here", cwd=tmp_path)
    summary = json.loads(done.stdout)
    assert summary["run_dir"] == "here"
    assert summary["rounds_done"] == 2
    assert "seed = 3" in (tmp_path / "here" / "config.toml").read_text()


def test_resume_goes_on_and_the_budget_has_its_own_exit_code(tmp_path):
    words = ("run", QUICKSTART, *SHORT, "--set", "privacy.noise_multiplier=1.0", "--set", "privacy.stop_at_epsilon=2.5")
    first = command(*words, "--json", cwd=tmp_path)
    assert first.returncode == 3
    assert "stop_at_epsilon=2.5" in first.stderr
    told = json.loads(first.stdout)
    assert told["epsilon"] <= 2.5
    assert "stop_at_epsilon=2.5" in told["stopped"]
    assert "stop_at_epsilon=2.5" in (tmp_path / told["report"]).read_text()
    again = command(*words, "--resume", "--json", cwd=tmp_path)
    assert again.returncode == 3
    assert json.loads(again.stdout)["epsilon"] == json.loads(first.stdout)["epsilon"]


MISTAKES = [
    (["run", "nowhere.toml"], "no such file"),
    (["run", QUICKSTART, "--set", "algorithm.name=fedavgg"], 'did you mean "fedavg"'),
    (["run", QUICKSTART, "--set", "algorithm.server_learning_rat=1"], "server_learning_rate"),
    (["run", QUICKSTART, "--set", "topology.kind=moon"], "no such topology"),
    (["run", QUICKSTART, "--set", "model.name=mpl"], 'did you mean "mlp"'),
    (["run", QUICKSTART, "--set", "model.hiden=[3]"], 'did you mean "hidden"'),
    (["run", QUICKSTART, "--set", "model.name=no.such:factory"], "cannot be imported"),
    (["run", QUICKSTART, "--set", "model.init=nowhere.safetensors"], "no such file"),
    (["run", QUICKSTART, "--set", "data.source=mnist"], "SIGHTLINE_DATA"),
    (["run", QUICKSTART, "--set", "data.source=digit"], 'did you mean "digits"'),
    (["run", QUICKSTART, "--set", "data.clients=5000"], "data.clients=5000"),
    (["run", QUICKSTART, "--set", "privacy.epsilon=nan"], "privacy.epsilon=nan"),
    (["run", QUICKSTART, "--set", "sampling.clients={scheme='balanced', uses=41}"], "sampling.clients.uses=41"),
    (["run", QUICKSTART, "--runtime", "flour"], "flour"),
    (["run", QUICKSTART, "--nosuch"], "nosuch"),
    (["run"], "CONFIG"),
    (["rum", QUICKSTART], 'did you mean "run"'),
    (["report", "nowhere"], "no run.sqlite"),
    (["run", QUICKSTART, "--resume"], "no such run"),
]


@pytest.mark.parametrize(("words", "part"), MISTAKES)
def test_bad_input_is_one_line_and_leaves_nothing(tmp_path, words, part):
    done = command(*words, cwd=tmp_path, SIGHTLINE_DATA=str(tmp_path / "nothing"))
    one_line(done, part)
    assert list(tmp_path.iterdir()) == []


def one_line(done, part):
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert part in done.stderr
    assert "Traceback" not in done.stderr


def test_bad_input_ends_the_process_with_its_code(tmp_path):
    words, part = MISTAKES[1]
    one_line(started(*words, cwd=tmp_path), part)
    assert list(tmp_path.iterdir()) == []


def test_a_users_own_model_and_data(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "from torch import nn\n"
        "def model(input_shape, classes, width=4):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0], width), nn.ReLU(), nn.Linear(width, classes))\n"
        "def shards(clients, rng):\n"
        "    for _ in range(clients):\n"
        "        x = rng.standard_normal((30, 3)).astype(np.float32)\n"
        "        y = (x[:, 0] > 0).astype(np.int64)\n"
        "        yield x[:20], y[:20], x[20:], y[20:]\n"
    )
    (tmp_path / "mine.toml").write_text(
        'rounds = 2\n[data]\nsource = "mine:shards"\nclients = 4\npartition = "natural"\nclasses = 2\n'
        '[model]\nname = "mine:model"\nwidth = 5\n'
    )
    done = command("run", "mine.toml", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["unit"] == "none"


def test_slow_clipping_is_said_on_the_terminal_and_in_json(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "class Odd(nn.Linear):\n"
        "    def forward(self, x):\n"
        "        return super().forward(x.flatten(1)) * (0.5 if float(x.sum()) < 1e9 else 2.0)\n"
        "def model(input_shape, classes):\n"
        "    return Odd(64, classes)\n"
    )
    (tmp_path / "mine.toml").write_text(
        'rounds = 1\n[data]\nclients = 2\n[model]\nname = "mine:model"\n[local]\nsteps = 1\nbatch_size = 4\n'
        '[privacy]\nunit = "sample"\nwhere = "client"\nnoise_multiplier = 2.0\ndelta = 1e-4\n'
        '[sampling.samples]\nscheme = "poisson"\n'
    )
    shown = command("run", "mine.toml", "--out", "run", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    note, compared = json.loads(command("report", "run", "--json", cwd=tmp_path).stdout)["notes"]
    assert "differentiated alone" in note
    assert compared.startswith("Twin worlds")
    assert f"note {note}" in " ".join(shown.stdout.split())
    assert escape(note) in (tmp_path / "run" / "report.html").read_text()


def test_a_module_that_remembers_is_one_line_and_no_run(tmp_path):
    (tmp_path / "keeper.py").write_text(
        "import torch\n"
        "class Keeper(torch.nn.Module):\n"
        "    def __init__(self, input_shape, classes):\n"
        "        super().__init__()\n"
        "        self.last = torch.nn.Linear(64, classes)\n"
        "        self.register_buffer('mean', torch.zeros(64))\n"
        "    def forward(self, x):\n"
        "        x = x.flatten(1)\n"
        "        self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))\n"
        "        return self.last(x - self.mean)\n"
    )
    for unit in ("client", "sample", "none"):
        private = {"none": ""}.get(unit, "noise_multiplier = 1.0\n")
        (tmp_path / "keeper.toml").write_text(
            f'rounds = 1\n[data]\nclients = 2\n[model]\nname = "keeper:Keeper"\n[privacy]\nunit = "{unit}"\n{private}'
        )
        one_line(command("run", "keeper.toml", "--out", "run", cwd=tmp_path), "forward changes buffer 'mean'")
        assert not (tmp_path / "run").exists()


def test_help_is_quick_to_load_nothing_heavy():
    heavy = "torch scipy sklearn dp_accounting matplotlib pydantic"
    script = f"""
import sys
from sightline.apps.cli.main import run_arguments
run_arguments(["--help"])
sys.exit(", ".join(name for name in "{heavy}".split() if name in sys.modules) or 0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "run" in done.stdout


@pytest.mark.parametrize("name", ["run", "report", "datasets"])
def test_every_command_explains_itself(name, tmp_path):
    done = command(name, "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert "--json" in done.stdout


PLANNED = {
    "quickstart": ["rounds=3"],
    "hierarchy": ["rounds=3"],
    "clustered": ["rounds=4"],
    "overlapping-groups": ["rounds=21", "topology.period=20"],
    "sample-level": ["rounds=2"],
    "graph": ["rounds=9"],
    "hospitals": ["rounds=2"],
}


@pytest.mark.parametrize("name", PLANNED)
def test_a_plan_says_what_the_run_will_cost(name, tmp_path):
    """Oracle: the run itself. Against no kind of observer may the plan promise more than the run keeps."""
    words = [
        "run",
        str(ROOT / "examples" / f"{name}.toml"),
        *(part for key in PLANNED[name] for part in ("--set", key)),
    ]
    plan = json.loads(command(*words, "--plan", "--json", cwd=tmp_path).stdout)
    assert list(tmp_path.iterdir()) == []
    done = json.loads(command(*words, "--json", cwd=tmp_path).stdout)
    assert plan["observers"].keys() == done["observers"].keys()
    for kind, spent in done["observers"].items():
        assert plan["observers"][kind] >= spent - 1e-9, kind
    assert plan["epsilon"] == pytest.approx(done["epsilon"], rel=1e-6)
    for key in ("noise_multiplier", "noise_multiplier_max"):
        assert plan[key] == done[key]
    assert plan["trusted"] == done["trusted"]
    assert plan["uplink_floats"] == pytest.approx(done["uplink_floats"], rel=0.2)
    assert plan["seconds"] > 0


def test_a_plan_is_readable_and_makes_no_run(tmp_path):
    done = command("run", QUICKSTART, "--plan", cwd=tmp_path)
    for words in ("noise multiplier", "against other clients", "against public", "traffic", "roughly", "server"):
        assert words in done.stdout
    assert "nothing is promised" in command("run", QUICKSTART, "--plan", "--set", 'privacy={unit="none"}').stdout
    budget = command("run", QUICKSTART, "--plan", "--set", "privacy.stop_at_epsilon=1")
    assert "stop_at_epsilon = 1 ends the run before its last round" in " ".join(budget.stdout.split())
    refused = command("run", QUICKSTART, "--plan", "--out", "here", cwd=tmp_path)
    assert refused.returncode == 2
    assert "--plan=True: a plan neither makes nor continues a run directory" in refused.stderr
    assert "a plan trains nothing" in command("run", QUICKSTART, "--plan", "--verify", "2", cwd=tmp_path).stderr
    assert "dropped model.hidden" in command("run", QUICKSTART, "--plan", "--set", "model.name=linear").stderr
    assert list(tmp_path.iterdir()) == []


HINTS = {
    ("--epsilon", "4"): "--epsilon=4: not an option but a key of the experiment; write --set privacy.epsilon=4",
    ("--noise-multiplier=2",): "write --set privacy.noise_multiplier=2",
    ("--set", "epsilon=4"): "epsilon=4: unknown key; did you mean privacy.epsilon?",
    ("--set", "data.batch_size=4"): "did you mean local.batch_size?",
    ("--lr", "0.1"): "--lr=0.1: not an option but a key of the experiment; write --set local.learning_rate=0.1",
    ("--topology", "tree"): "write --set topology.kind=tree",
    ("--set", "lr=0.1"): "lr=0.1: unknown key; did you mean local.learning_rate?",
    ("--set", "clip=1"): "did you mean privacy.clip_norm?",
    ("--dry-run",): "write --plan",
    ("--set", "data.classes=three"): "must be the number of classes, or the list of their names",
    ("--bogus",): "see sightline run --help",
}


@pytest.mark.parametrize("words", HINTS)
def test_a_key_in_the_wrong_place_is_pointed_at(words, tmp_path):
    done = command("run", QUICKSTART, *words, cwd=tmp_path)
    assert done.returncode == 2
    assert HINTS[words] in done.stderr
    assert done.stderr.count("\n") == 1


def test_another_model_drops_the_settings_of_the_old_one(tmp_path):
    words = ("run", QUICKSTART, "--set", "rounds=1")
    done = command(*words, "--set", "model.name=linear", "--json", "--out", "a", cwd=tmp_path)
    assert done.returncode == 0
    assert "--set model.name=linear: dropped model.hidden, which belonged to the model mlp" in done.stderr
    # What is given beside the new name, before or after it, stays.
    other = command(*words, "--set", "model.activation=tanh", "--set", "model.name=cnn", "--out", "b", cwd=tmp_path)
    assert other.returncode == 0, other.stderr
    assert 'activation = "tanh"' in (tmp_path / "b" / "config.toml").read_text()
    same = command(*words, "--set", "model.name=mlp", "--out", "c", cwd=tmp_path)
    assert "dropped" not in same.stderr


def test_a_file_without_privacy_is_told_once_that_nothing_is_promised(tmp_path):
    (tmp_path / "plain.toml").write_text('rounds = 1\n[data]\nclients = 3\n[model]\nname = "linear"\n')
    done = command("run", "plain.toml", cwd=tmp_path)
    assert done.stderr.count("no [privacy]: nothing is promised") == 1
    assert "no [privacy]" not in command("run", "plain.toml", "--set", "privacy.unit=none", cwd=tmp_path).stderr


def test_a_shell_completes_keys_and_values(tmp_path):
    def completed(word):
        return started(cwd=tmp_path, _SIGHTLINE_COMPLETE="bash_complete", COMP_WORDS=f"sightline run x.toml --set {word}",
                       COMP_CWORD="4").stdout.split()  # fmt: skip

    assert completed("privacy.eps") == ["plain,privacy.epsilon="]
    assert completed("privacy.unit=") == [
        "plain,privacy.unit=client",
        "plain,privacy.unit=sample",
        "plain,privacy.unit=none",
    ]


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("sweep x.toml --over privacy.eps", ["privacy.epsilon="]),
        ("sweep x.toml --over privacy.unit=client,s", ["privacy.unit=client,sample"]),
        ("new x.toml --algorithm fedp", ["fedprox"]),
        ("new x.toml --topology cl", ["clusters"]),
        ("compare runs --panels swept,ep", ["swept,epsilon"]),
    ],
)
def test_a_shell_completes_values_of_options(tmp_path, typed, wanted):
    words = f"sightline {typed}"
    asked = {"_SIGHTLINE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    assert started(cwd=tmp_path, **asked).stdout.split() == [f"plain,{word}" for word in wanted]


def test_a_file_without_a_name_names_the_folder_of_its_run(tmp_path):
    (tmp_path / "mine.toml").write_text("rounds = 1\n[data]\ntrain_samples = 100\nclients = 2\n", encoding="utf-8")
    for folder in ("mine", "mine-2"):
        done = command("run", "mine.toml", cwd=tmp_path)
        assert "add [privacy] with epsilon = 8" in done.stderr
        assert 'name = "experiment"' in (tmp_path / "runs" / folder / "config.toml").read_text()
    assert command("run", "mine.toml", "--resume", cwd=tmp_path).returncode == 0


def test_a_folder_is_given_with_a_slash(tmp_path):
    for place in ("clients/a", "clients/b"):
        (tmp_path / place).mkdir(parents=True)
    done = command("run", QUICKSTART, "--plan", "--set", "data.source=clients", cwd=tmp_path)
    assert 'data.source=clients: is not a known name, but a file or folder here; write "./clients"' in done.stderr


def test_a_new_file_runs_as_it_stands(tmp_path):
    done = command("new", "mine.toml", "--topology", "tree", "--algorithm", "h2fdp", "--epsilon", "3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "sightline run mine.toml --plan" in done.stdout
    text = (tmp_path / "mine.toml").read_text()
    assert "local_aggregation = 5    # steps from one aggregation to the next: one number" in text
    plan = json.loads(command("run", "mine.toml", "--plan", "--json", cwd=tmp_path).stdout)
    assert (plan["algorithm"], plan["topology"], plan["unit"]) == ("h2fdp", "tree", "client")
    run = json.loads(command("run", "mine.toml", "--json", "--set", "rounds=2", cwd=tmp_path).stdout)
    assert 2.99 < run["epsilon"] <= 3
    again = command("new", "mine.toml", cwd=tmp_path)
    assert again.returncode == 2
    assert "file=mine.toml: exists and is not overwritten" in again.stderr
    assert (tmp_path / "mine.toml").read_text() == text


@pytest.mark.parametrize("file", ["a\nb = 3\n#.toml", "\N{GRINNING FACE}.toml", 'q"x y.toml', "..toml"])
def test_any_file_name_gives_a_valid_experiment(file, tmp_path):
    done = command("new", file, "--unit", "none", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / file).privacy.unit == "none"


@pytest.mark.parametrize("algorithm", [name for name in REGISTRY if name != "hfl"])
def test_every_algorithm_has_a_new_file(algorithm):
    experiment = parse(tomllib.loads(experiment_text(Path("mine.toml"), algorithm=algorithm)))
    assert experiment.algorithm.name == algorithm
    assert experiment.privacy.unit != "none"
    assert experiment.privacy.epsilon == 8


NO_FILE = {
    ("--algorithm", "h2fpd"): '--algorithm=h2fpd: no such algorithm; did you mean "h2fdp"?',
    ("--algorithm", "h2fdp", "--topology", "star"): "--topology=star: h2fdp does not run on it; use tree",
    ("--algorithm", "hfl"): "privacy.unit=client: hfl is hierarchical averaging without privacy",
    ("--unit", "none", "--epsilon", "2"): "--epsilon=2.0: --unit none has no guarantee",
    ("--algorithm", "pfedme", "--unit", "sample"): "privacy.unit=sample: pfedme",
}


@pytest.mark.parametrize("words", NO_FILE)
def test_no_file_is_written_that_would_not_run(words, tmp_path):
    done = command("new", "mine.toml", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert NO_FILE[words] in done.stderr
    assert list(tmp_path.iterdir()) == []
