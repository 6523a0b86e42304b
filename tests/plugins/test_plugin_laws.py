"""The laws hold for what is built in, and each of them can fail: for every law there is something that breaks it."""

import math
import sys
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np
import pytest
import torch

import sightline
from sightline import algorithms, engine, topology
from sightline.config import parse
from sightline.engine.algorithm_laws import check_sources
from sightline.errors import Refused
from sightline.events import Adjacency, Gaussian, Product, Pure
from sightline.laws import check_mechanism_laws, check_sampler_laws, check_shape
from sightline.mechanisms import (
    AdaptiveMean,
    CentralMean,
    ClientOutput,
    LocalMean,
    MechanismFacts,
    NoiseByTrust,
    NoisedValue,
    Public,
    ReleaseValues,
)
from sightline.mechanisms.samplers import FixedCohorts, Full, PoissonCohorts
from sightline.plugins import BrokenLaw
from sightline.randomness import EVERYONE
from sightline.testing.checks import make_file
from sightline.topology import SERVER, Channel, Line, Star, TopologyPlugin
from tests.laws.combinations import Combination, plain

CLIP = 0.5


def check(mechanism, *, adjacency=Adjacency.ADD_REMOVE, trusted=True):
    check_mechanism_laws(mechanism, clip_norm=CLIP, adjacency=adjacency, trusted=trusted)


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("kind", [CentralMean, AdaptiveMean, LocalMean, NoiseByTrust])
def test_built_in_mechanisms_keep_the_laws(kind, adjacency):
    check(kind(CLIP, 1.0), adjacency=adjacency)


@dataclass(frozen=True)
class Lie(CentralMean):
    """The mean at the server, noised as it says, except for what a subclass does."""

    def raw(self, updates):
        return {n: update.double() for n, update in updates.train_members()}

    def noised(self, total, context, *, rng=None, std=None):
        std = (
            self.noise_multiplier * context.channel.noise_factor * CLIP * context.channel.clip_factor
            if std is None
            else std
        )
        noise = (rng or context.noise(EVERYONE)).standard_normal(len(total))
        return ReleaseValues({EVERYONE: ((total + torch.from_numpy(noise) * std) / context.sampler.expected).float()})

    def clipped(self, updates, context):
        radius, total = CLIP * context.channel.clip_factor, torch.zeros(updates.worker.dimension, dtype=torch.float64)
        for update in self.raw(updates).values():
            total += torch.nan_to_num(update, 0, 0, 0) * min(
                1.0, radius / float(torch.nan_to_num(update, 0, 0, 0).norm() + 1e-300)
            )
        return total


class Honest(Lie):
    def mean(self, updates, context):
        return self.noised(self.clipped(updates, context), context)


class Unclipped(Lie):
    def mean(self, updates, context):
        return self.noised(sum(self.raw(updates).values(), torch.zeros(updates.worker.dimension)), context)


class ClippedInTwo(Lie):
    """Each half of the vector to the whole clip norm."""

    def mean(self, updates, context):
        total = torch.zeros(updates.worker.dimension, dtype=torch.float64)
        for update in self.raw(updates).values():
            for half in update.chunk(2):
                half *= min(1.0, CLIP * context.channel.clip_factor / float(half.norm() + 1e-300))
            total += update
        return self.noised(total, context)


class TooQuiet(Lie):
    def mean(self, updates, context):
        std = 0.9 * self.noise_multiplier * context.channel.noise_factor * CLIP * context.channel.clip_factor
        return self.noised(self.clipped(updates, context), context, std=std)


class OfNoStream(Lie):
    def mean(self, updates, context):
        return self.noised(self.clipped(updates, context), context, rng=np.random.default_rng(5))


class OfTheMachine(Lie):
    def mean(self, updates, context):
        return self.noised(self.clipped(updates, context), context, rng=np.random.default_rng())


class Uniform(Lie):
    def mean(self, updates, context):
        total = self.clipped(updates, context)
        std = self.noise_multiplier * context.channel.noise_factor * CLIP * context.channel.clip_factor
        noise = (context.noise(EVERYONE).random(len(total)) - 0.5) * np.sqrt(12)
        return ReleaseValues({EVERYONE: ((total + std * torch.from_numpy(noise)) / context.sampler.expected).float()})


class HalfOfIt(Lie):
    """The second half of the vector has the noise of the first."""

    def mean(self, updates, context):
        total = self.clipped(updates, context)
        std = self.noise_multiplier * context.channel.noise_factor * CLIP * context.channel.clip_factor
        noise = np.tile(context.noise(EVERYONE).standard_normal(len(total) // 2), 2)
        return ReleaseValues({EVERYONE: ((total + std * torch.from_numpy(noise)) / context.sampler.expected).float()})


class KnowsData(Lie):
    def mean(self, updates, context):
        total = self.clipped(updates, context)
        std = self.noise_multiplier * context.channel.noise_factor * CLIP * context.channel.clip_factor
        return self.noised(total, context, std=std * (1 + float(total.norm())))


class Curious(Honest):
    def claim_mean(self, updates, context):
        list(updates.train_members())
        return super().claim_mean(updates, context)


class Boasts(Honest):
    def claim_mean(self, updates, context):
        first, last = super().claim_mean(updates, context)
        return first, replace(last, event=context.sampler.hidden_event(Gaussian(1.1 * self.noise_multiplier)))


class ForOne(Honest):
    def claim_mean(self, updates, context):
        first, last = super().claim_mean(updates, context)
        return first, replace(last, subjects=frozenset({"client-0"}))


class Secret(Honest):
    def claim_mean(self, updates, context):
        first, last = super().claim_mean(updates, context)
        return first, replace(last, audience=frozenset({SERVER}))


class Quiet(Honest):
    """Does not say that the server was handed everything."""

    def claim_mean(self, updates, context):
        return super().claim_mean(updates, context)[1:]


class Rootless(Honest):
    def claim_mean(self, updates, context):
        first, last = super().claim_mean(updates, context)
        return first, replace(last, inputs=())


class Stingy(Honest):
    def with_noise(self, multipliers):
        return replace(self, noise_multiplier=min(multipliers.values()))


class Miscalibrated(Honest):
    def scaled(self, event, noise):
        return super().scaled(event, noise**2)


class OfTheDrawn(Honest):
    """Divides by who came, so that the noise tells how many."""

    def mean(self, updates, context):
        outcome = super().mean(updates, context)
        scale = context.sampler.expected / max(1, len(updates.cohort.members))
        return ReleaseValues({EVERYONE: outcome.values[EVERYONE] * scale})


class Tells(Honest):
    """Claims sampling, and names the cohort."""

    def claim_mean(self, updates, context):
        first, last = super().claim_mean(updates, context)
        return first, replace(last, subjects=frozenset(f"client-{n}" for n in updates.cohort.members))


class Poisoned(Lie):
    """An infinite update passes."""

    def mean(self, updates, context):
        radius, total = CLIP * context.channel.clip_factor, torch.zeros(updates.worker.dimension, dtype=torch.float64)
        for update in self.raw(updates).values():
            total += update * min(1.0, radius / float(update.norm() + 1e-300))
        return self.noised(total, context)


class Peeks(LocalMean):
    """Calls the plain mean post-processing of what was sent."""

    def mean(self, updates, context):
        self.compute_each(updates, context)
        return ReleaseValues({EVERYONE: torch.stack([update for _, update in updates.train_members()]).mean(0)})


class Forgets(LocalMean):
    def claim_mean(self, updates, context):
        *sent, mean = super().claim_mean(updates, context)
        return *sent, replace(mean, inputs=(1,))


class OneNoiseForAll(LocalMean):
    def client_outputs(self, updates, context):
        return super().client_outputs(updates, replace(context, noise=lambda who: context.noise(EVERYONE)))


class HidesMessages(LocalMean):
    """Claims that sampling hides who sent a message."""

    def claim_mean(self, updates, context):
        *sent, mean = super().claim_mean(updates, context)
        return *(replace(one, event=context.sampler.hidden_event(one.event)) for one in sent), mean


class Misplaced(LocalMean):
    noised_by = CentralMean.noised_by


LIES = {
    Unclipped: "the noise matches the claim",
    ClippedInTwo: "the noise matches the claim",
    TooQuiet: "the noise matches the claim",
    OfNoStream: "the noise matches the claim",
    Uniform: "the noise matches the claim",
    Boasts: "the noise matches the claim",
    OfTheMachine: "the same random streams give the same result",
    HalfOfIt: "every release has independent noise",
    OneNoiseForAll: "every release has independent noise",
    KnowsData: "the noise does not depend on the data",
    Curious: "claims are made before updates are computed",
    ForOne: "every client that affects a release is among its subjects",
    Secret: "every party that sees a value is in its audience",
    Quiet: "every hand-over to a trusted party is claimed",
    Rootless: "a claim names the unit, the adjacency and the inputs of its value",
    Stingy: "every client gets the noise that it needs",
    Miscalibrated: "the claimed event scales with the calibrated noise",
    OfTheDrawn: "the noise does not depend on the drawn cohort",
    Tells: "claims do not depend on the drawn cohort",
    Poisoned: "an update that is not finite counts as zero",
    Peeks: "post-processing uses only what members sent",
    Forgets: "post-processing lists its inputs",
    HidesMessages: "claims do not depend on the drawn cohort",
    Misplaced: "the party that adds the noise claims it",
}


def test_the_honest_one_passes():
    check(Honest(CLIP, 1.0))


@pytest.mark.parametrize("kind", LIES, ids=lambda kind: kind.__name__)
def test_every_lie_of_a_mechanism_is_seen_and_its_law_is_named(kind):
    with pytest.raises(BrokenLaw) as raised:
        check(kind(CLIP, 1.0))
    assert f'breaks the law "{LIES[kind]}"' in str(raised.value)


@dataclass(frozen=True)
class Counted(CentralMean):
    """A mean and a count of the clipped, each with half of 1 / z^2; and how the count lies."""

    lie: str = ""

    def __post_init__(self):
        object.__setattr__(self, "noise_event", lambda z: Product((Gaussian(z * 2**0.5), Gaussian(z * 2**0.5))))

    @property
    def facts(self):
        return replace(super().facts, numbers=("clipped",))

    def claim_mean(self, updates, context):
        first, last = super().claim_mean(updates, context)
        louder = self.lie == "follows" and context.numbers.get("clipped", 0) > 0
        return first, replace(last, event=Gaussian(99.0)) if louder else last

    def mean(self, updates, context):
        lengths, rng = [float(update.norm()) for _, update in updates.train_members()], context.noise(EVERYONE)
        z = self.noise_multiplier * context.channel.noise_factor * 2**0.5
        value = CentralMean(self.clip_norm, self.noise_multiplier * 2**0.5).mean(updates, context)
        count = sum(self.clip_norm * context.channel.clip_factor < one < math.inf for one in lengths)
        # The first normal numbers are those of the mean.
        noise = rng.standard_normal(updates.worker.dimension + 1)[0 if self.lie == "shares" else -1]
        scale = {"none": 0.0, "less": 0.4, "knows": 1.0 + 3 * (count > 1)}.get(self.lie, 1.0)
        twice = 2.0 if self.lie == "later" and context.numbers else 1.0
        count = twice * count + scale * z * noise * (2.0 if context.adjacency is Adjacency.REPLACE else 1.0)
        if self.lie == "passes" and not all(map(math.isfinite, lengths)):
            count = math.nan
        numbers = {"other" if self.lie == "unnamed" else "clipped": count}
        return replace(value, numbers=numbers)


COUNTS = {
    "none": "the noise matches the claim",
    "less": "the noise matches the claim",
    "later": "the noise matches the claim",
    "knows": "the noise does not depend on the data",
    "shares": "every release has independent noise",
    "follows": "claims do not follow released values",
    "unnamed": "a release returns exactly the numbers that the mechanism names",
    "passes": "an update that is not finite counts as zero",
}


@pytest.mark.parametrize("adjacency", Adjacency)
def test_an_honest_count_passes(adjacency):
    check(Counted(CLIP, 1.0), adjacency=adjacency)


@pytest.mark.parametrize("lie", COUNTS)
def test_every_lie_about_a_count_is_seen(lie):
    with pytest.raises(BrokenLaw) as raised:
        check(Counted(CLIP, 1.0, lie=lie))
    assert f'breaks the law "{COUNTS[lie]}"' in str(raised.value)


@dataclass(frozen=True)
class Laplace(LocalMean):
    """Clipped by the sum of absolute values, with Laplace noise: pure epsilon 1 / z."""

    truth: float = 1.0
    facts = MechanismFacts(NoisedValue.UPDATE)

    def __post_init__(self):
        object.__setattr__(self, "noise_event", lambda z: Pure(1 / z))

    def scaled(self, event, noise):
        return Pure(event.epsilon / noise)

    def client_outputs(self, updates, context):
        for member, update in updates.train_members():
            update = torch.nan_to_num(update.double(), 0, 0, 0)
            update *= min(1.0, CLIP / float(update.abs().sum() + 1e-300))
            noise = context.noise(member).laplace(scale=self.truth * CLIP * self.noise_multiplier, size=len(update))
            yield ClientOutput(member, (update + torch.from_numpy(noise)).float())


@pytest.mark.slow
def test_noise_that_is_not_gaussian_is_drawn():
    check(Laplace(CLIP, 1.0))


def test_less_noise_that_is_not_gaussian_is_seen_by_drawing():
    with pytest.raises(BrokenLaw, match=r"the noise matches the claim.*samples show more"):
        check(Laplace(CLIP, 1.0, truth=0.25))


@dataclass(frozen=True)
class Drawn(PoissonCohorts):
    how: str = ""

    def draw(self, time, rng, schedules, *, line=0):
        n, rates = self.population, np.full(self.population, self.rate)
        if self.how == "some more often":
            rates[3] *= 1.5
        drawn = {
            "some more often": lambda: rng.random(n) < rates,
            "all more often": lambda: rng.random(n) < 1.1 * rates,
            "of fixed size": lambda: rng.permutation(n) < self.rate * n,
            "in pairs": lambda: np.repeat(rng.random(n // 2) < self.rate, 2),
            "in turns": lambda: (np.arange(n) + time) % round(1 / self.rate) == 0,
            "for two rounds": lambda: np.random.default_rng([time // 2]).random(n) < self.rate,
            "by the round alone": lambda: np.random.default_rng([time]).random(n) < self.rate,
            "by the machine": lambda: np.random.default_rng().random(n) < self.rate,
        }[self.how]()
        return tuple(int(place) for place in np.flatnonzero(drawn))


SAMPLED = {
    "some more often": "no member is drawn more often than claimed",
    "all more often": "no member is drawn more often than claimed",
    "of fixed size": "members are drawn independently",
    "in pairs": "members are drawn independently",
    "in turns": "members are drawn independently",
    "for two rounds": "rounds are drawn independently",
    "by the round alone": "cohorts are drawn with the random streams",
    "by the machine": "the same random streams give the same result",
}


@pytest.mark.parametrize("how", SAMPLED)
def test_every_lie_of_a_sampler_is_seen_and_its_law_is_named(how):
    with pytest.raises(BrokenLaw, match=f'breaks the law "{SAMPLED[how]}"'):
        check_sampler_laws(Drawn(10, 0.2, how), Adjacency.ADD_REMOVE)


@pytest.mark.parametrize(
    ("sampler", "law"),
    [
        (Drawn(10, 0.2, "all more often"), "Poisson sampling is claimed under add/remove adjacency only"),
        (FixedCohorts(20, 5, Adjacency.REPLACE), "claims are of a kind that can be checked"),
    ],
)
def test_claims_that_cannot_be_checked_are_refused(sampler, law):
    with pytest.raises(BrokenLaw, match=f'breaks the law "{law}"'):
        check_sampler_laws(sampler, Adjacency.REPLACE)


@pytest.mark.parametrize(
    "sampler",
    [
        Full(20),
        PoissonCohorts(20, 0.3),
        PoissonCohorts(1, 0.5),
        PoissonCohorts(500, 0.01),
        PoissonCohorts(100_000, 0.1),
    ],
    ids=str,
)
def test_built_in_samplers_keep_the_laws(sampler):
    check_sampler_laws(sampler, Adjacency.ADD_REMOVE)


def test_a_sampler_says_how_large_its_cohorts_are():
    @dataclass(frozen=True)
    class Larger(PoissonCohorts):
        @property
        def expected(self):
            return 1.2 * self.rate * self.population

    with pytest.raises(BrokenLaw, match="cohorts have the expected size"):
        check_sampler_laws(Larger(50, 0.2), Adjacency.ADD_REMOVE)


STAR = Star(6, True)
SEEN = {"clients": "client-0", "public": "public", "server": SERVER, "edge": "edge"}


@pytest.mark.parametrize(
    ("changed", "law"),
    [
        ({"observers": {"strangers": "stranger"}}, "client-0 sees server, but no line of sight covers that"),
        (
            {"lines": {"all": (Line("public", frozenset({"client-2"})),)}},
            "client-0 sees client-2, which every such line exempts",
        ),
        ({"lines": {}}, "it must have lines of sight"),
        ({"steady": False}, "stay the same for the whole run"),
        ({"channels": (replace(STAR.top, members=(0, 1, 2)),)}, 'like = "star" needs'),
        ({"channels": (replace(STAR.top, members=(0, 0, 1)),)}, "clients, each listed once"),
        ({"channels": (replace(STAR.top, members=(0, 9)),)}, "clients, each listed once"),
        ({"channels": (replace(STAR.top, name="client-1"),), "trusted": ()}, "client-1 gathers from itself"),
        (
            {"channels": (replace(STAR.top, audience=STAR.top.audience - {SERVER}),)},
            "server .* must be in its audience",
        ),
        ({"channels": (replace(STAR.top, name="public"),), "trusted": ()}, "public is an outsider"),
        ({"channels": (STAR.top, replace(STAR.top, members=(0, 1)))}, "two channels named server"),
        ({"channels": (STAR.top, replace(STAR.top, audience=frozenset({SERVER, "spy"})))}, "spy sees server"),
        ({"channels": (replace(STAR.top, audience=STAR.top.audience | {"client-6"}),)}, "client-6 is not one of its 6"),
        ({"channels": (replace(STAR.top, trusted=True),), "trusted": ()}, "server receives un-noised updates"),
        ({"channels": (replace(STAR.top, through=frozenset({"relay"})),)}, "relay receives un-noised updates"),
        ({"trusted": (SERVER, "client-3")}, "it trusts client-3, which receives nothing"),
        ({"uplinks": (("relay",),)}, "relay forwards what was gathered but is in no audience"),
        (
            {
                "gathering_channels": (Channel("edge", tuple(range(6)), frozenset({"edge"})),),
                "trusted": (),
                "observers": SEEN,
            },
            "server receives what",
        ),
        (
            {"observers": STAR.observers | {"links": "link"}},
            "link of 'links' is in no audience: its epsilon would be 0",
        ),
        (
            {"observers": {"public": "public", "clients": "client-0"}, "lines": STAR.lines},
            "every kind of observer must",
        ),
        ({"channels": (replace(STAR.top, noise_factor=0.0),)}, "must be positive"),
        ({"channels": (replace(STAR.top, noise_factor=0.5),)}, 'like = "star" needs'),
    ],
)
def test_every_lie_of_a_topology_is_seen(changed, law):
    class Other(Star):
        pass

    for name, value in changed.items():
        setattr(Other, name, property(lambda self, value=value: value))
    with pytest.raises(Refused, match=law):
        check_shape("mine", Other(6, True), clients=6, place="server", like="star")


@dataclass(frozen=True)
class Linked(Star):
    """A star whose server is called a link and does not say that it sees what clients send it to publish."""

    @property
    def channels(self):
        (top,) = super().channels
        return (replace(top, name="link", audience=top.audience - {SERVER}),)

    @property
    def observers(self):
        return {"links": "link", "public": "public", "other clients": "client-0"}


def test_whoever_gathers_is_not_charged_nothing(monkeypatch, tmp_path):
    """The attack: clients publish models of their own through the link, and the run printed "against links 0"."""
    module = ModuleType("linked_topology")
    module.LINKED = TopologyPlugin(lambda settings, *, clients, **how: Linked(clients, False), like="star")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    file = make_file({"unit": "client", "where": "client"}, kind="linked_topology:LINKED", algorithm={"name": "local"})
    with pytest.raises(Refused, match="link sees what it publishes, so it must be in its audience"):
        sightline.run(parse(file), out=tmp_path / "run", progress=False)


def test_nobody_is_trusted_where_clients_add_the_noise():
    with pytest.raises(Refused, match='where = "client" allows no trusted party, but it trusts server'):
        check_shape("mine", STAR, clients=6, place="client", like="star")


@pytest.mark.parametrize(
    ("kind", "place", "settings"),
    [
        ("star", "server", {}),
        ("star", "client", {}),
        ("tree", "edge", {"subnets": 2, "trusted": ["edge-0"]}),
        ("tree", "server", {"subnets": 3, "trusted": 1.0}),
        ("groups", "server", {"structure": "ring", "groups": 3}),
        ("groups", "client", {"structure": "string", "groups": 2}),
    ],
)
def test_built_in_topologies_keep_the_laws(kind, place, settings):
    built = topology.build_topology(kind, settings, clients=6, place=place)
    check_shape(kind, built, clients=6, place=place)


def setting_of(algorithm, **words):
    file = plain(Combination(**words))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(algorithms.REGISTRY, "fedavg", algorithm)
        return engine.build_experiment(parse(file))


FEDAVG = algorithms.REGISTRY["fedavg"]


def launders(state, r, settings):
    step = r.release_mean(r.train(r.sample(), state["model"]))
    return {"model": Public(state["model"].value + step.value)}


def starts_from_nothing(state, r, settings):
    step = r.release_mean(r.train(r.sample(), Public(state["model"].value)))
    return {"model": state["model"] + step}


def forgets_the_last(state, r, settings):
    step = r.release_mean(r.train(r.sample(), state["model"]))
    return {"model": Public((state["model"] + step).value, state["model"].sources)}


REMEMBERED = []


def remembers_by_itself(state, r, settings):
    REMEMBERED.append(r.time)
    step = r.release_mean(r.train(r.sample(), state["model"]))
    return {"model": state["model"] + len(REMEMBERED) * step}


def of_tensors(state, r, settings):
    return {"model": r.release_mean(r.train(r.sample(), state["model"])).value}


@pytest.mark.parametrize(
    ("round_", "law"),
    [
        (launders, "values computed from releases keep their sources.*state 'model'"),
        (starts_from_nothing, "values computed from releases keep their sources.*the start of release call 2"),
        (forgets_the_last, "values computed from releases keep their sources"),
        (remembers_by_itself, "the same releases give the same state"),
        (of_tensors, "a state maps names to public values"),
    ],
)
def test_every_lie_of_an_algorithm_is_seen_and_its_law_is_named(round_, law):
    with pytest.raises(BrokenLaw, match=law):
        check_sources(setting_of(replace(FEDAVG, round=round_)))


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"algorithm": "scaffold"},
        {"algorithm": "fedyogi"},
        {"algorithm": "dp_ogl", "topology": "groups"},
        {"algorithm": "h2fdp", "topology": "tree", "where": "edge"},
        {"algorithm": "ifca", "topology": "clusters", "where": "client"},
        {"algorithm": "pfedme", "where": "client"},
    ],
    ids=str,
)
def test_built_in_algorithms_keep_the_law(words):
    check_sources(engine.build_experiment(parse(plain(Combination(**words)))))


def test_a_mechanism_that_breaks_a_law_is_refused_before_its_first_use(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "too_quiet.py").write_text(
        "from tests.plugins.test_plugin_laws import TooQuiet\n"
        "from sightline.mechanisms import MechanismPlugin\n"
        "OWN = MechanismPlugin(lambda experiment, sizes, classes: TooQuiet(experiment.privacy.clip_norm, 1.0))\n"
    )
    file = plain(Combination())
    file["privacy"]["mechanism"] = "too_quiet:OWN"
    with pytest.raises(Refused) as raised:
        engine.build_experiment(parse(file))
    line = str(raised.value)
    assert line.startswith(
        'privacy.mechanism=too_quiet:OWN: breaks the law "the noise matches the claim": noise multiplier 2.1 is'
    )
    assert line.endswith("sightline.testing.check_mechanism gives its author details")
    assert not (tmp_path / "runs").exists()


def test_laws_are_asked_once_for_each_source_and_setting(tmp_path, monkeypatch, example):
    from sightline.laws import plugins

    asked = []
    monkeypatch.setattr(plugins, "_passed", set())
    monkeypatch.setattr(plugins, "check_plugin_laws", lambda *a: asked.append(a))
    file = plain(Combination(where="client"))
    file["privacy"]["mechanism"] = "sightline_example.median:MECHANISM"
    for _ in range(2):
        engine.build_experiment(parse(file))
    assert len(asked) == 1
    file["privacy"]["clip_norm"] = 2.0
    engine.build_experiment(parse(file))
    assert len(asked) == 2
    monkeypatch.setattr("sightline.plugins.Plugin.source_digest", "another")
    engine.build_experiment(parse(file))
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("key", "source", "line"),
    [
        (
            "algorithm.name",
            "from dataclasses import replace\nfrom tests.plugins.test_plugin_laws import FEDAVG, launders\n"
            "OWN = replace(FEDAVG, round=launders)\n",
            'breaks the law "values computed from releases keep their sources"',
        ),
        (
            "sampling.clients.scheme",
            "from tests.plugins.test_plugin_laws import Drawn\n"
            "def OWN(settings, population, adjacency, cohorts):\n    return Drawn(population, 0.5, 'in pairs')\n",
            'breaks the law "members are drawn independently"',
        ),
        (
            "sampling.clients.scheme",
            "def OWN(settings, population, adjacency, cohorts):\n    return 1 / 0\n",
            'breaks the law "runs without an exception": ZeroDivisionError',
        ),
        (
            "topology.kind",
            "from sightline.topology import Star, TopologyPlugin\nclass Blind(Star):\n    observers = {}\n"
            "OWN = TopologyPlugin(lambda settings, *, clients, place, **_: Blind(clients, True), like='star')\n",
            "breaks a law of topologies: it must have lines of sight",
        ),
    ],
)  # fmt: skip
def test_nothing_that_breaks_a_law_gets_as_far_as_a_run(key, source, line, tmp_path, monkeypatch):
    import sys

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "brought_lie", raising=False)
    (tmp_path / "brought_lie.py").write_text(source)
    file = plain(Combination())
    section, _, word = key.rpartition(".")
    table = file["sampling"]["clients"] if section == "sampling.clients" else file[section]
    table[word] = "brought_lie:OWN"
    with pytest.raises(Refused) as raised:
        engine.calibrate_noise(engine.build_experiment(parse(file)))
    assert line in str(raised.value)
    assert str(raised.value).startswith(f"{key}=brought_lie:OWN")
