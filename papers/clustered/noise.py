"""The noise of a whole R-DPCFL run: round one, later rounds and selections by one accountant."""

from functools import cache
from math import ceil

from sightline.accounting import calibrate
from sightline.events import Event, Exponential, Gaussian, Poisson

DELTA = 1e-4
EPSILONS = (3, 4, 5, 10, 15)
ROUNDS = 200
LATER_BATCH = 32
SELECTION_SHARE = 0.03


def steps_at(noise: float, samples: int, batch: int) -> tuple[Event, int]:
    """One epoch: ceil(N / b) steps at rate b / N."""
    batch = min(batch, samples)
    step = Gaussian(noise)
    return (step if batch == samples else Poisson(batch / samples, step)), ceil(samples / batch)


def composition(
    noise: float, samples: int, first_batch: int, later_batch: int, rounds: int, selection: float
) -> dict[Event, int]:
    """Everything that an example of one client is in."""
    found: dict[Event, int] = {}
    for (event, steps), times in (
        (steps_at(noise, samples, first_batch), 1),
        (steps_at(noise, samples, later_batch), rounds - 1),
    ):
        found[event] = found.get(event, 0) + steps * times
    if selection > 0:
        found[Exponential(selection)] = rounds // 10
    return found


@cache
def noise_of(
    epsilon: float,
    samples: int,
    *,
    first_batch: int | None = None,
    later_batch: int = LATER_BATCH,
    rounds: int = ROUNDS,
    selecting: bool = True,
) -> float:
    """The least z for (epsilon, 1e-4); without `first_batch` the first round is one step with everything."""
    first = samples if first_batch is None else first_batch
    selection = SELECTION_SHARE * epsilon if selecting else 0.0
    return calibrate(
        lambda z: composition(z, samples, first, later_batch, rounds, selection), epsilon=epsilon, delta=DELTA
    )
