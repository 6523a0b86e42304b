"""Every run of Tables 1 and 2 and of Section 4.2, scaled to two cores."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from papers import published
from papers.partitioning.training.halves import POOL, section
from sightline import accounting

HERE = Path(__file__).parent
SEEDS, FEW = range(5), range(3)
"""Where the noise matters, and where it hardly does."""
TARGET = {"epsilon": 8.0, "delta": 1e-5}
MLP = {"name": "mlp", "hidden": [96]}
"""Fully connected, its hidden units split: thousands of steps of 2,500 examples do not fit with a residual network."""
RESNET = {"name": "resnet", "channels": [8, 16], "depth": 6}
"""Twelve residual blocks on images of 16 x 16, of which the middle eight that keep their shape are split."""
UNSPLIT_BLOCKS = ["blocks.0", "blocks.1", "blocks.11", "last"]
UNSPLIT = ["last"]
"""The output layer is in every submodel, under a ball of its own."""
SERVER_RATE = 6.0
"""Table 2: by how much the server multiplies the mean of the updates."""


@dataclass(frozen=True)
class Regime:
    """How one table is scaled."""

    size: int
    """Private images (Table 1, Section 4.2), or users of two images each (Table 2)."""
    rate: float
    rounds: int
    learning_rate: float
    """The best of two or three on seed 0 of Fashion-MNIST."""


REGIMES = {
    ("table1", "printed"): Regime(25_000, 0.1, 100, 6.0),
    ("table1", "noisy"): Regime(270, 0.1, 100, 1.0),
    ("table1", "resnet"): Regime(650, 0.1, 50, 1.0),
    ("table2", "printed"): Regime(500, 1.0, 20, 0.3),
    ("table2", "noisy"): Regime(75, 1.0, 20, 0.3),
    ("section4.2", "scratch"): Regime(25_000, 0.3275, 100, 3.0),
    ("section4.2", "finetuning"): Regime(25_000, 0.1, 100, 6.0),
}
"""`printed`: the printed number of examples (Table 2: users, scaled), which drowns the noise of so small a network;
`noisy`: so few that a step's noise is as many clip norms long as for the 42.5 million weights of a ResNet-101."""
FASTER = {("noisy", 8): 2.0}
"""By how much faster (regime, submodels) learn in Table 1: of 1 and 2 the better for both arms, on three seeds."""


@dataclass(frozen=True)
class Cell:
    """One run."""

    table: str
    regime: str
    source: str
    method: str
    parts: int
    seed: int
    noise: float | None
    """The noise multiplier of both balls; None: calibrated by the run itself."""
    plain: dict[str, Any] = field(compare=False, repr=False)

    @property
    def key(self) -> str:
        """The name of its result."""
        return "/".join((self.table, self.regime, self.source, self.method, str(self.parts), str(self.seed)))

    @property
    def network(self) -> str:
        """Which network is trained."""
        return "resnet" if self.regime == "resnet" else "mlp"

    @property
    def pretrained(self) -> bool:
        """Whether it begins with a network that knows 8 of the 10 classes."""
        return self.regime != "scratch"


def pretrained(source: str, parts: int, network: str = "mlp") -> Path:
    """Where the weights of the pre-training lie, which was done by parts."""
    return HERE / "pretrained" / f"{source}-{network}{parts}.safetensors"


def pretraining(source: str, parts: int, network: str = "mlp") -> dict[str, Any]:
    """The experiment file of the pre-training: no privacy, 8 of 10 classes of the first half."""
    plain = {
        "name": "pretraining", "rounds": 12 * parts, "evaluate_every": 12 * parts, "model": MLP,
        "data": section("public", source, clients=1, size=12_000),
        "algorithm": {"name": "fedavg", "split": {"parts": parts}},
        "local": {"steps": 100, "batch_size": 32, "learning_rate": 0.05, "momentum": 0.9},
    }  # fmt: skip
    if network == "mlp":
        return plain
    split = {"parts": parts, "unsplit": UNSPLIT_BLOCKS}
    data = section("public", source, clients=1, size=12_000, pool=2)
    return plain | {"model": RESNET, "data": data, "algorithm": {"name": "fedavg", "split": split}}


def noise_of(method: str, parts: int, rate: float, steps: int) -> float | None:
    """z of both balls: without amplification, as the paper amplifies, or (None) as our accountant finds by itself."""
    if method == "ours":
        return None
    split = parts if method == "published" else 1
    return published.calibrate_published(
        lambda z: published.split_moments(z, split, rate, steps, unsplit_noise=z), **TARGET
    )


def spent(parts: int, noise: float, rate: float, steps: int) -> float:
    """What the run really costs by our accountant."""
    scheme = accounting.split(noise=noise, parts=parts, rate=rate, steps=steps, unsplit_noise=noise)
    return scheme.epsilon(delta=TARGET["delta"])


ROWS = [("baseline", 1), ("ours", 1)] + [(method, d) for d in (3, 8) for method in ("baseline", "published", "ours")]
"""(method, submodels); one submodel is no splitting, the paper's relaxation."""


def table1() -> Iterator[Cell]:
    """Order sample-level cells by seed, so that an interrupted table is balanced."""
    for seed in SEEDS:
        yield from (central("fashion_mnist", method, parts, seed, "noisy") for method, parts in ROWS)
        for source in ("fashion_mnist", "cifar10") if seed in FEW else ():
            yield from (central(source, method, parts, seed, "printed") for method, parts in ROWS)


def table2() -> Iterator[Cell]:
    """User level."""
    for seed in SEEDS:
        for regime in ("noisy", "printed") if seed in FEW else ("noisy",):
            yield from (users("fashion_mnist", method, parts, seed, regime) for method, parts in ROWS)


def resnet() -> Iterator[Cell]:
    """Table 1 with a residual network on CIFAR-10."""
    for seed in FEW:
        yield from (residual(method, parts, seed) for method, parts in ROWS if (method, parts) != ("ours", 1))


def sampling() -> Iterator[Cell]:
    """Section 4.2: Poisson batches against balanced ones, without splitting, both at epsilon 8 by our accountant."""
    for seed in SEEDS:
        for regime in ("finetuning", "scratch"):
            yield from (sampled(scheme, seed, regime) for scheme in ("poisson", "balanced"))


def quick() -> Iterator[Cell]:
    """Seed 0 of what takes little."""
    for regime in ("printed", "noisy"):
        yield from (central("fashion_mnist", method, parts, 0, regime) for method, parts in ROWS)
    yield from (users("fashion_mnist", method, parts, 0, "noisy") for method, parts in ROWS)
    yield from (sampled(scheme, 0, "finetuning") for scheme in ("poisson", "balanced"))


def central(source: str, method: str, parts: int, seed: int, regime: str) -> Cell:
    """Table 1: one owner of all examples, the server takes one private step a round."""
    how = REGIMES["table1", regime]
    noise = noise_of(method, parts, how.rate, how.rounds)
    how = replace(how, learning_rate=how.learning_rate * FASTER.get((regime, parts), 1.0))
    plain = one_owner(source, seed, how, noise) | {
        "algorithm": {"name": "fedavg", "split": {"parts": parts, "unsplit": UNSPLIT}},
        "model": MLP | {"init": str(pretrained(source, parts))},
    }
    return Cell("table1", regime, source, method, parts, seed, noise, plain)


def residual(method: str, parts: int, seed: int, source: str = "cifar10") -> Cell:
    """Table 1 with a residual network, so few examples that a step's noise is about as long as the paper's."""
    how = REGIMES["table1", "resnet"]
    noise = noise_of(method, parts, how.rate, how.rounds)
    plain = one_owner(source, seed, how, noise, pool=2) | {
        "algorithm": {"name": "fedavg", "split": {"parts": parts, "unsplit": UNSPLIT_BLOCKS}},
        "model": RESNET | {"init": str(pretrained(source, parts, "resnet"))},
    }
    return Cell("table1", "resnet", source, method, parts, seed, noise, plain)


def one_owner(source: str, seed: int, how: Regime, noise: float | None, *, pool: int = POOL) -> dict[str, Any]:
    """The server holds all examples and takes one private step a round."""
    batch = round(how.rate * how.size)
    return {
        "name": "finetuning", "seed": seed, "rounds": how.rounds, "evaluate_every": how.rounds,
        "data": section("private", source, clients=1, size=how.size, pool=pool),
        "local": {"steps": 1, "batch_size": batch, "learning_rate": how.learning_rate},
        "privacy": privacy(1.0, noise) | {"unit": "sample", "where": "server"},
    }  # fmt: skip


def users(source: str, method: str, parts: int, seed: int, regime: str) -> Cell:
    """Table 2: users of two examples, three local iterations on the part they were sent to."""
    how = REGIMES["table2", regime]
    noise = noise_of(method, parts, how.rate, how.rounds)
    split = {"parts": parts, "unsplit": UNSPLIT}
    plain = {
        "name": "finetuning", "seed": seed, "rounds": how.rounds, "evaluate_every": how.rounds,
        "data": section("private", source, clients=how.size, size=2 * how.size),
        "local": {"steps": 3, "batch_size": 2, "learning_rate": how.learning_rate},
        "privacy": privacy(0.5, noise) | {"unit": "client", "where": "server"},
        "algorithm": {"name": "fedavg", "server_learning_rate": SERVER_RATE, "split": split},
        "model": MLP | {"init": str(pretrained(source, parts))},
    }  # fmt: skip
    return Cell("table2", regime, source, method, parts, seed, noise, plain)


def sampled(scheme: str, seed: int, regime: str) -> Cell:
    """Section 4.2: one of the two ways to choose batches."""
    how = REGIMES["section4.2", regime]
    uses = {"uses": round(how.rounds * how.rate)} if scheme == "balanced" else {}
    begun = {} if regime == "scratch" else {"init": str(pretrained("fashion_mnist", 1))}
    plain = one_owner("fashion_mnist", seed, how, None) | {
        "algorithm": {"name": "fedavg"}, "sampling": {"samples": {"scheme": scheme} | uses}, "model": MLP | begun,
    }  # fmt: skip
    return Cell("section4.2", regime, "fashion_mnist", scheme, 1, seed, None, plain)


def privacy(clip_norm: float, noise: float | None) -> dict[str, Any]:
    """The [privacy] table: noise as given, or calibrated to the target."""
    amount = {"epsilon": TARGET["epsilon"]} if noise is None else {"noise_multiplier": noise}
    return {"delta": TARGET["delta"], "clip_norm": clip_norm, **amount}
