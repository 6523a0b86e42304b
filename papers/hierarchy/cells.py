"""Every run of the reproduction as one cell: what is run, and under which key its result is kept."""

from dataclasses import dataclass, field
from typing import Any

from papers.published import h2fdp_noise

DEVICES, SUBNETS, TAU, EVERY = 50, 10, 20, 5
PER_DEVICE = {"fashion_mnist": 1200, "cifar10": 1000}
SHORT, LONG = 40, 200
"""Intervals: of most runs, and the paper's."""
PATH = 32.0
"""Learning rate x intervals: what the noise of a convex path depends on, however many steps it is cut into."""
BATCH = {SHORT: 100, LONG: 20}
"""Examples of a step: as many as the learning rate needs to stay a contraction."""
CONTROL = {"energy": 3, "delay": 3, "accuracy": 1, "tau_max": 40}
CLIPPED_RATE = 0.4
"""Of clipped steps of single examples."""
SINGLE_RATE, SINGLE_BATCH = 6.0, 40
"""Of clipped steps that are each released: the learning rate, the best of 1.5, 3 and 6 on seed 100 at p_c = 1, and
the examples of a step."""
CNN_RATE = 1.5
"""Of a convolutional network's clipped steps, of the same number of examples."""
CNN_PLAIN_RATE = 0.3
"""The same network's without privacy, the better of .1 and .3 on seed 100: unclipped steps diverge at 1.5."""
CNN_INTERVALS = {"fashion_mnist": 20, "cifar10": 10}
NOTHING = 1e6
"""An epsilon at which the noise is negligible."""


@dataclass(frozen=True)
class Cell:
    """One run."""

    figure: str
    name: str
    data: str
    seed: int
    plain: dict[str, Any] = field(compare=False, repr=False)
    facts: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """What the page needs to know of it: p_c, epsilon, sizes, weights."""

    @property
    def key(self) -> str:
        """The name of its result."""
        return "/".join((self.figure, self.data, self.name, str(self.seed)))


def experiment(
    data: str,
    *,
    seed: int,
    share: float = 0.5,
    epsilon: float = 1.0,
    subnets: int = SUBNETS,
    size: int = DEVICES // SUBNETS,
    intervals: int = SHORT,
) -> dict[str, Any]:
    """The experiment file of a cell as a dictionary: convex segments, noise where trust ends."""
    return {
        "name": "hierarchy",
        "rounds": intervals,
        "seed": seed,
        "evaluate_every": intervals // 20,
        "data": {
            "source": "papers.hierarchy.features:deal_features",
            "clients": subnets * size,
            "partition": "natural",
            "classes": 10,
            "options": {"data": data, "examples": PER_DEVICE[data]},
        },
        "model": {"name": "linear"},
        "topology": {"kind": "tree", "subnets": subnets, "trusted": trust_edges(subnets, share)},
        "algorithm": {"name": "h2fdp", "local_aggregation": EVERY, "schedule": "constant"},
        "local": {"steps": TAU, "batch_size": BATCH[intervals], "learning_rate": PATH / intervals},
        "privacy": {"unit": "sample", "where": "edge", "sensitivity": "convex", "epsilon": epsilon, "delta": 1e-5},
        "resources": {"model": "wireless"},
    }


def trust_edges(subnets: int, share: float) -> list[str]:
    """That share of the edges by name: a draw by probability would differ between configurations."""
    return [f"edge-{number}" for number in range(round(share * subnets))]


def drop_privacy(plain: dict[str, Any]) -> dict[str, Any]:
    """Hierarchical averaging without privacy, the same steps: the upper bound."""
    return plain | {"privacy": {"unit": "none"}, "algorithm": plain["algorithm"] | {"name": "hfl"}}


def clip_steps(plain: dict[str, Any], epsilon: float) -> dict[str, Any]:
    """Steps of single examples that are clipped, with the guarantee for any model."""
    privacy = {"unit": "sample", "where": "edge", "epsilon": epsilon, "delta": 1e-5, "clip_norm": 1.0}
    local = plain["local"] | {"batch_size": 1, "learning_rate": CLIPPED_RATE}
    return plain | {"privacy": privacy, "local": local}


def release_every_step(
    plain: dict[str, Any], epsilon: float, *, rate: float = SINGLE_RATE, every: int = 1
) -> dict[str, Any]:
    """Clipped steps of larger batches with an aggregation after every step.

    One example moves a single step by rate / batch; in a segment of several steps it moves every later one by 2 rate,
    whatever the batch is.
    """
    clipped = clip_steps(plain, epsilon)
    local = clipped["local"] | {"batch_size": SINGLE_BATCH, "learning_rate": rate}
    return clipped | {"local": local, "algorithm": clipped["algorithm"] | {"local_aggregation": every}}


def train_cnn(
    data: str,
    *,
    seed: int,
    share: float = 0.5,
    every: int = 1,
    unit: str = "sample",
    subnets: int = SUBNETS,
    rate: float = CNN_RATE,
    epsilon: float = 1.0,
) -> dict[str, Any]:
    """A convolutional network on pixels: a loss that is not convex, clipped steps."""
    intervals = CNN_INTERVALS[data]
    plain = release_every_step(
        experiment(data, seed=seed, share=share, subnets=subnets, size=DEVICES // subnets), epsilon, rate=rate
    )
    return plain | {
        "rounds": intervals,
        "evaluate_every": intervals // 10,
        "data": {
            "source": data,
            "clients": DEVICES,
            "partition": "label_shards",
            "labels_per_client": 3,
            "train_samples": DEVICES * PER_DEVICE[data],
            "test_samples": 2000,
        },
        "model": {"name": "cnn_small"},
        "algorithm": plain["algorithm"] | {"local_aggregation": every},
        "privacy": plain["privacy"] | {"unit": unit},
    }


def run_as(plain: dict[str, Any], name: str) -> dict[str, Any]:
    """The same under a comparator's name, on a tree without trusted servers."""
    return plain | {"algorithm": plain["algorithm"] | {"name": name}}


def noise_as_published(plain: dict[str, Any]) -> dict[str, Any]:
    """The same with Proposition 3.1's noise for epsilon 1, which is no guarantee."""
    clipped = clip_steps(plain, 1.0)
    examples = plain["data"]["options"]["examples"]
    noise = h2fdp_noise(rate=1 / examples, steps=plain["rounds"] * (TAU // EVERY), epsilon=1.0, delta=1e-5)
    privacy = {name: value for name, value in clipped["privacy"].items() if name != "epsilon"}
    return clipped | {"privacy": privacy | {"noise_multiplier": round(noise, 6)}}


def add_control(plain: dict[str, Any], weights: dict[str, Any]) -> dict[str, Any]:
    """The same run with adaptive control."""
    return plain | {"algorithm": plain["algorithm"] | {"control": weights}}
