"""The parts of the reproduction by name."""

from collections.abc import Callable, Iterator

from experiments.upcycled import private_real
from experiments.upcycled.cells import Cell, real, synthetic
from experiments.upcycled.private import gradient, objective, output, published, table5

LETTERS = {"source": "emnist_letters", "partition": "label_shards", "labels_per_client": 5, "clients": 50}
TEN = LETTERS | {"options": {"letters": 10}}
OCR = LETTERS | {"source": "ocr_letters"}
FEW = {"clients": 10, "train_samples": 1000}
"""Ten clients of 100 letters: private runs have every client train in every round."""
MLP = {"name": "mlp", "hidden": [196]}
TWEETS = {"source": "sentiment140_users", "partition": "by_user", "clients": 52, "options": {"users": "grouped"}}
BILSTM = {"name": "bilstm", "hidden": 32, "embedding": 32}


def letters() -> Iterator[Cell]:
    """Table 1, letters a-j: EMNIST letters, 50 clients of 5 letters; 40 rounds where the paper has 150."""
    return real("letters", "letters", rounds=40, data=TEN | {"train_samples": 8000}, model=MLP, lr=0.01)


def letters26() -> Iterator[Cell]:
    """Table 4, all 26 letters: OCR letters, 50 clients of 5 letters (the EMNIST sample ends at m); 40 rounds."""
    return real("letters26", "letters26", rounds=40, data=OCR | {"train_samples": 8000}, model=MLP, lr=0.01)


def tweets() -> Iterator[Cell]:
    """Table 1, tweets: a small bi-LSTM from scratch, 10 rounds where the paper has 80; one seed."""
    return real("tweets", "tweets", rounds=10, data=TWEETS | {"train_samples": 4000}, model=BILSTM, lr=0.1, seeds=1)


def figure7() -> Iterator[Cell]:
    """Private runs on letters a-j."""
    yield from private_real.output("figure7", ("fedavg", "fedprox"), 20, data=TEN | FEW, model=MLP)
    yield from private_real.objective("figure7", 2, data=TEN | {"clients": 5, "train_samples": 500})


def figure8() -> Iterator[Cell]:
    """Private runs on tweets: output perturbation only, because words have no bounded norm."""
    data = TWEETS | {"train_samples": 4000}
    return private_real.output("figure8", ("fedavg",), 4, data=data, model=BILSTM, lr=0.1, local={"epochs": 3})


def figure9() -> Iterator[Cell]:
    """Private FedProx on 26 letters."""
    yield from private_real.output("figure9", ("fedprox",), 20, data=OCR | FEW, model=MLP)
    yield from private_real.objective("figure9", 8, data=OCR | FEW)


PARTS: dict[str, Callable[[], Iterator[Cell]]] = {
    "table1": lambda: synthetic("table1", 0.9),
    "published": published,
    "output": output,
    "objective": objective,
    "gradient": gradient,
    "table5": table5,
    "table3": lambda: synthetic("table3", 0.3, (0, 1)),
    "letters": letters,
    "letters26": letters26,
    "tweets": tweets,
    "figure7": figure7,
    "figure8": figure8,
    "figure9": figure9,
}
"""Table 3 has two seeds where Table 1 has four."""
