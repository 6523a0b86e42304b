"""Prediction targets by task: labels, sets of labels, numbers, or the next token at every position.

A target is one row of `Shard.y`. Which arrays can be targets depends on the task alone; nothing is learned from their
values, which are private.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.config import Data
from sightline.data.federation import Kind, Targets
from sightline.data.source import Partition, Table
from sightline.errors import invalid

IGNORED = -100
"""Next-token value of a position that does not count (padding)."""

LABELLED = ("classification", "binary")
"""Tasks whose target is one label."""

BY_LABEL = (Partition.DIRICHLET, Partition.LABEL_SHARDS, Partition.LABEL_SHIFT)
"""Partitions that look at labels."""


def next_tokens(x: NDArray[np.int64], *, padding: int | None = None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return sequences without their last token, and for each token the one that follows it.

    >>> [rows.tolist() for rows in next_tokens(np.array([[5, 7, 0]]), padding=0)]
    [[[5, 7]], [[7, -100]]]
    """
    after = x[:, 1:].copy()
    if padding is not None:
        after[after == padding] = IGNORED
    return np.ascontiguousarray(x[:, :-1]), after


def check_targets(who: str, y: NDArray[Any], x: NDArray[Any], settings: Data, task: str) -> Targets:
    """Return the targets of a user's own shard in the type that the task needs; raise if they do not fit."""
    if y.ndim and len(y) == 0 and y.dtype.kind == "f" and task in (*LABELLED, "language"):
        # numpy makes an empty list an array of floats.
        y = y.astype(np.int64)
    return CHECKS[task](who, y, x, settings)


def check_labels(who: str, y: NDArray[Any], x: NDArray[Any], settings: Data) -> Targets:
    """Return labels; raise unless each is a whole number from 0 to data.classes - 1."""
    if y.ndim != 1 or y.dtype.kind not in "iu":
        law = f"{who}: labels are {y.dtype} {y.shape}, expected whole numbers (n,)"
        invalid("data.source", settings.source, law)
    if y.size and y.min() < 0:
        invalid("data.source", settings.source, f"{who}: label {y.min()}, labels count from 0")
    # The number of classes is a setting. Counting labels would release a fact of private data that no ledger entry
    # covers.
    if y.size and y.max() >= settings.classes:
        law = f"{who}: label {y.max()} with data.classes={settings.classes}"
        invalid("data.source", settings.source, law, "set data.classes to the number of classes")
    return y.astype(np.int64, copy=False)


def check_label_sets(who: str, y: NDArray[Any], x: NDArray[Any], settings: Data) -> Targets:
    """Return label sets; raise unless they are (n, labels) of zeros and ones."""
    if y.ndim != 2 or y.dtype.kind not in "biuf":
        law = f"{who}: sets of labels are {y.dtype} {y.shape}, expected zeros and ones (n, labels)"
        invalid("data.source", settings.source, law)
    if not np.isin(y, (0, 1)).all():
        invalid("data.source", settings.source, f"{who}: sets of labels hold other numbers than 0 and 1")
    return y.astype(np.float32, copy=False)


def check_numbers(who: str, y: NDArray[Any], x: NDArray[Any], settings: Data) -> Targets:
    """Return regression targets; raise unless they are (n,) or (n, targets) finite numbers."""
    if y.ndim not in (1, 2) or y.dtype.kind not in "iuf":
        law = f"{who}: targets are {y.dtype} {y.shape}, expected numbers (n,) or (n, targets)"
        invalid("data.source", settings.source, law)
    # Overflow to infinity is caught by the check below.
    with np.errstate(over="ignore"):
        found = y.astype(np.float32, copy=False)
    if not np.isfinite(found).all():
        invalid("data.source", settings.source, f"{who}: targets hold NaN or infinity", "clean them first")
    return found


def check_next_tokens(who: str, y: NDArray[Any], x: NDArray[Any], settings: Data) -> Targets:
    """Return next tokens; raise unless shaped as the inputs, below the vocabulary or `IGNORED`."""
    if x.dtype.kind not in "iu" or x.ndim != 2:
        law = f"{who}: inputs are {x.dtype} {x.shape}, and a language model reads whole-number (n, tokens)"
        invalid("data.source", settings.source, law)
    if y.shape != x.shape or y.dtype.kind not in "iu":
        law = f"{who}: next tokens are {y.dtype} {y.shape}, expected whole numbers {x.shape}"
        invalid("data.source", settings.source, law, "or give None for them, and they are read off the inputs")
    vocabulary = settings.options.get("vocabulary")
    largest = vocabulary if isinstance(vocabulary, int) else np.iinfo(np.int64).max
    if not ((y == IGNORED) | ((y >= 0) & (y < largest))).all():
        law = f"{who}: next tokens outside 0 .. vocabulary - 1"
        invalid("data.options.vocabulary", vocabulary, law, f"{IGNORED} stands for a position that does not count")
    return y.astype(np.int64, copy=False)


def check_anything(who: str, y: NDArray[Any], x: NDArray[Any], settings: Data) -> Targets:
    """Return targets of a user's own loss; raise unless they are finite numbers. Whole numbers stay whole."""
    if y.ndim < 1 or y.dtype.kind not in "biuf":
        invalid("data.source", settings.source, f"{who}: targets are {y.dtype} {y.shape}, expected numbers (n, ...)")
    if y.dtype.kind in "biu":
        return y.astype(np.int64, copy=False)
    found = y.astype(np.float32, copy=False)
    if not np.isfinite(found).all():
        invalid("data.source", settings.source, f"{who}: targets hold NaN or infinity", "clean them first")
    return found


CHECKS: dict[str, Callable[[str, NDArray[Any], NDArray[Any], Data], Targets]] = {
    "classification": check_labels,
    "binary": check_labels,
    "multilabel": check_label_sets,
    "regression": check_numbers,
    "language": check_next_tokens,
    "own": check_anything,
}
"""Task -> the check of its targets; "own" is a user's own loss without a task."""


def as_task(table: Table, settings: Data, task: str, *, padding: int | None = 0) -> Table:
    """Return a source's table with the task's targets; raise if partition or source do not fit."""
    if task == "language" and table.kind is Kind.TEXT and table.y.ndim == 1:
        table = _predict_next(table, padding)
    if table.y.ndim > 1 or table.y.dtype.kind == "f":
        _refuse_label_partition(settings, task)
    return table


def _predict_next(table: Table, padding: int | None) -> Table:
    tokens: Any = table.x
    if tokens.shape[1] < 2:
        invalid("data.options.tokens", tokens.shape[1], "a next token needs a sequence of two or more", "use 25")
    x, y = next_tokens(tokens, padding=padding)
    test = None if table.test is None else _predict_next(table.test, padding)
    note = "language: every token is to be predicted from those before it"
    return replace(table, x=x, y=y, test=test, notes=(*table.notes, note))


def _refuse_label_partition(settings: Data, task: str) -> None:
    if Partition(settings.partition) in BY_LABEL:
        law = f'it deals by labels, and task = "{task}" has none'
        invalid("data.partition", settings.partition, law, 'use "iid", "by_user" or "natural"')
