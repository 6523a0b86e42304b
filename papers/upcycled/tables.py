"""Tables 1, 3 and 4, Figures 2, 5 and 6: both arms at their own best settings, equal rounds, three seeds."""

from collections.abc import Iterator
from typing import Any

from papers.upcycled.cells import (
    ALGORITHMS,
    SEEDS,
    SYNTHETIC,
    Cell,
    Tuned,
    both_arms,
    clip_of,
    experiment,
    linear_cell,
)
from papers.upcycled.tuned import TUNED

ROUNDS = 40
"""Half of the paper's 80; an upcycled run takes as many free steps on top."""
PFEDME_ROUNDS = 10
"""A round of pFedMe costs many times as much: compiled code has no solver of its kind."""

LETTERS = {"source": "emnist_letters", "partition": "label_shards", "labels_per_client": 5, "clients": 50}
TEN = LETTERS | {"options": {"letters": 10}, "train_samples": 4000}
OCR = LETTERS | {"source": "ocr_letters", "train_samples": 4000}
TWEETS = {
    "source": "sentiment140_users", "partition": "by_user", "clients": 20, "train_samples": 2000,
    "options": {"users": "grouped", "tokens": 15},
}  # fmt: skip
MLP = {"name": "mlp", "hidden": [32]}
BILSTM = {"name": "bilstm", "hidden": 8, "embedding": 16}
REAL: dict[str, dict[str, Any]] = {
    "letters": {"data": TEN, "model": MLP, "rounds": 20},
    "letters26": {"data": OCR, "model": MLP, "rounds": 20},
    "sent140": {"data": TWEETS, "model": BILSTM, "rounds": 10, "local": {"epochs": 5}},
}
"""Data set -> how it is run here: smaller networks, fewer examples and rounds than the paper's 150 and 80."""
REAL_PFEDME = {"letters": 10, "letters26": 10, "sent140": 5}


def synthetic_table(part: str, stragglers: float, *, share: float = 1.0) -> Iterator[Cell]:
    """The four synthetic columns of Table 1 or 3, with a share of the rounds."""
    for data in SYNTHETIC:
        for algorithm in ALGORITHMS:

            def make(tuned: Tuned, seed: int, algorithm: str = algorithm, data: str = data) -> Cell:
                rounds = round(share * (PFEDME_ROUNDS if algorithm == "pfedme" else ROUNDS))
                local = {"stragglers": stragglers}
                return linear_cell(part, algorithm, data, tuned, seed=seed, rounds=rounds, local=local)

            yield from both_arms(make, TUNED[data][algorithm])


def real_cell(
    part: str, algorithm: str, data: str, tuned: Tuned, *, seed: int, stragglers: float, share: float = 1.0,
    variant: str = "",
) -> Cell:  # fmt: skip
    """A run on letters or tweets; seed 0 is the data's own."""
    shape = REAL[data]
    rounds = round(share * (REAL_PFEDME[data] if algorithm == "pfedme" else shape["rounds"]))
    plain = experiment(
        algorithm, rounds=rounds, seed=seed, data=shape["data"],
        model=shape["model"], lr=tuned.lr, u=tuned.u, own=tuned.algorithm,
        evaluate_every=max(1, rounds // 10), local={"stragglers": stragglers} | shape.get("local", {}),
    )  # fmt: skip
    upcycled = tuned.u is not None
    return Cell(part, algorithm, data, upcycled, seed, plain, variant, tuned.words, 0, clip_of(algorithm))


def real_table(part: str, data: str, stragglers: float, *, share: float = 1.0) -> Iterator[Cell]:
    """A column of letters or tweets."""
    for algorithm in ALGORITHMS:

        def make(tuned: Tuned, seed: int, algorithm: str = algorithm) -> Cell:
            return real_cell(part, algorithm, data, tuned, seed=seed, stragglers=stragglers, share=share)

        yield from both_arms(make, TUNED[data][algorithm], SEEDS)
