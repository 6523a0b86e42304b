"""Learning rate, server rate and u of every algorithm, for both arms, on one fixed data set of each kind."""

from collections.abc import Iterable, Iterator
from typing import Any

from papers.upcycled.cells import ALGORITHMS, SYNTHETIC, TUNING, Cell, Tuned, linear_cell
from papers.upcycled.tables import real_cell

RATES = {"letters": (0.03, 0.1), "letters26": (0.1, 0.3), "sent140": (0.3, 1.0)}
LINEAR_RATES = (0.005, 0.02, 0.1)
"""Of the synthetic data; FedYogi is tried at the middle one, pFedMe at the last."""
STEPS = (0.3, 0.6, 0.9)
"""Of u; a plain run has none."""
SERVER_RATES = (0.005, 0.02, 0.1)
"""Of FedYogi, at the middle learning rate."""
ROUNDS = 40
"""Of a run of the grid on synthetic data, as in the tables."""


def list_settings(algorithm: str, rates: tuple[float, ...], steps: tuple[float, ...]) -> Iterator[Tuned]:
    """What is tried; pFedMe, which costs many times as much, only for u."""
    servers = SERVER_RATES if algorithm == "fedyogi" else (None,)
    few = {"pfedme": rates[-1:], "fedyogi": rates[len(rates) // 2 :][:1]}
    for rate in few.get(algorithm, rates):
        for server in servers:
            for u in (None, *steps):
                yield Tuned(rate, u, server)


def synthetic_grid() -> Iterator[Cell]:
    """The four synthetic data sets, with 90% stragglers and a seed that no reported run has."""
    for data in SYNTHETIC:
        for algorithm in ALGORITHMS:
            for tuned in list_settings(algorithm, LINEAR_RATES, STEPS):
                rounds = ROUNDS // 4 if algorithm == "pfedme" else ROUNDS
                more: dict[str, Any] = {"rounds": rounds, "local": {"stragglers": 0.9}}
                yield linear_cell("grid", algorithm, data, tuned, seed=TUNING, **more)


def real_grid() -> Iterator[Cell]:
    """Letters and tweets, the same way."""
    for data, rates in RATES.items():
        for algorithm in ALGORITHMS:
            for tuned in list_settings(algorithm, rates, (STEPS[0], STEPS[-1])):
                yield real_cell("grid-real", algorithm, data, tuned, seed=TUNING, stragglers=0.9)


def find_best(rows: Iterable[dict[str, Any]], data: str, algorithm: str, *, upcycled: bool) -> str:
    """The setting of the highest accuracy in the grid; of equal ones that of the least loss."""
    own = [r for r in rows if (r["data"], r["algorithm"], r["upcycled"]) == (data, algorithm, upcycled)]
    return str(max(own, key=lambda row: (row["accuracy"], -row["loss"]))["setting"])
