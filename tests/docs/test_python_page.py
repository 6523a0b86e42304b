"""`docs/python.md` runs as it stands: its snippets as one program, its recipes where their package is installed."""

import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.commands import program

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "python.md").read_text()
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
SNIPPETS, _, RECIPES = PAGE.partition("\n### ")
ROUNDS = 5


def code_of(text: str) -> str:
    return "\n".join(BLOCK.findall(text))


def recipe(title: str) -> str:
    """Return the program of one recipe: the page's data and experiment, then the recipe."""
    (text,) = [part for part in RECIPES.split("\n### ") if part.startswith(title)]
    return BLOCK.findall(SNIPPETS)[0] + code_of(text)


def test_the_snippets_run(tmp_path: Path) -> None:
    program(code_of(SNIPPETS), tmp_path)
    assert (tmp_path / "runs" / "hospitals-3" / "report.html").exists()


def test_the_references_example_runs(tmp_path: Path) -> None:
    program(code_of((DOCS / "reference" / "index.md").read_text()), tmp_path)


@pytest.mark.parametrize("number", [0, 1], ids=["own data", "own model"])
def test_own_data_and_own_model_take_ten_lines(number: int) -> None:
    code = BLOCK.findall(PAGE)[number]
    lines = [line for line in code.splitlines() if line.strip() and not line.startswith(("import", "from"))]
    assert len(lines) <= 10


@pytest.mark.slow
def test_a_script_of_the_page_goes_on_after_a_crash(tmp_path: Path) -> None:
    """Each part runs in its own process with other lines around the model, whose code is the same."""
    data, net = (text.partition("run = ")[0] for text in BLOCK.findall(SNIPPETS)[:2])
    crash = (
        "import os\nclass Crash:\n    def on_round(self, row):\n        os._exit(7) if row['round'] == 2 else None\n"
    )
    call = "sightline.run({}, data=hospitals, model=Gated, {})\n"
    begin = data + crash + net + call.format("experiment", "out='broken', callbacks=[Crash()]")
    again = (
        data + "\n# resumed\n" + net + call.format("'broken'", "resume=True") + call.format("experiment", "out='whole'")
    )
    for text, code in ((begin, 7), (again, 0)):
        (tmp_path / "study.py").write_text(text)
        done = subprocess.run([sys.executable, "study.py"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == code, done.stderr[-3000:]
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("broken", "whole")]
    assert models[0] == models[1]


def check_tensorboard(folder: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (log,) = (folder / "tensorboard").iterdir()
    events = EventAccumulator(str(log)).Reload()
    for name in ("test_accuracy", "epsilon.server"):
        assert [event.step for event in events.Scalars(name)] == list(range(1, ROUNDS + 1))


def check_mlflow(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "mlflow.db")) as held:
        parameters = dict(held.execute("SELECT key, value FROM params"))
        tags = dict(held.execute("SELECT key, value FROM tags"))
        steps = [step for (step,) in held.execute("SELECT step FROM metrics WHERE key = 'test_accuracy' ORDER BY step")]
    assert parameters["epsilon"] == "4.0"
    assert "seed" not in parameters
    assert tags["status"] == "finished"
    assert steps == list(range(1, ROUNDS + 1))


def check_wandb(folder: Path) -> None:
    (log,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    held = log.read_bytes()
    assert b"test_accuracy" in held
    assert b"epsilon" in held


Check = Callable[[Path], None]
TRACKERS: dict[str, tuple[str, Check]] = {
    "TensorBoard": ("tensorboard", check_tensorboard),
    "MLflow": ("mlflow", check_mlflow),
    "Weights": ("wandb", check_wandb),
}


@pytest.mark.slow
@pytest.mark.parametrize("title", TRACKERS)
def test_a_recipe_logs_every_round(title: str, tmp_path: Path) -> None:
    """Runs in its own process, because trackers warn, start threads and keep state."""
    package, check = TRACKERS[title]
    pytest.importorskip(package, reason=f"the recipe for {package} runs where it is installed")
    (tmp_path / "log.py").write_text(recipe(title))
    env = {**os.environ, "HOME": str(tmp_path), "WANDB_MODE": "offline", "MLFLOW_DISABLE_TELEMETRY": "true"}
    done = subprocess.run([sys.executable, "log.py"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    check(tmp_path)


def test_every_recipe_leaves_the_seed_out() -> None:
    assert len(RECIPES.split("\n### ")) == len(TRACKERS)
    assert 'model_dump(exclude={"seed"}' in RECIPES
    assert "experiment.seed" not in RECIPES
