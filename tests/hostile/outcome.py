"""What becomes of a hostile experiment file: an experiment that survives its own writing and can be planned, or one line."""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

from sightline.config import Experiment, read, to_toml
from sightline.engine import build_experiment, plan_releases
from sightline.errors import InvalidInput, SightlineError

SMALL = ("digits", "synthetic")
"""Sources that need no file; experiments on others are tried on these."""
FEW, ROUNDS, SECONDS = 60, 2, 30


def outcome(path: Path, text: str) -> str:
    """`experiment`, `one line`, or `crash: ...`: of reading, writing and reading again."""
    return reading(path, text)[0]


def reading(path: Path, text: str) -> tuple[str, Experiment | None]:
    """The same, with the experiment where there is one."""
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        experiment = read(path)
        path.write_text(to_toml(experiment), encoding="utf-8")
        again = read(path)
    except InvalidInput as error:
        return _line(error), None
    except Exception as error:
        return _crash(error), None
    return ("experiment", experiment) if again == experiment else ("crash: written and read it is another", None)


def building(experiment: Experiment) -> str:
    """`planned`, `refused`, `slow` or `crash: ...`: of all that comes before the first data are trained on."""
    try:
        with _patience():
            setting = build_experiment(small(experiment))
            plan_releases(setting, rounds=min(ROUNDS, experiment.rounds))
    except TimeoutError:
        return "slow"
    except SightlineError as error:
        return "refused" if _line(error) == "one line" else "crash: not one short line"
    except Exception as error:
        return _crash(error)
    return "planned"


def small(experiment: Experiment) -> Experiment:
    """The experiment on few clients and on data that are always there."""
    data = experiment.data
    changes: dict[str, object] = {"clients": min(data.clients, FEW)}
    if data.source not in SMALL and ":" not in data.source:
        changes |= {"source": "digits", "train_samples": None, "test_samples": None, "options": {}}
        changes |= {"partition": "iid"} if data.partition in ("by_user", "natural") else {}
    if data.clients > FEW:
        changes |= {"clusters": None} if data.clusters is None else {"clients": data.clients}
    return experiment.model_copy(update={"data": data.model_copy(update=changes)})


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _line(error: Exception) -> str:
    short = "\n" not in str(error) and len(str(error)) < 1000 and str(error).isprintable()
    return "one line" if short else "crash: not one short line"


def _crash(error: Exception) -> str:
    return f"crash: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
