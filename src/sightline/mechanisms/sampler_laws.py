"""Checks for plugin samplers: they draw what they say, and hide no more than they claim.

Every test raises a false alarm with a probability below 1e-8. A few thousand draws find a sampler that draws some
members together, in turns or more often than it claims; they are not a proof.
"""

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sightline.config import ClientSampler
from sightline.events import Adjacency, Event, Gaussian, Poisson, Repeat
from sightline.mechanisms.schedule import Schedules
from sightline.plugins import SAMPLER, BrokenLaw, locate_plugin, refuse_plugin
from sightline.randomness import Purpose, Streams

if TYPE_CHECKING:
    from sightline.mechanisms.samplers import CohortSampler

NEVER = 1e-9
SIGMAS = 6.5
CELLS = 400_000
"""Approximate number of (round, member) draws that the cheap check uses."""
FEWEST, MOST = 40, 2000
PAIRED = 60
"""Number of members that are compared pairwise."""
LAGS = range(1, 9)
# Several events, so that a plugin cannot pass by treating one of them specially.
EVENTS: tuple[Event, ...] = (Gaussian(1.0), Gaussian(2.5), Repeat(3, Gaussian(1.5)))

_passed: set[tuple[str, ...]] = set()


def check_first_sampler(settings: ClientSampler, sampler: "CohortSampler", adjacency: Adjacency) -> None:
    """Check a plugin sampler once for each of its sources, settings and sizes. Raise `Refused` if it fails."""
    plugin = locate_plugin(SAMPLER, settings.scheme, ())
    if plugin is None:
        return
    facts = (plugin.name, plugin.source_digest, settings.model_dump_json(), str(sampler.population), adjacency.value)
    if facts in _passed:
        return
    try:
        check_sampler_laws(sampler, adjacency)
    except Exception as error:
        refuse_plugin(SAMPLER, settings.scheme, error)
    _passed.add(facts)


def check_sampler_laws(sampler: "CohortSampler", adjacency: Adjacency, *, cells: int = CELLS) -> None:
    """Raise `BrokenLaw` unless the draws fit the claim.

    Guarantees: a sampler that passes claims no amplification, or that of Poisson sampling under add/remove adjacency;
    in the latter case its draws looked independent between members and rounds, and no member's rate exceeded the claim.
    """
    claimed = _claimed_rate(sampler, adjacency)
    for time in range(1, 21):
        if sampler.joint_name(time) != "" or not sampler.takes_part_in_plan(time):
            raise BrokenLaw(
                "every round by itself", f"round {time} is charged with others, or nobody plans to be in it"
            )
    rounds = int(np.clip(cells // max(1, sampler.population), FEWEST, MOST * max(1, cells // CELLS)))
    drawn = np.array([_draw_row(sampler, time) for time in range(1, rounds + 1)])
    _check_repeatable(sampler)
    _check_size(sampler, drawn)
    if claimed is not None:
        _check_rates(drawn, claimed)
        _check_members(drawn)
        _check_rounds(drawn)
        _check_streams(drawn, np.array([_draw_row(sampler, time, seed=12) for time in range(1, rounds + 1)]))


def _claimed_rate(sampler: "CohortSampler", adjacency: Adjacency) -> float | None:
    """Return the rate of the Poisson sampling that the sampler claims; None if it claims to hide nothing."""
    rates = set()
    for event in EVENTS:
        hidden = sampler.hidden_event(event)
        if isinstance(hidden, Poisson) and hidden.event == event:
            rates.add(hidden.rate)
        elif hidden != event:
            law = "what is claimed can be checked"
            raise BrokenLaw(law, f"{event} becomes {hidden}, neither the event itself nor its Poisson sampling")
        else:
            rates.add(1.0)
    if len(rates) > 1:
        raise BrokenLaw("one rate for all events", f"it claims rates {sorted(rates)}")
    (rate,) = rates
    # The accountant's law for Poisson sampling is that of zero-out adjacency.
    if rate < 1 and adjacency is not Adjacency.ADD_REMOVE:
        raise BrokenLaw("Poisson sampling is claimed for add/remove only", f"adjacency is {adjacency.value}")
    return None if rate >= 1 else rate


def _draw_row(sampler: "CohortSampler", time: int, seed: int = 11) -> NDArray[np.bool_]:
    streams = Streams.from_seed(seed)
    members = sampler.draw(time, streams.rng(Purpose.COHORT, round=time), Schedules(streams))
    row = np.zeros(sampler.population, dtype=bool)
    places = np.asarray(members, dtype=np.int64)
    if len(places) and (places.min() < 0 or places.max() >= len(row) or (np.diff(places) <= 0).any()):
        raise BrokenLaw("a cohort is some of the members", f"round {time} drew {members[:8]}: not increasing places")
    row[places] = True
    return row


def _check_repeatable(sampler: "CohortSampler") -> None:
    for time in (1, 2):
        if not (_draw_row(sampler, time) == _draw_row(sampler, time)).all():
            raise BrokenLaw("same streams, same bits", f"round {time} drawn again is another cohort")


def _check_size(sampler: "CohortSampler", drawn: NDArray[np.bool_]) -> None:
    sizes = drawn.sum(1)
    slack = SIGMAS * (float(sizes.std()) + 1e-9) / math.sqrt(len(sizes)) + SIGMAS**2 / len(sizes)
    if not abs(float(sizes.mean()) - sampler.expected) <= slack:
        raise BrokenLaw(
            "cohorts are as large as expected", f"{sizes.mean():.4g} on average, and {sampler.expected:.4g} is said"
        )
    chance = sampler.chance_of_none(np.array([0, 1, 2]))
    if not (chance[0] == 1 and (np.diff(chance) <= 1e-12).all() and (chance >= 0).all()):
        raise BrokenLaw("chances are probabilities", f"chance_of_none of 0, 1 and 2 members is {chance.tolist()}")


def _check_rates(drawn: NDArray[np.bool_], rate: float) -> None:
    from scipy import stats  # slow to load, and runs of our own need none of it

    rounds, members = drawn.shape
    counts = drawn.sum(0)
    worst = int(counts.argmax())
    if stats.binom.sf(counts[worst] - 1, rounds, rate) < NEVER / members:
        seen = f"member {worst} was in {counts[worst]} of {rounds} cohorts, and rate {rate:g} is claimed"
        raise BrokenLaw("nobody is drawn more often than claimed", seen)
    if stats.binom.sf(int(counts.sum()) - 1, rounds * members, rate) < NEVER:
        seen = f"members are drawn with rate {counts.mean() / rounds:.4g}, and {rate:g} is claimed"
        raise BrokenLaw("nobody is drawn more often than claimed", seen)


def _check_members(drawn: NDArray[np.bool_]) -> None:
    """Check that cohort sizes vary like sums of independent draws, and that no two members attract or repel."""
    from scipy import stats

    rounds, rates = len(drawn), drawn.mean(0)
    spread = rates * (1 - rates)
    variance = float(spread.sum())
    if variance == 0:
        return
    # Excess kurtosis of a sum of Bernoulli draws: without it small rates would raise false alarms.
    excess = float((spread * (1 - 6 * spread)).sum()) / variance**2
    off = (float(drawn.sum(1).var()) / variance - 1) / math.sqrt((2 + max(0.0, excess)) / rounds)
    if abs(off) > SIGMAS + 1:
        raise BrokenLaw("members are drawn independently", f"cohorts' sizes vary {off:+.1f} deviations from that")
    some = drawn[:, :PAIRED].astype(np.int64)
    together, counts = some.T @ some, some.sum(0)
    of_both = (rounds, counts[:, None], counts[None, :])  # how often two are drawn, given how often each is
    above, below = stats.hypergeom.sf(together - 1, *of_both), stats.hypergeom.cdf(together, *of_both)
    np.fill_diagonal(above, 1.0)
    np.fill_diagonal(below, 1.0)
    if min(above.min(), below.min()) < NEVER / PAIRED**2:
        place = np.unravel_index(np.minimum(above, below).argmin(), above.shape)
        seen = f"members {place[0]} and {place[1]} are drawn together {together[place]} times of {rounds}"
        raise BrokenLaw("members are drawn independently", seen)


def _check_rounds(drawn: NDArray[np.bool_]) -> None:
    """Check that a drawn member is drawn again as often as any other."""
    for lag in LAGS:
        off = _overlap_deviation(drawn, drawn[:-lag] & drawn[lag:])
        if abs(off) > SIGMAS + 1:
            seen = f"who is drawn is drawn {lag} rounds later {off:+.1f} deviations more often than others"
            raise BrokenLaw("rounds are drawn independently", seen)


def _check_streams(drawn: NDArray[np.bool_], others: NDArray[np.bool_]) -> None:
    """Check that the random streams decide the draw: code and round number alone must not determine the cohort."""
    off = _overlap_deviation(drawn, drawn & others)
    if abs(off) > SIGMAS + 1:
        seen = f"by other streams the same members are drawn, {off:+.1f} deviations more often than others"
        raise BrokenLaw("cohorts are drawn by the streams", seen)


def _overlap_deviation(drawn: NDArray[np.bool_], together: NDArray[np.bool_]) -> float:
    """Return how much more often than in independent cohorts members were drawn twice, in standard deviations."""
    rounds, rates = len(drawn), drawn.mean(0)
    counts = drawn.sum(0).astype(np.float64)
    usual = float((counts * (counts - 1)).sum()) / (rounds * (rounds - 1))
    variance = len(together) * float((rates**2 * (1 - rates**2) + 2 * (rates**3 - rates**4)).sum())
    return (float(together.sum()) - len(together) * usual) / math.sqrt(variance + 1e-12)
