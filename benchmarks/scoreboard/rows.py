"""The rows of the scoreboard: what was published, with which noise, and the file that is run here beside it."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from sightline.data.features import RECIPE

HERE = Path(__file__).parent
TRAMER = "Tramer and Boneh 2021 (arXiv 2011.11660)"
GEYER = "Geyer et al. 2017 (arXiv 1712.07557)"
FLAMBY = "FLamby, Ogier du Terrail et al. 2022"


@dataclass(frozen=True)
class Noise:
    """Their DP-SGD as their code states it: what an accountant needs."""

    examples: int
    batch: int
    epochs: int
    multiplier: float
    statistics: float | None = None
    """Noise multiplier of two full-batch releases before training: the private mean and variance of their features."""
    inferred: bool = False
    """Whether the epochs are not stated by the source."""

    @property
    def steps(self) -> int:
        """Return the number of batches in all epochs."""
        return round(self.epochs * self.examples / self.batch)


@dataclass(frozen=True)
class Row:
    """One line: theirs, and ours."""

    name: str
    """Of the experiment file, too."""
    title: str
    table: str
    source: str = ""
    setting: str = ""
    published: str = ""
    stated: str = ""
    noise: Noise | None = None
    goal: float | None = None
    """What is to be reached, in percent."""
    seeds: tuple[int, ...] = (0, 1, 2)
    audit: tuple[str, ...] = ()
    """Words of `--set` that make the audited file; () is the file itself."""
    audited: str = ""
    """What of the row the audit attacks."""
    rounds: int | None = None
    """Rounds that are audited; all by default."""
    open: tuple[str, ...] = ()
    """Words of `--set` that take privacy away: what the row would reach without; () where nobody asks."""
    trials: int = 20
    """Runs of the audit with the subject, and as many without."""
    quick: bool = False
    away: str = ""
    """Why it is not run by default, with the time that it would take."""

    @property
    def file(self) -> Path:
        """The experiment file."""
        return HERE / f"{self.name}.toml"

    @property
    def digest(self) -> str:
        """Of the file and of how features are made: numbers of another one are not this row's."""
        words = self.file.read_bytes()
        return hashlib.blake2b(words + RECIPE * (b"features" in words), digest_size=8).hexdigest()


def _mechanism(batch: int, examples: int) -> tuple[str, ...]:
    """The same rate, steps and calibrated noise on data that fit into seconds; the attack brings its own."""
    return (
        'data={source="digits", clients=1, test_fraction=0.2}',
        'model={name="linear"}',
        f"local.batch_size={round(DIGITS * batch / examples)}",
    )


DIGITS = 1438
"""Training examples of digits with test_fraction = 0.2."""
SAME = "same rate (in whole examples a batch), steps and epsilon, on digits"

LINEAR = [
    Row(
        "mnist-linear", "MNIST", "scattering and a linear model", TRAMER, "BN, private statistics, lr 8", "98.7",
        "(3, 1e-5)", Noise(60_000, 4096, 40, 3.04, 8.0, inferred=True), 98.7,
        audit=_mechanism(4096, 60_000), audited=SAME, quick=True,
    ),
    Row(
        "fashion-linear", "Fashion-MNIST", "scattering and a linear model", TRAMER, "GN of 27 groups, lr 16", "89.7",
        "(3, 1e-5)", Noise(60_000, 8192, 40, 4.05, inferred=True), 89.7, audit=_mechanism(8192, 60_000), audited=SAME,
    ),
    Row(
        "cifar10-linear", "CIFAR-10", "scattering and a linear model", TRAMER, "BN, private statistics, lr 4", "67.0",
        "(3, 1e-5)", Noise(50_000, 8192, 60, 5.67, 8.0, inferred=True), 67.0,
        audit=_mechanism(8192, 50_000), audited=SAME,
    ),
]  # fmt: skip
CNN = [
    Row(
        "mnist-cnn", "MNIST", "a CNN on pixels", TRAMER, "tanh CNN, lr 0.5", "98.1", "(3, 1e-5)",
        Noise(60_000, 512, 40, 1.23), 98.1,
        audit=_mechanism(512, 60_000), audited=SAME,
    ),
    Row(
        "fashion-cnn", "Fashion-MNIST", "a CNN on pixels", TRAMER, "tanh CNN, lr 4", "86.0", "(3, 1e-5)",
        Noise(60_000, 2048, 40, 2.15), 86.0,
        audit=_mechanism(2048, 60_000), audited=SAME,
    ),
    Row(
        "cifar10-cnn", "CIFAR-10", "a CNN on pixels", TRAMER, "tanh CNN, lr 1", "59.2", "(3, 1e-5)",
        Noise(50_000, 1024, 30, 1.54), 59.2, seeds=(0,),
        audit=_mechanism(1024, 50_000), audited=SAME, away="not run here: about 2 hours",
    ),
    Row(
        "mnist-scattering-cnn", "MNIST", "scattering and a CNN", TRAMER, "BN, private statistics, lr 1", "98.7",
        "(3, 1e-5)", Noise(60_000, 1024, 25, 1.35, 8.0, inferred=True), 98.7,
        seeds=(0,), audit=_mechanism(1024, 60_000), audited=SAME, away="not run here: about 25 minutes",
    ),
    Row(
        "fashion-scattering-cnn", "Fashion-MNIST", "scattering and a CNN", TRAMER, "GN of 27 groups, lr 4", "89.0",
        "(3, 1e-5)", Noise(60_000, 2048, 40, 2.15, inferred=True), 89.0,
        seeds=(0,), audit=_mechanism(2048, 60_000), audited=SAME, away="not run here: about 40 minutes",
    ),
    Row(
        "cifar10-scattering-cnn", "CIFAR-10", "scattering and a CNN", TRAMER, "BN, private statistics, lr 4", "69.3",
        "(3, 1e-5)", Noise(50_000, 8192, 60, 5.67, 8.0, inferred=True), 69.3,
        seeds=(0,), audit=_mechanism(8192, 50_000), audited=SAME, away="not run here: about 35 minutes",
    ),
]  # fmt: skip
CLIENTS = [
    Row(
        "mnist-1000-clients", "MNIST, 1,000 clients of two digits", "clients", GEYER,
        "a network of 200 hidden units, 2 digits a client; 100 / 1,000 / 10,000 clients", "78 / 92 / 96",
        "(8, 1e-3) / (8, 1e-5) / (8, 1e-6)", None, 92.0, seeds=(0, 1, 2), quick=True,
        audit=(
            'data={source="mnist", clients=1000, partition="iid", train_samples=4000, test_fraction=0.0}',
            'model={name="linear"}',
        ),
        audited="same clients, rate, rounds and noise, on pixels of 4,000 digits",
    ),
]  # fmt: skip
HEART = [
    Row(
        "heart-disease", "Heart disease, four hospitals", "hospitals", FLAMBY,
        "logistic regression, DP-SGD at each hospital; their three budgets", "71.2 / 68.5 / 60.6",
        "none / (1, 1e-4) / (0.1, 1e-4)", seeds=(0, 1, 2), away="not run here: the data are not here; seconds",
        audit=('data={source="digits", clients=4, test_fraction=0.2}', "local.batch_size=400"),
        audited="same rounds and epsilon, everybody in every batch as in the smallest hospital, on digits",
    ),
]  # fmt: skip
NO_PRIVACY = 'privacy={unit="none"}'
SYSTEMS = [
    Row(name, title, "systems", quick=True, audited="the file itself", trials=150, open=(NO_PRIVACY, *others))
    for name, title, *others in (
        ("system-groups", "Overlapping groups (DP-OGL): 200 workers, a ring of 4 groups"),
        ("system-upcycled", "Upcycled FedProx: 100 clients"),
        ("system-clustered", "Clustered (R-DPCFL): 9 sites of 3 kinds"),
        (
            "system-hierarchy", "Hierarchy (H2FDP): 40 devices, 5 edges, 3 of them trusted",
            'algorithm={name="hfl", local_aggregation=5, schedule="constant"}',
        ),
        ("system-partitioning", "Partitioning: 100 clients, each trains one of 3 parts"),
    )
]  # fmt: skip
ROWS: list[Row] = [*LINEAR, *CNN, *CLIENTS, *HEART, *SYSTEMS]
