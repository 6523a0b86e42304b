"""The product of the registries on a tiny problem: what each combination asks for, and what becomes of it."""

import random
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields, replace
from functools import cache, partial
from itertools import combinations, product
from pathlib import Path
from typing import Any, get_args

from sightline import algorithms, data, engine, topology
from sightline.config import Privacy, SampleSampler, parse
from sightline.data import Federation
from sightline.engine import BuiltExperiment, plan_releases
from sightline.errors import InvalidInput
from sightline.ledger import Ledger
from sightline.mechanisms import MECHANISMS, SAMPLERS
from sightline.randomness import Streams
from sightline.runtimes import Simulator

PAGE = Path(__file__).parents[2] / "docs" / "combinations.md"
ROUNDS = 4
DELTA = 0.01
"""Large enough to be checked by drawing."""


def choices(model: Any, field: str) -> tuple[str, ...]:
    """The words that a field of the experiment file may be."""
    annotation = model.model_fields[field].annotation
    inside = [word for kind in get_args(annotation) for word in (get_args(kind) or (kind,))]
    return tuple(word for word in inside if isinstance(word, str))


@dataclass(frozen=True, order=True)
class Combination:
    """One of each kind."""

    topology: str = "star"
    algorithm: str = "fedavg"
    clients: str = "full"
    unit: str = "client"
    mechanism: str = "gaussian"
    where: str = "server"
    samples: str = "shuffle"
    adjacency: str = "add_remove"
    noise: str = "independent"
    upcycle: str = "no"
    split: str = "no"

    @property
    def mode(self) -> tuple[str, ...]:
        """What is promised, as far as a file alone says whether it can be."""
        return (self.clients, self.unit, self.mechanism, self.where, self.samples, self.adjacency, self.noise)


DIMENSIONS: dict[str, tuple[str, ...]] = {
    "topology": tuple(topology.REGISTRY),
    "algorithm": tuple(algorithms.REGISTRY),
    "clients": tuple(SAMPLERS),
    "unit": choices(Privacy, "unit"),
    "mechanism": tuple(dict.fromkeys(name for name, _, _ in MECHANISMS)),
    "where": choices(Privacy, "where"),
    "samples": tuple(scheme for scheme in choices(SampleSampler, "scheme") if scheme != "fixed"),
    "adjacency": choices(Privacy, "adjacency"),
    "noise": choices(Privacy, "noise"),
    "upcycle": ("no", "yes"),
    "split": ("no", "yes"),
}

TOPOLOGY: dict[str, dict[str, Any]] = {
    "groups": {"structure": "ring", "groups": 2, "period": 2},
    "tree": {"subnets": 2, "trusted": ["edge-0"]},
    "clusters": {"count": 2},
    "graph": {"structure": "ring"},
}
OWN: dict[tuple[str, str], dict[str, Any]] = {("tree", "pedpfl"): {"subnets": 1, "trusted": 0.0}}
CLIENTS: dict[str, dict[str, Any]] = {
    "poisson": {"rate": 0.5},
    "fixed": {"rate": 0.5},
    "balanced": {"uses": 2},
    "check_ins": {"rate": 0.5},
    "turns": {"groups": 2},
}
SAMPLES: dict[str, dict[str, Any]] = {"balanced": {"uses": 3}, "check_ins": {"rate": 0.5}}


def plain(c: Combination) -> dict[str, Any]:
    """The experiment file of a combination: small, and with what its parts cannot do without."""
    algorithm: dict[str, Any] = {"name": c.algorithm}
    if c.upcycle == "yes":
        algorithm["upcycle"] = 0.5
    if c.split == "yes":
        algorithm["split"] = {"parts": 2, "unsplit": ["last"]}
    server_steps = c.unit == "sample" and c.mechanism == "gaussian" and c.where == "server"
    own = {field.name for field in fields(algorithms.REGISTRY[c.algorithm].settings)}
    if "selection_epsilon" in own and c.unit != "none":
        algorithm["selection_epsilon"] = 0.1
    local: dict[str, Any] = {"batch_size": 4, "learning_rate": 0.1}
    if c.topology == "clusters" and not server_steps:
        local["epochs"] = 1
    else:
        local["steps"] = 1 if server_steps else 10 if "local_aggregation" in own else 2
    privacy: dict[str, Any] = {"unit": c.unit, "mechanism": c.mechanism, "where": c.where, "adjacency": c.adjacency}
    if c.unit != "none":
        privacy |= {"noise_multiplier": 1.0, "clip_norm": 0.5, "delta": DELTA}
    if c.noise == "correlated":
        privacy["noise"] = "correlated"
    if c.mechanism == "output":
        privacy["sensitivity"] = "clipped_model"
    if c.mechanism == "objective":
        local["weight_decay"] = 0.5
    return {
        "name": "combination",
        "rounds": ROUNDS,
        "evaluate_every": ROUNDS,
        "data": data_for(c),
        "model": {"name": "mlp", "hidden": [4, 4]} if c.split == "yes" else {"name": "linear"},
        "topology": topology_for(c),
        "algorithm": algorithm,
        "local": local,
        "sampling": {"clients": {"scheme": c.clients, **CLIENTS.get(c.clients, {})}} | samples_for(c),
        "privacy": privacy,
    }


def samples_for(c: Combination) -> dict[str, Any]:
    """How examples are drawn; their streams of noise are over fixed batches, where it is left out."""
    if c.unit == "sample" and c.noise == "correlated" and c.samples == "poisson":
        return {}
    return {"samples": {"scheme": c.samples, **SAMPLES.get(c.samples, {})}}


def topology_for(c: Combination) -> dict[str, Any]:
    """A tree with one trusted edge, or with nothing but trusted ones where the noise is correlated."""
    trust = {"trusted": 1.0} if c.topology == "tree" and c.noise == "correlated" else {}
    return {"kind": c.topology, **TOPOLOGY.get(c.topology, {}), **OWN.get((c.topology, c.algorithm), {}), **trust}


def data_for(c: Combination) -> dict[str, Any]:
    """Generated data of six clients; where clusters are looked for, the bundled digits in two kinds."""
    if c.topology == "clusters":
        return {"source": "digits", "clients": 6, "partition": "label_shift", "clusters": [3, 3], "train_samples": 72}
    return {"source": "synthetic", "partition": "natural", "clients": 6, "features": 5, "classes": 3, "size_min": 8,
            "size_mean": 2.0, "size_sigma": 0.3}  # fmt: skip


@cache
def federation(clusters: bool) -> Federation:
    """The tiny problem's data: the same for all, so read once."""
    c = Combination(topology="clusters" if clusters else "star")
    return data.load_federation(parse({"rounds": 1, "data": data_for(c)}).data, streams=Streams.from_seed(0))


def built(c: Combination) -> BuiltExperiment:
    """The combination, ready to run; refused with the reason when it cannot."""
    return engine.calibrate_noise(
        engine.build_experiment(parse(plain(c)), federation=federation(c.topology == "clusters"))
    )


def planned(c: Combination) -> tuple[Ledger, set[str]]:
    """The ledger that the combination will write when everybody takes part, and who is trusted."""
    setting = built(c)
    return plan_releases(setting), set(setting.topology.trusted)


@cache
def refusal(c: Combination) -> str:
    """Why a combination is refused before a run exists; empty when it can be run. No data is trained on."""
    try:
        planned(c)
    except InvalidInput as error:
        return str(error)
    return ""


def run(c: Combination, directory: Path) -> None:
    """Run it, from the file to the last checkpoint."""
    setting = built(c)
    engine.run_loop(setting, engine.new_directory(setting.experiment, directory), partial(Simulator), resume=False)


MODE = ("clients", "unit", "mechanism", "where", "samples", "adjacency", "noise")


@cache
def promises() -> dict[tuple[str, ...], str]:
    """Every mode that a file can ask for, with the reason why it is refused whatever the algorithm, or none."""
    found = {}
    for words in product(*(DIMENSIONS[name] for name in MODE)):
        try:
            parse(plain(Combination(**dict(zip(MODE, words, strict=True)))))
            found[words] = ""
        except InvalidInput as error:
            found[words] = str(error)
    return found


Pair = tuple[tuple[str, str], tuple[str, str]]


def pairs_of(c: Combination) -> set[Pair]:
    """Every two things that the combination brings together."""
    return set(combinations(zip(DIMENSIONS, astuple(c), strict=True), 2))


def all_pairs() -> list[Pair]:
    """Every two things of different kinds."""
    return [
        ((one, first), (two, second))
        for one, two in combinations(DIMENSIONS, 2)
        for first, second in product(DIMENSIONS[one], DIMENSIONS[two])
    ]


def whole(pair: Pair = (), **fixed: str) -> Iterator[Combination]:  # type: ignore[assignment]
    """Every combination that holds the pair and could be run as far as modes and topologies say."""
    fixed = dict(pair) | fixed
    modes = [mode for mode, why in promises().items() if not why and _agrees(dict(zip(MODE, mode, strict=True)), fixed)]
    homes = [home for home in _homes() if _agrees(home, fixed)]
    for home, mode, upcycle, split in product(homes, modes, DIMENSIONS["upcycle"], DIMENSIONS["split"]):
        if _agrees({"upcycle": upcycle, "split": split}, fixed):
            yield Combination(**home, **dict(zip(MODE, mode, strict=True)), upcycle=upcycle, split=split)


def _agrees(words: dict[str, str], fixed: dict[str, str]) -> bool:
    return all(fixed.get(name, word) == word for name, word in words.items())


def _homes() -> list[dict[str, str]]:
    """Every algorithm where it runs at all."""
    return [
        {"topology": place, "algorithm": name}
        for name, algorithm in algorithms.REGISTRY.items()
        for place in algorithm.facts.topologies
        if place in topology.REGISTRY
    ]


def covering(seed: int = 0, tries: int = 40) -> tuple[list[Combination], dict[Pair, str]]:
    """Combinations that run and together hold every pair that any combination holds; and the pairs that none holds.

    A few candidates for each pair, the one that settles most others first; before a pair is given up, all of them.
    """
    dice, left = random.Random(seed), dict.fromkeys(all_pairs())
    chosen, hopeless = [], {}
    while left:
        pair = next(iter(left))
        plain_rest = {key: "no" for key in ("upcycle", "split") if key not in dict(pair)}
        every = list(whole(pair))
        some = dice.sample(every, min(tries, len(every)))
        ranked = sorted(some, key=lambda c: -len(pairs_of(c) & left.keys()))
        found = next((c for c in (*ranked, *whole(pair, **plain_rest)) if not refusal(c)), None)
        if found is None:
            hopeless[pair] = reason_for(pair)
            del left[pair]
            continue
        chosen.append(found)
        for done in pairs_of(found):
            left.pop(done, None)
    return chosen, hopeless


PLAIN = (
    Combination(),
    Combination(unit="sample", where="client", samples="poisson"),
    Combination(unit="sample", where="client", mechanism="output"),
    Combination(unit="sample", where="client", mechanism="objective"),
    Combination(unit="client", where="client"),
    Combination(unit="client", where="edge", topology="tree"),
    Combination(clients="turns", noise="correlated"),
    Combination(unit="sample", where="client", samples="poisson", noise="correlated"),
    Combination(clients="turns", noise="correlated", where="edge", topology="tree"),
    Combination(unit="sample", where="edge", samples="poisson", topology="tree", algorithm="h2fdp"),
    Combination(unit="none"),
)
"""Plain files of every promise: what a reader would start from."""

KEYS = {"topology": "topology", "clients": "sampling.clients", "samples": "sampling.samples", "upcycle": "upcycle"}


def reason_for(pair: Pair, **fixed: str) -> str:
    """Why two things do not go together: of the refusals of plain files that ask for both, the one that names most."""
    asked = dict(pair) | fixed
    homes = [home for home in _homes() if home["algorithm"] == asked.get("algorithm")]
    homes.sort(key=lambda home: (home["topology"] == "tree") != (asked.get("where") == "edge"))
    tried = [replace(base, **(home | asked)) for base in PLAIN for home in (homes or [{}])]
    words = [
        word
        for name, value in asked.items()
        for word in (value, f"{KEYS.get(name, name)}={value}", KEYS.get(name, name))
    ]
    reasons = [why for why in map(refusal, tried) if why]
    return max(reasons, key=lambda why: sum(word in why for word in words)) if reasons else ""
