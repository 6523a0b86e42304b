"""Prediction targets by task: labels, sets of labels, numbers, or the next token at every position.

A target is one row of `Shard.y`. Which arrays can be targets depends on the task alone; nothing is learned from their
values, which are private.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.config import Data
from sightline.data.federation import Kind, Partition, Table, Targets
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


def check_targets(origin: str, y: NDArray[Any], x: NDArray[Any], settings: Data, task: str) -> Targets:
    """Return the targets of a user's own shard in the type that the task needs; raise if they do not fit."""
    if y.ndim and len(y) == 0 and y.dtype.kind == "f" and task in (*LABELLED, "language"):
        # numpy makes an empty list an array of floats.
        y = y.astype(np.int64)
    return CHECKS[task](origin, y, x, settings)


def check_labels(origin: str, y: NDArray[Any], x: NDArray[Any], settings: Data) -> Targets:
    """Return labels as numbers from 0 to data.classes - 1; raise for one outside, or not among the named classes."""
    if y.ndim == 1 and settings.class_names is not None:
        return _number_labels(origin, y, settings)
    if y.ndim == 1 and y.dtype.kind in "UOS" and y.size:
        # Names of folders and cells of text columns may be numbers.
        if not all(is_numeral(label) for label in y.tolist()):
            known = sorted({str(label)[:30] for label in y.tolist()})
            shown = ", ".join(f'"{label}"' for label in known[:6]) + (", ..." if len(known) > 6 else "")
            reason = (
                f"{origin}: labels are text ({shown}), and the set of labels must be public, so it is not read off "
                "the data"
            )
            invalid("data.classes", settings.classes, reason, 'list their names, all of them: classes = ["cat", "dog"]')
        y = y.astype(np.int64)
    if y.ndim != 1 or y.dtype.kind not in "iu":
        reason = f"{origin}: labels are {y.dtype} {y.shape}, expected whole numbers (n,)"
        invalid("data.source", settings.source, reason)
    if y.size and y.min() < 0:
        invalid("data.source", settings.source, f"{origin}: label {y.min()}, labels count from 0")
    # The number of classes is a setting. Counting labels would release a fact of private data that no ledger entry
    # covers.
    if y.size and y.max() >= settings.classes:
        reason = f"{origin}: label {y.max()} with data.classes={settings.classes}, labels count from 0"
        way_out = "set data.classes to the number of classes, or list the labels: classes = [1, 2, 3]"
        invalid("data.source", settings.source, reason, way_out)
    return y.astype(np.int64, copy=False)


def _number_labels(origin: str, y: NDArray[Any], settings: Data) -> NDArray[np.int64]:
    """Return each label's position among the names of classes; whole numbers are positions if no name is a number."""
    names = [str(name) for name in settings.class_names or ()]
    if y.dtype.kind == "b":
        y = y.astype(np.int64)
    if y.dtype.kind in "iu" and not any(map(is_numeral, names)):
        names = [str(number) for number in range(len(names))]
    values, index = np.unique(y if y.dtype.kind in "iuf" else y.astype(str), return_inverse=True)
    # A table's whole numbers may come as floats, and text may have blanks around it.
    texts = [
        str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()
        for value in values.tolist()
    ]
    for text in texts:
        if text not in names:
            reason = f"{origin}: label {text[:30]!r} is not one of them"
            invalid(
                "data.classes", list(settings.class_names or ())[:8], reason, "add it if it is public, or drop the row"
            )
    return np.array([names.index(text) for text in texts], dtype=np.int64)[index]


def is_numeral(label: Any) -> bool:
    """Return whether a label or a name is a whole number, or one as text.

    >>> [is_numeral(label) for label in (3, "3", "-1", "three", 2.5)]
    [True, True, True, False, False]
    """
    return isinstance(label, str | int) and re.fullmatch(r"-?[0-9]{1,18}", str(label)) is not None


def check_label_sets(origin: str, y: NDArray[Any], x: NDArray[Any], settings: Data) -> Targets:
    """Return label sets; raise unless they are (n, labels) of zeros and ones."""
    if y.ndim != 2 or y.dtype.kind not in "biuf":
        reason = f"{origin}: sets of labels are {y.dtype} {y.shape}, expected zeros and ones (n, labels)"
        invalid("data.source", settings.source, reason)
    if not np.isin(y, (0, 1)).all():
        invalid("data.source", settings.source, f"{origin}: sets of labels may only contain 0 and 1")
    return y.astype(np.float32, copy=False)


def check_numbers(origin: str, y: NDArray[Any], x: NDArray[Any], settings: Data) -> Targets:
    """Return regression targets; raise unless they are (n,) or (n, targets) finite numbers."""
    if y.ndim not in (1, 2) or y.dtype.kind not in "iuf":
        reason = f"{origin}: targets are {y.dtype} {y.shape}, expected numbers (n,) or (n, targets)"
        invalid("data.source", settings.source, reason)
    # Overflow to infinity is caught by the check below.
    with np.errstate(over="ignore"):
        result = y.astype(np.float32, copy=False)
    if not np.isfinite(result).all():
        invalid("data.source", settings.source, f"{origin}: targets contain NaN or infinity", "clean them first")
    return result


def check_next_tokens(origin: str, y: NDArray[Any], x: NDArray[Any], settings: Data) -> Targets:
    """Return next tokens; raise unless shaped as the inputs, below the vocabulary or `IGNORED`."""
    if x.dtype.kind not in "iu" or x.ndim != 2:
        reason = f"{origin}: inputs are {x.dtype} {x.shape}, and a language model reads whole-number (n, tokens)"
        invalid("data.source", settings.source, reason)
    if y.shape != x.shape or y.dtype.kind not in "iu":
        reason = f"{origin}: next tokens are {y.dtype} {y.shape}, expected whole numbers {x.shape}"
        invalid("data.source", settings.source, reason, "or give None to derive them from the inputs")
    vocabulary = settings.options.get("vocabulary")
    largest = vocabulary if isinstance(vocabulary, int) else np.iinfo(np.int64).max
    if not ((y == IGNORED) | ((y >= 0) & (y < largest))).all():
        reason = f"{origin}: next tokens outside 0 .. vocabulary - 1"
        invalid("data.options.vocabulary", vocabulary, reason, f"use {IGNORED} for positions to ignore")
    return y.astype(np.int64, copy=False)


def check_anything(origin: str, y: NDArray[Any], x: NDArray[Any], settings: Data) -> Targets:
    """Return targets of a user's own loss; raise unless they are finite numbers. Whole numbers stay whole."""
    if y.ndim < 1 or y.dtype.kind not in "biuf":
        invalid("data.source", settings.source, f"{origin}: targets are {y.dtype} {y.shape}, expected numbers (n, ...)")
    if y.dtype.kind in "biu":
        return y.astype(np.int64, copy=False)
    result = y.astype(np.float32, copy=False)
    if not np.isfinite(result).all():
        invalid("data.source", settings.source, f"{origin}: targets contain NaN or infinity", "clean them first")
    return result


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
        invalid("data.options.tokens", tokens.shape[1], "predicting the next token needs 2 or more tokens", "use 25")
    x, y = next_tokens(tokens, padding=padding)
    test = None if table.test is None else _predict_next(table.test, padding)
    note = "language: every token is to be predicted from those before it"
    return replace(table, x=x, y=y, test=test, notes=(*table.notes, note))


def _refuse_label_partition(settings: Data, task: str) -> None:
    if Partition(settings.partition) in BY_LABEL:
        reason = f'needs labels, and task = "{task}" has none'
        invalid("data.partition", settings.partition, reason, 'use "iid", "by_user" or "natural"')
