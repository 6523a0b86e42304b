"""Medians of interleaved repetitions, and peers in their own processes."""

import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PEERS = ROOT / ".bench"


class Absent(Exception):
    """A peer is not installed; the message says why."""


def interleaved(
    work: Mapping[str, Callable[[], float | None]], *, repeat: int, warm: int = 2
) -> dict[str, list[float]]:
    """Return the seconds of each piece of work, in interleaved repetitions; the first `warm` ones are discarded.

    Work that times itself returns its seconds; otherwise the whole call is timed.
    """
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(warm + repeat):
        for name, call in work.items():
            begun = time.perf_counter()
            own = call()
            spent = time.perf_counter() - begun if own is None else own
            if turn >= warm:
                seconds[name].append(spent)
    return seconds


def medians(seconds: Mapping[str, list[float]]) -> dict[str, float]:
    """Return the median of each."""
    return {name: statistics.median(values) for name, values in seconds.items()}


def line(name: str, ratio: float, goal: float, *, at_least: bool, **more: Any) -> dict[str, Any]:
    """Return the result of one benchmark."""
    ok = ratio >= goal if at_least else ratio <= goal
    sign = ">=" if at_least else "<="
    return {"name": name, "ratio": round(ratio, 3), "goal": f"{sign} {goal:g}", "ok": ok} | more


def graded(
    name: str, ratios: Mapping[str, float], goals: Mapping[str, float], *, at_least: bool, **more: Any
) -> dict[str, Any]:
    """Return the result of a benchmark with a goal per row; `ratio` is that of the row closest to missing its goal."""
    rows = {row: line(row, ratio, goals[row], at_least=at_least) for row, ratio in ratios.items()}
    share = {row: ratio / goals[row] if at_least else goals[row] / ratio for row, ratio in ratios.items()}
    worst = rows[min(share, key=lambda row: share[row])]
    told = {row: {key: one[key] for key in ("ratio", "goal", "ok")} for row, one in rows.items()}
    all_met = all(one["ok"] for one in rows.values())
    return {"name": name, "ratio": worst["ratio"], "goal": worst["goal"], "ok": all_met, "rows": told} | more


CALLS = 8
"""Consecutive calls in one timed turn, on every side of a comparison of steps: warm, and the call's own cost spread."""


def in_a_row(call: Callable[[], object], *, clock: Callable[[], float] = time.perf_counter) -> Callable[[], float]:
    """Return the seconds of one of CALLS consecutive calls."""

    def timed() -> float:
        begun = clock()
        for _ in range(CALLS):
            call()
        return (clock() - begun) / CALLS

    return timed


def check_precision(precision: str) -> None:
    """Raise if this machine cannot compute steps in this precision."""
    from sightline.config import Local, parse
    from sightline.errors import SightlineError

    if precision == "float32":
        return
    if "precision" not in Local.model_fields:
        raise Absent(f"this version has no local.precision = {precision!r}")
    try:
        parse({"rounds": 1, "model": {"name": "cnn"}, "local": {"precision": precision}})
    except SightlineError as refused:
        raise Absent(str(refused)) from refused


class Answering:
    """A process that answers every line on stdin with one JSON line."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env={
                name: value for name, value in os.environ.items() if name != "MKL_CBWR"
            },  # what others do as they come
        )

    def seconds(self) -> float:
        """Run the peer's work once and return the seconds by its own clock."""
        return float(self.ask()["seconds"])

    def ask(self) -> dict[str, Any]:
        """Return the peer's next answer."""
        if self._process.stdin is None or self._process.stdout is None:
            raise Absent("the peer has no pipes")
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        for answer in self._process.stdout:
            if answer.startswith("{"):
                found: dict[str, Any] = json.loads(answer)
                return found
        raise Absent(f"the peer stopped with exit code {self._process.wait()}")

    def close(self) -> None:
        """Stop the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()


class Peer(Answering):
    """A peer in its own virtual environment."""

    def __init__(self, environment: str, script: str, *arguments: str) -> None:
        python = PEERS / environment / "bin" / "python"
        if not python.exists():
            raise Absent(f"{environment} is not installed; run make bench-setup")
        super().__init__([str(python), str(ROOT / "benchmarks" / "peers" / script), *arguments])
