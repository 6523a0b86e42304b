"""Checks for plugin mechanisms, samplers and topologies, before anything is computed with them.

A sampler draws what it says, and hides no more than it claims: every test raises a false alarm with a probability below
1e-8. A few thousand draws find a sampler that draws some members together, in turns or more often than it claims; they
are not a proof. In a topology every party that sees a release is an observer, and trust is declared.
"""

import math
import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sightline.config import ClientSampler, Experiment
from sightline.errors import invalid, refuse
from sightline.events import Adjacency, Event, Gaussian, Poisson, Repeat
from sightline.laws.known_clients import NEVER, SIGMAS
from sightline.laws.mechanism import CLIENTS, check_mechanism_laws
from sightline.mechanisms import CohortSampler, MechanismPlugin
from sightline.mechanisms.registry import find_mechanism
from sightline.plugins import MECHANISM, SAMPLER, BrokenLaw, locate_plugin, refuse_plugin
from sightline.randomness import Purpose, Streams
from sightline.topology import PUBLIC, Channel, Topology, client_name, participants_of
from sightline.training.schedule import Schedules

CELLS = 400_000
"""Approximate number of (round, member) draws that the cheap check uses."""
FEWEST, MOST = 40, 2000
PAIRED = 60
"""Number of members that are compared pairwise."""
LAGS = range(1, 9)
# Several events, so that a plugin cannot pass by treating one of them specially.
EVENTS: tuple[Event, ...] = (Gaussian(1.0), Gaussian(2.5), Repeat(3, Gaussian(1.5)))

# Algorithms may treat a plugin as a star only: the other built-in kinds have structure that is not checked here.
LIKE = ("", "star")
# A function of the round cannot be checked for all rounds; a sample finds most mistakes.
FIRST_ROUNDS = range(1, 9)
WAY_OUT = "sightline.testing.check_topology gives its author details"

_passed: set[tuple[str, ...]] = set()


def check_first_mechanism(experiment: Experiment, classes: int) -> None:
    """Check a plugin mechanism once for each of its sources and settings. Raise `Refused` if it fails."""
    result = find_mechanism(experiment)
    if result is None:
        return
    plugin, own = result
    # Keyed by the digest of the plugin's source: an edited plugin is checked again.
    settings = experiment.privacy.model_dump_json(), experiment.local.model_dump_json()
    facts = (plugin.name, plugin.source_digest, *settings)
    if facts in _passed:
        return
    try:
        check_plugin_laws(own, experiment, classes)
    except Exception as error:
        refuse_plugin(MECHANISM, plugin.name, error)
    _passed.add(facts)


def check_plugin_laws(plugin: MechanismPlugin, experiment: Experiment, classes: int, **how: int) -> None:
    """Raise `BrokenLaw` unless the mechanism passes every check on six clients with the experiment's settings."""
    privacy = experiment.privacy
    mechanism = plugin.build(experiment, [10] * CLIENTS, classes)
    # At edges both kinds of channels occur, so both are checked.
    for trusted in (True, False) if privacy.place == "edge" else (privacy.place == "server",):
        check_mechanism_laws(
            mechanism, clip_norm=privacy.clip_norm, adjacency=Adjacency(privacy.adjacency), trusted=trusted, **how
        )


def check_first_sampler(settings: ClientSampler, sampler: CohortSampler, adjacency: Adjacency) -> None:
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


def check_sampler_laws(sampler: CohortSampler, adjacency: Adjacency, *, cells: int = CELLS) -> None:
    """Raise `BrokenLaw` unless the draws fit the claim.

    Guarantees: a sampler that passes claims no amplification, or that of Poisson sampling under add/remove adjacency;
    in the latter case its draws looked independent between members and rounds, and no member's rate exceeded the claim.
    """
    claimed = _claimed_rate(sampler, adjacency)
    for time in range(1, 21):
        if sampler.joint_name(time) != "" or not sampler.takes_part_in_plan(time):
            raise BrokenLaw(
                "every round is charged separately",
                f"round {time} is charged together with others, or is not in the plan",
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


def _claimed_rate(sampler: CohortSampler, adjacency: Adjacency) -> float | None:
    """Return the rate of the Poisson sampling that the sampler claims; None if it claims to hide nothing."""
    rates = set()
    for event in EVENTS:
        hidden = sampler.hidden_event(event)
        if isinstance(hidden, Poisson) and hidden.event == event:
            rates.add(hidden.rate)
        elif hidden != event:
            reason = "claims are of a kind that can be checked"
            raise BrokenLaw(reason, f"{event} becomes {hidden}, which is neither the event nor its Poisson sampling")
        else:
            rates.add(1.0)
    if len(rates) > 1:
        raise BrokenLaw("a sampler claims one rate for all events", f"it claims rates {sorted(rates)}")
    (rate,) = rates
    # The accountant's law for Poisson sampling is that of zero-out adjacency.
    if rate < 1 and adjacency is not Adjacency.ADD_REMOVE:
        raise BrokenLaw(
            "Poisson sampling is claimed under add/remove adjacency only", f"adjacency is {adjacency.value}"
        )
    return None if rate >= 1 else rate


def _draw_row(sampler: CohortSampler, time: int, seed: int = 11) -> NDArray[np.bool_]:
    streams = Streams.from_seed(seed)
    members = sampler.draw(time, streams.rng(Purpose.COHORT, round=time), Schedules(streams))
    row = np.zeros(sampler.population, dtype=bool)
    indices = np.asarray(members, dtype=np.int64)
    if len(indices) and (indices.min() < 0 or indices.max() >= len(row) or (np.diff(indices) <= 0).any()):
        raise BrokenLaw(
            "a cohort lists members, each once and in increasing order",
            f"round {time} drew {members[:8]}: the indices must increase from 0 to the number of members",
        )
    row[indices] = True
    return row


def _check_repeatable(sampler: CohortSampler) -> None:
    for time in (1, 2):
        if not (_draw_row(sampler, time) == _draw_row(sampler, time)).all():
            raise BrokenLaw(
                "the same random streams give the same result", f"a second draw of round {time} gives another cohort"
            )


def _check_size(sampler: CohortSampler, drawn: NDArray[np.bool_]) -> None:
    sizes = drawn.sum(1)
    slack = SIGMAS * (float(sizes.std()) + 1e-9) / math.sqrt(len(sizes)) + SIGMAS**2 / len(sizes)
    if not abs(float(sizes.mean()) - sampler.expected) <= slack:
        raise BrokenLaw(
            "cohorts have the expected size", f"{sizes.mean():.4g} on average, but `expected` is {sampler.expected:.4g}"
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
        seen = f"member {worst} was in {counts[worst]} of {rounds} cohorts, but rate {rate:g} is claimed"
        raise BrokenLaw("no member is drawn more often than claimed", seen)
    if stats.binom.sf(int(counts.sum()) - 1, rounds * members, rate) < NEVER:
        seen = f"members are drawn with rate {counts.mean() / rounds:.4g}, but {rate:g} is claimed"
        raise BrokenLaw("no member is drawn more often than claimed", seen)


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
        raise BrokenLaw(
            "members are drawn independently", f"the variance of cohort sizes is off by {off:+.1f} standard deviations"
        )
    paired = drawn[:, :PAIRED].astype(np.int64)
    together, counts = paired.T @ paired, paired.sum(0)
    of_both = (rounds, counts[:, None], counts[None, :])  # how often two are drawn, given how often each is
    above, below = stats.hypergeom.sf(together - 1, *of_both), stats.hypergeom.cdf(together, *of_both)
    np.fill_diagonal(above, 1.0)
    np.fill_diagonal(below, 1.0)
    if min(above.min(), below.min()) < NEVER / PAIRED**2:
        index = np.unravel_index(np.minimum(above, below).argmin(), above.shape)
        seen = f"members {index[0]} and {index[1]} are drawn together in {together[index]} of {rounds} rounds"
        raise BrokenLaw("members are drawn independently", seen)


def _check_rounds(drawn: NDArray[np.bool_]) -> None:
    """Check that a drawn member is drawn again as often as any other."""
    for lag in LAGS:
        off = _overlap_deviation(drawn, drawn[:-lag] & drawn[lag:])
        if abs(off) > SIGMAS + 1:
            seen = f"members are drawn again {lag} rounds later {off:+.1f} standard deviations more often than others"
            raise BrokenLaw("rounds are drawn independently", seen)


def _check_streams(drawn: NDArray[np.bool_], others: NDArray[np.bool_]) -> None:
    """Check that the random streams decide the draw: code and round number alone must not determine the cohort."""
    off = _overlap_deviation(drawn, drawn & others)
    if abs(off) > SIGMAS + 1:
        seen = f"other streams draw the same members {off:+.1f} standard deviations more often than others"
        raise BrokenLaw("cohorts are drawn with the random streams", seen)


def _overlap_deviation(drawn: NDArray[np.bool_], together: NDArray[np.bool_]) -> float:
    """Return how much more often than in independent cohorts members were drawn twice, in standard deviations."""
    rounds, rates = len(drawn), drawn.mean(0)
    counts = drawn.sum(0).astype(np.float64)
    usual = float((counts * (counts - 1)).sum()) / (rounds * (rounds - 1))
    variance = len(together) * float((rates**2 * (1 - rates**2) + 2 * (rates**3 - rates**4)).sum())
    return (float(together.sum()) - len(together) * usual) / math.sqrt(variance + 1e-12)


def check_shape(kind: str, topology: Topology, *, clients: int, place: str, like: str = "") -> None:
    """Raise for a topology under which some party would see more than its lines of sight say.

    Guarantees: every channel has existing members, once each; a party that gathers, or is sent what was gathered, is in
    its audience; exactly the parties that receive un-noised updates are trusted; if clients add the noise, no party is;
    an observer that sees something and is not trusted is covered by a line, against every subject but itself, and the
    observer of every line sees something; a topology `like` a star has the shape of one. Whether the declared
    communication is the real one, only its author knows.
    """
    if like not in LIKE:
        invalid("topology.kind", kind, f"like = {like!r} is unknown", 'use like = "star", or omit it')
    for problem in _find_problems(topology, clients, place, like):
        refuse("topology.kind", kind, f"breaks a law of topologies: {problem}", WAY_OUT)


def _find_problems(topology: Topology, clients: int, place: str, like: str) -> Iterator[str]:
    channels = _every_channel(topology)
    for channel in channels:
        if len(set(channel.members)) < len(channel.members) or not set(channel.members) <= set(range(clients)):
            yield f"the members of {channel.name} must be clients, each listed once"
        if channel.name in {client_name(n) for n in channel.members}:
            yield f"{channel.name} gathers from itself"
        if channel.name == PUBLIC:
            yield f"{PUBLIC} is an outsider and must not gather"
        if channel.name not in channel.audience:
            yield f"{channel.name} sees what it publishes, so it must be in its audience"
        if any(other.name == channel.name and other.members != channel.members for other in channels):
            yield f"two channels named {channel.name} must have the same members"
        if channel.noise_factor <= 0 or channel.clip_factor <= 0:
            yield f"noise and clip factor of {channel.name} must be positive"
    if place not in ("server", "edge") and (topology.trusted or any(channel.trusted for channel in channels)):
        yield f'where = "{place}" allows no trusted party, but it trusts {", ".join(topology.trusted) or "a channel"}'
    if not topology.steady or any(set(topology.channels_at(time)) - set(topology.channels) for time in FIRST_ROUNDS):
        yield "channels and their members must stay the same for the whole run"
    if not topology.lines or not all(topology.lines.values()):
        yield "it must have lines of sight, at least one of every kind"
    yield from _false_trust(topology, channels)
    yield from _unseen_observers(topology, channels, clients)
    yield from _blind_observers(topology, channels, clients)
    if like == "star" and not _is_star(topology, clients):
        yield 'like = "star" needs one channel that gathers from all clients in every round, with no party in between'


def _every_channel(topology: Topology) -> list[Channel]:
    """Return all distinct channels: one party may gather for two audiences."""
    return list(dict.fromkeys((*topology.channels, *topology.gathering_channels, topology.top)))


def _false_trust(topology: Topology, channels: list[Channel]) -> Iterator[str]:
    """Yield undeclared trust, and trust in a party that receives nothing."""
    # A trusted party has no line of sight, so trust without a reason would hide an observer.
    handed = frozenset[str]().union(*(channel.through for channel in channels))
    handed |= {channel.name for channel in channels if channel.trusted}
    for name in sorted(handed - set(topology.trusted)):
        yield f"{name} receives un-noised updates but is not declared as trusted"
    for name in sorted(set(topology.trusted) - handed - {channel.name for channel in channels}):
        yield f"it trusts {name}, which receives nothing"


def _blind_observers(topology: Topology, channels: list[Channel], clients: int) -> Iterator[str]:
    """Yield parties that the ledger would charge with nothing, and lines whose epsilon would be 0 for that reason."""
    known = {client_name(number) for number in range(clients)}
    names = participants_of(topology, clients) - known
    for name in sorted(name for name in names if re.fullmatch(r"client-\d+", name)):
        yield f"{name} is not one of its {clients} clients"
    above = {topology.top.name}.union(*topology.uplinks) - set(topology.trusted)
    for channel in topology.gathering_channels:
        if topology.top.name not in channel.audience | set(topology.trusted):
            yield f"{topology.top.name} receives what {channel.name} gathers, so it must be in that audience"
    for name in sorted(name for name in above if not _view_of(name, channels)):
        yield f"{name} forwards what was gathered but is in no audience"
    kinds = {kind: {line.observer for line in lines} for kind, lines in topology.lines.items()}
    if set(topology.observers) != set(kinds) or any(topology.observers[kind] not in kinds[kind] for kind in kinds):
        yield "every kind of observer must have lines, and its representative must be the observer of one"
    for kind, observers in kinds.items():
        for name in sorted(name for name in observers if not _view_of(name, channels)):
            yield f"{name} of {kind!r} is in no audience: its epsilon would be 0"


def _unseen_observers(topology: Topology, channels: list[Channel], clients: int) -> Iterator[str]:
    """Yield untrusted parties that see channels which no line's observer sees together."""
    views: dict[frozenset[str], list[str]] = {}
    for name in sorted(participants_of(topology, clients) - set(topology.trusted)):
        views.setdefault(_view_of(name, channels), []).append(name)
    lines = [(line, _view_of(line.observer, channels)) for some in topology.lines.values() for line in some]
    for view, observers in views.items():
        covering = [line for line, seen in lines if view <= seen]
        if view and not covering:
            yield f"{observers[0]} sees {', '.join(sorted(view))}, but no line of sight covers that"
            continue
        # A subject exempt from every covering line would be protected by no guarantee against this observer.
        exempt = frozenset.intersection(*(line.exempt for line in covering)) if covering else frozenset()
        for subject in sorted(exempt):
            if any(observer != subject for observer in observers):
                yield f"{next(o for o in observers if o != subject)} sees {subject}, which every such line exempts"


def _view_of(name: str, channels: list[Channel]) -> frozenset[str]:
    """Return the channels whose publications or inputs a party sees; two channels of one name are distinct."""
    return frozenset(
        f"{c.name} ({index})" if any(other.name == c.name for other in channels[:index]) else c.name
        for index, c in enumerate(channels)
        if name in c.audience or name in c.through
    )


def _is_star(topology: Topology, clients: int) -> bool:
    alone = (
        topology.channels == topology.gathering_channels == (topology.top,) and not topology.uplinks and topology.steady
    )
    plain = (topology.top.rate, topology.top.noise_factor, topology.top.clip_factor) == (None, 1.0, 1.0)
    return alone and plain and topology.top.members == tuple(range(clients))
