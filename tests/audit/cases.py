"""What is audited: every mechanism and algorithm of the registries, and every way to break them, by name."""

from dataclasses import replace
from functools import cache
from pathlib import Path

from sightline import algorithms
from sightline.apps.audit import audit
from sightline.apps.audit.audit import DROWNED
from sightline.config import parse
from sightline.mechanisms import MECHANISMS, SAMPLERS
from sightline.mechanisms.perturbation import Bound
from tests.audit import breaking
from tests.laws.combinations import Combination, plain, refusal

TRIALS = 400


def audited(
    trials=TRIALS, confidence=0.95, delta=0.05, rounds=2, canaries=400, changes=None, observer=None, subject=None,
    seed=3, runs=0, **words,
):  # fmt: skip
    """The audit of a combination, with some keys of its file changed, and those that are None left out."""
    c = Combination(**words)
    file = plain(c)
    if (c.unit, c.topology) == ("sample", "star"):
        file["data"]["clients"] = 2  # examples are trained on: fewer clients, faster audits
    for section, keys in (changes or {}).items():
        file[section] = {key: value for key, value in (file[section] | keys).items() if value is not None}
    return audit(
        parse(file), trials=trials, canaries=canaries, rounds=rounds, delta=delta, confidence=confidence, seed=seed,
        observer=observer, subject=subject, delta_of_canaries=min(delta, DROWNED / canaries), runs=runs,
    )  # fmt: skip


SAMPLE = {"unit": "sample", "where": "client", "samples": "poisson"}
SERVER = SAMPLE | {"where": "server"}
TREE = {"topology": "tree", "where": "edge"}
H2FDP = {"topology": "tree", "algorithm": "h2fdp"}
SEGMENTS = SAMPLE | H2FDP | {"where": "edge"}
GROUPS = {"topology": "groups", "algorithm": "dp_ogl"}
ONE_STEP = {"local": {"steps": 1}}
DRAWN_TURNS = {"sampling": {"clients": {"scheme": "turns", "groups": 2, "rate": 0.5}}}
DROPOUT = {"algorithm": {"split": "dropout"}, "model": {"dropout": 0.5}}


def mechanisms():
    """One file for every mechanism, sampler, bound, arithmetic and way of drawing that the registries have."""
    for mechanism, unit, where in MECHANISMS:
        if unit != "none" and mechanism == "gaussian":
            samples = "poisson" if unit == "sample" else "shuffle"
            own = (H2FDP if unit == "sample" else TREE) if where == "edge" else {}
            yield f"{unit} at {where}", {"unit": unit, "where": where, "samples": samples, **own}
    for scheme in SAMPLERS:
        yield f"clients {scheme}", {"clients": scheme}
        if scheme in ("full", "fixed"):
            yield f"clients {scheme}, replaced", {"clients": scheme, "adjacency": "replace"}
    stream = {"clients": "turns", "noise": "correlated", "rounds": 4}
    yield "correlated noise", stream
    yield "correlated noise, replaced", stream | {"adjacency": "replace"}
    yield "correlated noise, drawn turns", stream | {"changes": DRAWN_TURNS}
    yield "correlated noise at edge", stream | TREE
    yield "correlated noise in groups", stream | GROUPS
    for scheme in ("full", "balanced", "check_ins"):
        yield f"examples {scheme}", SAMPLE | {"samples": scheme}
        yield f"examples {scheme} at server", SERVER | {"samples": scheme}
    yield "examples full in segments", SEGMENTS | {"samples": "full"}
    for bound in Bound:
        mean = bound is Bound.PER_SAMPLE_MEAN
        more = {"privacy": {"sensitivity": str(bound)}, "local": {"weight_decay": 0.0 if mean else 0.5, "steps": 1}}
        own = {"unit": "sample", "where": "client", "samples": "full" if mean else "shuffle"}
        yield f"output, {bound}", own | {"mechanism": "output", "changes": more}
    yield "objective", {"unit": "sample", "where": "client", "mechanism": "objective"}
    yield "adaptive clipping", {"changes": {"privacy": {"adaptive_clipping": {"learning_rate": 0.5}}}}
    for place, more in {"server": {}, "client": {"where": "client"}, "edge": TREE}.items():
        yield f"integers at {place}", more | {"changes": {"privacy": {"arithmetic": "integer"}}}
        yield f"parts at {place}", more | {"split": "yes"}
    yield "parts, dropout", {"split": "yes", "changes": DROPOUT}
    yield "parts of examples at client", SAMPLE | {"samples": "full", "split": "yes", "changes": ONE_STEP}
    yield "parts of examples at server", SERVER | {"split": "yes"}
    yield "parts of examples, balanced", SAMPLE | {"samples": "balanced", "split": "yes"}
    yield "parts of examples, dropout", SERVER | {"samples": "full", "split": "yes", "changes": DROPOUT}


def views():
    """Whose view it is: edges, the cloud, devices and the public of a tree; workers in and out of a group."""
    for name, more in {"edge": TREE, "segments": SEGMENTS | {"samples": "full"}}.items():
        for observer in ("edge-1", "cloud", "public", "client-0"):
            yield f"{name}: {observer}", more | {"observer": observer}
    for name, more in OUTSIDE.items():
        yield f"outside: {name}", more


def outside(topology, algorithm="dp_ogl", rounds=2, period=1):
    """Workers in two or three groups; the last worker is outside the groups of the first, and asks about it."""
    file = Path(__file__).with_name(f"{topology}.json")
    groups = {"file": str(file), "period": period, "structure": None, "groups": None}
    factors = [10.0**-place for place in range(2 if topology == "two_groups" else 3)]
    clients = 6 if topology == "two_groups" else 8
    changes = {"topology": groups | {"clip_factors": factors}, "data": {"clients": clients}}
    return {
        "topology": "groups", "algorithm": algorithm, "rounds": rounds, "subject": "client-0", "changes": changes,
        "observer": f"client-{clients - 1}", "delta": 0.1, "trials": 1000,
    }  # fmt: skip


OUTSIDE = {
    "dp_ogl": outside("two_groups"),
    "dp_ogl, three rounds": outside("two_groups", rounds=3),
    "dp_ogl, two groups away": outside("three_groups", rounds=4),
    "dp_ogl_plus": outside("two_groups", "dp_ogl_plus", rounds=4, period=2),
}

HONEST = dict(mechanisms()) | dict(views())

PROMISES = {
    "client at server": {},
    "client at client": {"where": "client"},
    "client at edge": {"where": "edge"},
    "sample at client": SAMPLE,
    "sample at server": SERVER,
    "sample at edge": SAMPLE | {"where": "edge"},
}


def home(algorithm, promise):
    """The combination of an algorithm with a promise where it runs, or None with the reason why it is refused."""
    why = ""
    for place in algorithms.REGISTRY[algorithm].facts.topologies:
        c = replace(Combination(**PROMISES[promise]), topology=place, algorithm=algorithm)
        why = refusal(c)
        if not why:
            return {"topology": place, "algorithm": algorithm, **PROMISES[promise]}, ""
    return None, why


@cache
def registry():
    """(algorithm, promise) -> its file; what is refused is not there."""
    asked = {(a, p): home(a, p)[0] for a in algorithms.REGISTRY for p in PROMISES}
    return {key: words for key, words in asked.items() if words is not None}


QUIET = {"privacy": {"noise_multiplier": 2.0}}
RARELY = {"sampling": {"clients": {"scheme": "poisson", "rate": 0.05}}}
SELDOM = {"local": {"batch_size": 1, "steps": 1}}
ONCE = {"sampling": {"clients": {"scheme": "balanced", "uses": 1}}}
FULL = {"samples": "full", "changes": QUIET | ONE_STEP}
ANOTHER = "client: another group's worker"
KINDS = {
    "client: central": {"changes": QUIET},
    "client: local": {"where": "client", "changes": QUIET},
    "client: edge": TREE | {"changes": QUIET},
    "client: group": GROUPS | {"changes": QUIET},
    ANOTHER: outside("two_groups"),
    "client: balanced": {"clients": "balanced", "rounds": 4},
    "client: parts": {"split": "yes", "rounds": 4, "changes": QUIET},
    "client: integers": {"changes": {"privacy": {"arithmetic": "integer", "noise_multiplier": 2.0}}},
    "sample: local": SAMPLE | FULL,
    "sample: central": SERVER | FULL,
    "sample: edge": SEGMENTS | {"samples": "full", "observer": "edge-1", "changes": QUIET},
    "sample: balanced": SAMPLE | {"samples": "balanced", "rounds": 4, "changes": QUIET | ONE_STEP},
    "sample: parts": SERVER | {"samples": "full", "split": "yes", "rounds": 4, "changes": QUIET},
}
SAMPLED = {
    "client: central": {"clients": "poisson", "changes": RARELY},
    "client: edge": TREE | {"clients": "poisson", "subject": "client-0", "observer": "cloud", "changes": RARELY},
    "client: group": GROUPS | {"clients": "poisson", "changes": RARELY},
    ANOTHER: outside("two_groups") | {"clients": "poisson"},
    "client: balanced": {"clients": "balanced", "rounds": 4, "changes": ONCE},
    "client: parts": {"split": "yes", "clients": "poisson", "changes": RARELY},
    "client: integers": {"clients": "poisson", "changes": RARELY | {"privacy": {"arithmetic": "integer"}}},
    "sample: local": SAMPLE | {"changes": SELDOM},
    "sample: central": SERVER | {"changes": SELDOM},
    "sample: edge": SEGMENTS | {"observer": "edge-1", "changes": SELDOM | {"algorithm": {"local_aggregation": 1}}},
    "sample: balanced": SAMPLE
    | {"samples": "balanced", "rounds": 4, "changes": ONE_STEP | {"sampling": {"samples": {"scheme": "balanced", "uses": 1}}}},
    "sample: parts": SAMPLE | {"split": "yes", "changes": SELDOM},
}  # fmt: skip
HIDDEN = {
    "client: parts": {"split": "yes", "rounds": 4, "changes": {"algorithm": {"split": {"parts": 4, "unsplit_noise": 50.0}}}},
    "sample: parts": SERVER | {"samples": "full", "split": "yes", "rounds": 4,
                               "changes": {"algorithm": {"split": {"parts": 4, "unsplit_noise": 50.0}}}},
}  # fmt: skip
BREAKS = {
    "half the noise": (breaking.halved, KINDS),
    "one seed for all rounds": (breaking.same_noise_every_round, {k: v for k, v in KINDS.items() if k != ANOTHER}),
    "unclipped": (breaking.unclipped, KINDS),
    "wrong sampler": (breaking.everybody_is_sampled, SAMPLED),
    "one part for all": (breaking.one_part_for_all, HIDDEN),
    "one seed for all members": (
        breaking.same_noise_for_everybody,
        {"client: local": {"where": "client"}, "client: edge": TREE | {"observer": "edge-1"}},
    ),
}
LARGE = ("unclipped", "one seed for all rounds", "one seed for all members")
"""Breaks that a hundred runs show."""
REASONS = {
    ("wrong sampler", "client: local"): "claims nothing of who takes part",
    ("one seed for all rounds", ANOTHER): "not attacked: it sees sums over rounds, in which equal noises do not cancel",
}
"""Where a break is no break."""


def runs_of(words, *, fine=False):
    """How many runs of each world: examples cost more; a break that is small needs more."""
    sample = words.get("unit") == "sample"
    return (600 if sample else 1000) if fine else (100 if sample else TRIALS)


BROKEN = {
    (how, kind): (breaks, {"delta": 0.1, "trials": runs_of(words, fine=how not in LARGE), "canaries": 10} | words)
    for how, (breaks, kinds) in BREAKS.items()
    for kind, words in kinds.items()
}
