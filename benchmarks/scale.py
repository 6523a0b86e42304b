"""Processor seconds of a round of a million clients beside training: sampling, ledger, epsilon / the 1 allowed."""

import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.measure import line

CLIENTS, RATE, ROUNDS, LOCAL_ROUNDS, NOISE, DELTA = 10**6, 1e-3, 50, 10, 1.0, 1e-7


def run() -> dict[str, Any]:
    """Central noise over Poisson cohorts, and noise at every client: ledgers as runs have them, read at the end."""
    from sightline.topology import Star

    start, channel = timed(lambda: warm(Star(CLIENTS, True).channels[0]))
    central = measured(lambda number, cohort: central_round(number, channel), ROUNDS)
    local = measured(lambda number, cohort: local_round(number, cohort), LOCAL_ROUNDS)
    seconds = central["seconds"]
    return line(
        "scale", seconds["sampling"] + seconds["ledger"] + seconds["epsilon"], 1, at_least=False,
        clients=CLIENTS, cohort=int(RATE * CLIENTS), start_seconds=round(start, 2), central=central, local=local,
        memory_megabytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    )  # fmt: skip


def measured(releases: Callable[[int, tuple[int, ...]], list[Any]], rounds: int) -> dict[str, Any]:
    """Median seconds of sampling, releases on disk and worst epsilon; then the reading of the whole ledger."""
    from sightline.ledger import Ledger, SqliteStore, connect_to_write
    from sightline.mechanisms.samplers import PoissonCohorts
    from sightline.randomness import Purpose, Streams
    from sightline.training.schedule import Schedules

    sampler, streams = PoissonCohorts(CLIENTS, RATE), Streams.from_seed(0)
    schedules = Schedules(streams)
    spent: dict[str, list[float]] = {"sampling": [], "ledger": [], "epsilon": []}

    def count_stored(path: Path) -> int:
        with closing(connect_to_write(path)) as connection:
            return len(SqliteStore(connection).read())

    with tempfile.TemporaryDirectory() as folder, closing(connect_to_write(Path(folder) / "run.sqlite")) as connection:
        ledger = Ledger(store=SqliteStore(connection))
        for number in range(1, rounds + 1):
            rng = streams.rng(Purpose.COHORT, round=number)
            seconds, cohort = timed(lambda: sampler.draw(number, rng, schedules))  # noqa: B023
            spent["sampling"].append(seconds)
            made = releases(number, cohort)
            spent["ledger"].append(timed(lambda: ledger.append(made))[0])  # noqa: B023
            seconds, epsilon = timed(lambda: ledger.worst_epsilon("public", DELTA))
            spent["epsilon"].append(seconds)
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
        again, count = timed(lambda: count_stored(Path(folder) / "run.sqlite"))
    medians = {name: round(sorted(some)[len(some) // 2], 4) for name, some in spent.items()}
    return {"rounds": rounds, "seconds": medians, "releases": count, "read_seconds": round(again, 2),
            "disk_kilobytes": size // 1024, "epsilon": round(epsilon, 4)}  # fmt: skip


def central_round(number: int, channel: Any) -> list[Any]:
    """Release the updates to the trusted server and its noisy mean, about every client."""
    from sightline.events import Adjacency, Clear, Gaussian, Poisson, Unit
    from sightline.ledger import Release

    facts, inputs = (Unit.CLIENT, Adjacency.ADD_REMOVE), (2 * number - 3,) if number > 1 else ()
    event = Poisson(RATE, Gaussian(NOISE))
    return [
        Release(number, "clients", channel.subjects, *facts, Clear(), frozenset({"server"}), inputs),
        Release(number, "server", channel.subjects, *facts, event, channel.audience, inputs),
    ]


def local_round(number: int, cohort: tuple[int, ...]) -> list[Any]:
    """One release per member."""
    return list(_own_releases(number, cohort))


def _own_releases(number: int, cohort: tuple[int, ...]) -> Iterator[Any]:
    from sightline.events import Adjacency, Gaussian, Unit
    from sightline.ledger import Release

    facts, audience = (Unit.CLIENT, Adjacency.ADD_REMOVE), frozenset({"server", "public"})
    for member in cohort:
        name = f"client-{member}"
        yield Release(number, name, frozenset({name}), *facts, Gaussian(4 * NOISE), audience)


def warm(channel: Any) -> Any:
    """Create and store the names of a million clients, which happens once per run."""
    from sightline.ledger import write_parties

    write_parties(channel.subjects), write_parties(channel.audience)
    return channel


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Processor seconds (the machine may be busy with others), and the result."""
    begun = time.process_time()
    result = call()
    return time.process_time() - begun, result
