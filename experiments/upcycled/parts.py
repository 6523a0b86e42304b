"""The parts of the reproduction by name. Without a name the command runs those that fit into twenty minutes here."""

from collections.abc import Callable, Iterator

from experiments.upcycled.cells import Cell, real, synthetic
from experiments.upcycled.private import gradient, objective, output, published, table5

LETTERS = {"source": "emnist_letters", "partition": "label_shards", "labels_per_client": 5, "clients": 50}
MLP = {"name": "mlp", "hidden": [196]}
TWEETS = {"source": "sentiment140_users", "partition": "by_user", "clients": 52, "options": {"users": "grouped"}}
BILSTM = {"name": "bilstm", "hidden": 32, "embedding": 32}


def letters() -> Iterator[Cell]:
    """Table 1, letters a-j: EMNIST letters, 50 clients of 5 letters; 40 rounds where the paper has 150."""
    data = LETTERS | {"options": {"letters": 10}, "train_samples": 8000}
    return real("letters", "letters", rounds=40, data=data, model=MLP, lr=0.01)


def letters26() -> Iterator[Cell]:
    """Table 4, all 26 letters: OCR letters, 50 clients of 5 letters (the EMNIST sample ends at m); 40 rounds."""
    data = LETTERS | {"source": "ocr_letters", "train_samples": 8000}
    return real("letters26", "letters26", rounds=40, data=data, model=MLP, lr=0.01)


def tweets() -> Iterator[Cell]:
    """Table 1, tweets: a small bi-LSTM from scratch, 10 rounds where the paper has 80."""
    return real("tweets", "tweets", rounds=10, data=TWEETS | {"train_samples": 4000}, model=BILSTM, lr=0.1)


PARTS: dict[str, Callable[[], Iterator[Cell]]] = {
    "table1": lambda: synthetic("table1", 0.9),
    "published": published,
    "output": output,
    "objective": objective,
    "gradient": gradient,
    "table5": table5,
    "table3": lambda: synthetic("table3", 0.3),
    "letters": letters,
    "letters26": letters26,
    "tweets": tweets,
}

QUICK = ("table1", "published", "output", "objective", "gradient")
"""What fits into twenty minutes on two cores."""
