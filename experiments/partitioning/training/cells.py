"""Every run of Tables 1 and 2 and of Section 4.2, scaled to two cores."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.partitioning.training.halves import section
from sightline import accounting
from sightline.accounting import published

HERE = Path(__file__).parent
SOURCES = ("fashion_mnist", "cifar10")
SEEDS = (0, 1, 2)
TARGET = {"epsilon": 8.0, "delta": 1e-5}
MLP = {"name": "mlp", "hidden": [96]}
"""Table 2's network: thousands of users are trained side by side only where it is fully connected."""
MODEL = {"name": "resnet", "channels": [12], "depth": 11, "groups": 4}
"""11 residual blocks with GroupNorm; the first and the last are unsplit, 9 are split."""
UNSPLIT = ["first", "last"]

CENTRAL = {"rounds": 60, "size": 2000, "batch": 100}
"""Table 1: steps, private images, expected batch (rate .05)."""
USERS = {"rounds": 40, "users": 400, "rate": 0.2, "steps": 3}
"""Table 2: sessions, users of two images each, rate of taking part, local iterations."""
LEARNING_RATE = {"central": 2.0, "users": 0.3}
CLIP_NORM = {"central": 1.0, "users": 0.5}


@dataclass(frozen=True)
class Cell:
    """One run."""

    table: str
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
        return "/".join((self.table, self.source, self.method, str(self.parts), str(self.seed)))

    @property
    def model(self) -> dict[str, Any]:
        """The network of its table."""
        return MLP if self.table == "table2" else MODEL


def pretrained(source: str, model: str, parts: int) -> Path:
    """Where the weights of the pre-training lie; the fully connected network is pre-trained by parts."""
    return HERE / "pretrained" / f"{source}-{model}{parts if model == 'mlp' else ''}.safetensors"


def pretraining(source: str, model: dict[str, Any], parts: int) -> dict[str, Any]:
    """The experiment file of the pre-training: no privacy, 8 of 10 classes of the first half."""
    if model["name"] == "mlp":
        return {
            "name": "pretraining", "rounds": 12 * parts, "evaluate_every": 12 * parts, "model": model,
            "data": section("public", source, clients=1, size=12_000),
            "algorithm": {"name": "fedavg", "split": {"parts": parts}},
            "local": {"steps": 100, "batch_size": 32, "learning_rate": 0.05, "momentum": 0.9},
        }  # fmt: skip
    return {
        "name": "pretraining", "rounds": 1, "data": section("public", source, clients=1, size=12_000), "model": model,
        "local": {"epochs": 3, "batch_size": 32, "learning_rate": 0.05, "momentum": 0.9},
    }  # fmt: skip


def noise_of(method: str, parts: int, rate: float, steps: int) -> float | None:
    """z of both balls: without amplification, as the paper amplifies, or (None) as our accountant finds by itself."""
    if method == "ours":
        return None
    split = parts if method == "published" else 1
    found = published.calibrate_published(
        lambda z: published.split_moments(z, split, rate, steps, unsplit_noise=z), **TARGET
    )
    return found.value


def spent(parts: int, noise: float, rate: float, steps: int) -> float:
    """What the run really costs by our accountant."""
    scheme = accounting.split(noise=noise, parts=parts, rate=rate, steps=steps, unsplit_noise=noise)
    return scheme.epsilon(delta=TARGET["delta"])


ROWS = [("ours", 1)] + [(method, d) for d in (3, 8) for method in ("baseline", "published", "ours")]
"""(method, submodels); one submodel is no splitting, the paper's relaxation."""


def table1() -> Iterator[Cell]:
    """Sample level, both sources, seed by seed: a table that was broken off is even."""
    for seed in SEEDS:
        for source in SOURCES:
            for method, parts in ROWS:
                yield central(source, method, parts, seed)


def table2() -> Iterator[Cell]:
    """User level."""
    for seed in SEEDS:
        for method, parts in ROWS:
            yield users("fashion_mnist", method, parts, seed)


def central(source: str, method: str, parts: int, seed: int) -> Cell:
    """Table 1: one owner of all examples, the server takes one private step a round."""
    rate, rounds = CENTRAL["batch"] / CENTRAL["size"], CENTRAL["rounds"]
    noise = noise_of(method, parts, rate, rounds)
    plain = {
        "rounds": rounds,
        "data": section("private", source, clients=1, size=CENTRAL["size"]),
        "local": {"steps": 1, "batch_size": CENTRAL["batch"], "learning_rate": LEARNING_RATE["central"]},
        "privacy": privacy("central", noise) | {"unit": "sample", "where": "server"},
        "algorithm": {"name": "fedavg", "split": {"parts": parts, "unsplit": UNSPLIT}},
    }
    return Cell("table1", source, method, parts, seed, noise, plain | common(source, seed, rounds, MODEL, parts))


def users(source: str, method: str, parts: int, seed: int) -> Cell:
    """Table 2: users of two examples, three local iterations on the part they were sent to."""
    rate, rounds = USERS["rate"], int(USERS["rounds"])
    noise = noise_of(method, parts, rate, rounds)
    plain = {
        "rounds": rounds,
        "data": section("private", source, clients=int(USERS["users"]), size=2 * int(USERS["users"])),
        "local": {"steps": int(USERS["steps"]), "batch_size": 2, "learning_rate": LEARNING_RATE["users"]},
        "sampling": {"clients": {"scheme": "poisson", "rate": rate}},
        "privacy": privacy("users", noise) | {"unit": "client", "where": "server"},
        "algorithm": {
            "name": "fedavg",
            "server_learning_rate": 6.0,
            "split": {"parts": parts, "unsplit": ["output"] if parts == 1 else []},
        },
    }
    return Cell("table2", source, method, parts, seed, noise, plain | common(source, seed, rounds, MLP, parts))


def sampling() -> Iterator[Cell]:
    """Section 4.2: Poisson batches against balanced ones, without splitting, both at epsilon 8 by our accountant."""
    uses = round(CENTRAL["rounds"] * CENTRAL["batch"] / CENTRAL["size"])
    for seed in SEEDS:
        for source in SOURCES[:1]:
            for scheme in ("poisson", "balanced"):
                samples = {"scheme": scheme} | ({"uses": uses} if scheme == "balanced" else {})
                plain = central(source, "ours", 1, seed).plain | {
                    "algorithm": {"name": "fedavg"}, "sampling": {"samples": samples},
                }  # fmt: skip
                yield Cell("section4.2", source, scheme, 1, seed, None, plain)


def privacy(kind: str, noise: float | None) -> dict[str, Any]:
    """The [privacy] table: noise as given, or calibrated to the target."""
    amount = {"epsilon": TARGET["epsilon"]} if noise is None else {"noise_multiplier": noise}
    return {"delta": TARGET["delta"], "clip_norm": CLIP_NORM[kind], **amount}


def common(source: str, seed: int, rounds: int, model: dict[str, Any], parts: int) -> dict[str, Any]:
    """What all fine-tunings share."""
    begun = model | {"init": str(pretrained(source, model["name"], parts))}
    return {"name": "finetuning", "seed": seed, "evaluate_every": rounds, "model": begun}
