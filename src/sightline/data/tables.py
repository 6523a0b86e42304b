"""Read tables of examples, in memory or on disk: a label column, input columns, optionally a client column.

A table is recognised by its columns: a Hugging Face data set, a pandas or polars data frame, an Arrow table, a CSV or
Parquet file. None of these packages is imported unless a Parquet file is read.
"""

import csv
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.errors import did_you_mean, invalid
from sightline.formatting import read_text

Pair = tuple[NDArray[Any], NDArray[Any]]
"""Inputs and labels, not checked yet."""

INDEX = re.compile(r"__index_level_\d+__")
"""Name of pandas row numbers in a Parquet file (in a CSV file their column has no name). They are not inputs."""
LABELS = ("label", "labels", "y")
"""Default names of a label column."""


@dataclass(frozen=True)
class ColumnNames:
    """The columns to read, as `data.options` names them: `client`, `label` and `inputs`."""

    client: str = "client"
    label: str | None = None
    inputs: tuple[str, ...] | None = None
    tokens: bool = False
    """Whether whole numbers are tokens: a vocabulary is given."""

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> "ColumnNames":
        """Return the column names in the options of data passed from Python; raise for an unknown option."""
        known = ["client", "label", "inputs", "vocabulary"]
        for name, value in options.items():
            if name not in known:
                invalid(f"data.options.{name}", value, "not an option of data=", did_you_mean(name, known))
            words = value if isinstance(value, list | tuple) and name == "inputs" else [value]
            if name != "vocabulary" and not (words and all(isinstance(word, str) for word in words)):
                invalid(f"data.options.{name}", value, "names a column", f'e.g. options = {{{name} = "{name}"}}')
        inputs = options.get("inputs")
        named = None if inputs is None else (inputs,) if isinstance(inputs, str) else tuple(inputs)
        return cls(options.get("client", "client"), options.get("label"), named, "vocabulary" in options)


def table_columns(given: Any) -> list[str] | None:
    """Return the names of a table's columns; None for what is not a table."""
    names = getattr(given, "column_names", None)
    if names is None:
        names = getattr(given, "columns", None)
    if names is None or callable(names) or isinstance(names, str | Mapping) or not hasattr(given, "__getitem__"):
        return None
    return [str(name) for name in names if str(name) and not INDEX.fullmatch(str(name))]


# By name, not by position: files of two clients with swapped columns would otherwise be trained as one layout.
class TableReader:
    """Reader of tables with the same columns; the first table decides which columns are inputs.

    Guarantees: columns are found by name, so their order in a client's file does not matter. A table with other columns
    than the first is refused.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.names = ColumnNames.read(options)
        self._columns: list[str] | None = None

    def read_pair(self, who: str, table: Any) -> Pair:
        """Return inputs and labels of a table's rows.

        A single input column is taken as it is; several are the features of a vector. Whole numbers in several columns,
        or one per row, are features too, unless a vocabulary says that they are tokens.
        """
        columns = self._same_columns(who, table_columns(table) or [])
        labels = _whole_labels(read_column(who, table, self._find_label(who, columns)))
        inputs = self._find_inputs(who, columns)
        found = [read_column(who, table, name) for name in inputs]
        if len(found) == 1 and found[0].ndim != 1:
            return scale_pictures(found[0]), labels
        strange = [one for one in found if one.ndim != 1 or one.dtype.kind not in "biuf"]
        if strange:
            law = f"{who}: an input column holds {strange[0].dtype} {strange[0].shape[1:]}, not one number a row"
            invalid("data.options.inputs", inputs, law, "name the columns to use")
        return np.stack([one.astype(np.int64 if self.names.tokens else np.float64) for one in found], axis=1), labels

    def split_by_client(self, who: str, table: Any) -> dict[Any, Pair]:
        """Return each client's rows, ordered by the sorted values of the client column."""
        x, y = self.read_pair(who, table)
        name, owners = self.names.client, read_column(who, table, self.names.client)
        if owners.ndim != 1:
            invalid("data.options.client", name, f"{who}: a row has several clients", "name another column")
        try:
            values, owner = np.unique(owners, return_inverse=True)
            if any(value is None or value != value for value in values.tolist()):
                raise TypeError
        # Numbers mixed with text, or rows without a client.
        except TypeError:
            invalid("data.options.client", name, f"{who}: its values cannot be ordered", "fill every row alike")
        parts = np.split(np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner))[:-1])
        return {value: (x[part], y[part]) for value, part in zip(values.tolist(), parts, strict=True)}

    def label_count(self, table: Any) -> int | None:
        """Return the number of classes that a Hugging Face data set declares, or None."""
        columns, features = table_columns(table), getattr(table, "features", None)
        if columns is None or not isinstance(features, Mapping):
            return None
        # A fact of the schema, not of the rows: counting the labels of private rows would be a release.
        count = getattr(features.get(self._find_label("data", columns)), "num_classes", None)
        return count if isinstance(count, int) else None

    def _same_columns(self, who: str, columns: list[str]) -> list[str]:
        """Return the columns of the first table; raise if this table has others."""
        own = [name for name in columns if name != self.names.client]
        if self._columns is None:
            self._columns = own
        odd = sorted(set(own) ^ set(self._columns))
        if odd and self.names.inputs is None:
            invalid("data", odd[0], f"{who}: not all clients have this column", "give all the same, or name the inputs")
        return self._columns if not odd else own

    def _find_label(self, who: str, columns: list[str]) -> str:
        if self.names.label is not None:
            return _known_column(who, "label", self.names.label, columns)
        found = [name for name in LABELS if name in columns]
        if len(found) != 1:
            law = f"{who}: {len(found) or 'none'} of its columns could be the label ({', '.join(LABELS)})"
            invalid("data.options.label", "missing", law, f"name it; there are {', '.join(columns[:8])}")
        return found[0]

    def _find_inputs(self, who: str, columns: list[str]) -> list[str]:
        """Return the named input columns, else all columns that are left."""
        if self.names.inputs is not None:
            return [_known_column(who, "inputs", name, columns) for name in self.names.inputs]
        found = [name for name in columns if name != self._find_label(who, columns)]
        if not found:
            invalid("data.options.inputs", "missing", f"{who}: no column is left for the inputs", "name them")
        return found


def _known_column(who: str, key: str, name: str, columns: list[str]) -> str:
    if name not in columns:
        invalid(f"data.options.{key}", name, f"{who} has no such column", did_you_mean(name, columns))
    return name


def read_column(who: str, table: Any, name: str) -> NDArray[Any]:
    """Return one column as an array; rows that are arrays are stacked."""
    try:
        column = table.with_format("numpy")[name][:] if hasattr(table, "with_format") else table[name]
        return stack_rows(column)
    except Exception as error:
        cause = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        invalid("data", name, f"{who}: the column cannot be read as one array ({cause})", "give rows of one shape")


def stack_rows(rows: Any) -> NDArray[Any]:
    """Return rows of one shape (numbers, arrays or pictures) as one array."""
    whole = to_array(rows)
    if whole.dtype != object and whole.ndim:
        return whole
    found = [to_array(row) for row in (whole if whole.ndim else rows)]
    return np.stack(found) if any(one.ndim for one in found) else whole


def to_array(value: Any) -> NDArray[Any]:
    """Return a numpy array of anything that holds numbers: lists, arrays, torch tensors on any device."""
    return np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)


def scale_pictures(x: NDArray[Any]) -> NDArray[Any]:
    """Return byte images with any channel order as (n, channels, height, width) in [0, 1]; other arrays unchanged.

    >>> scale_pictures(np.full((2, 4, 5, 3), 255, dtype=np.uint8)).shape
    (2, 3, 4, 5)
    """
    if x.dtype != np.uint8 or x.ndim not in (3, 4):
        return x
    first = x[:, None] if x.ndim == 3 else np.moveaxis(x, -1, 1) if x.shape[-1] in (1, 3, 4) else x
    scaled: NDArray[np.float32] = np.divide(first, np.float32(255), dtype=np.float32)
    return scaled


def _whole_labels(labels: NDArray[Any]) -> NDArray[Any]:
    """Return labels as int64 if they are all whole numbers, since files store them as floats."""
    if labels.dtype == np.bool_:
        return labels.astype(np.int64)
    whole = labels.dtype.kind == "f" and np.isfinite(labels).all() and bool((labels == np.round(labels)).all())
    return labels.astype(np.int64) if whole else labels


def read_csv_table(path: Path) -> dict[str, NDArray[np.float64]]:
    """Return the columns of a CSV file of numbers with a header."""
    try:
        text = read_text(path)
        header = next(csv.reader(io.StringIO(text, newline="")), [])
        body = text.split("\n", 1)[1] if "\n" in text else ""
        if not header or not body.strip():
            invalid("data", path, "has no rows below a header", "its first line names the columns")
        # comments=None: a "#" is an error in the data, not the start of a comment.
        rows = np.loadtxt(io.StringIO(body), delimiter=",", quotechar='"', comments=None, ndmin=2)
    except (OSError, ValueError, csv.Error) as error:
        cause = " ".join(str(error).split())[:120]
        invalid("data", path, f"is not a CSV file of numbers ({cause})", "one header line, then numbers")
    if rows.shape[1] != len(header) or len(set(header)) != len(header):
        invalid("data", path, f"{rows.shape[1]} numbers a row for {len(header)} columns", "name each column once")
    return {name.strip(): rows[:, place] for place, name in enumerate(header)}


def read_parquet_table(path: Path) -> Any:
    """Return a Parquet file as a table, read by pyarrow or pandas."""
    if find_spec("pyarrow") is not None:
        read: Callable[[Path], Any] = import_module("pyarrow.parquet").read_table
    elif find_spec("pandas") is not None and find_spec("fastparquet") is not None:
        read = import_module("pandas").read_parquet
    else:
        invalid("data", path, "Parquet is read by pyarrow, which cannot be imported", "pip install pyarrow, or use CSV")
    try:
        return read(path)
    except Exception as error:
        cause = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        invalid("data", path, f"is not a Parquet file ({cause})")


class FileTable:
    """The columns of one file, as a table."""

    def __init__(self, path: Path) -> None:
        table = read_csv_table(path) if path.suffix == ".csv" else read_parquet_table(path)
        self._table, self.column_names = table, [*table] if isinstance(table, dict) else table_columns(table)

    def __getitem__(self, name: str) -> Any:
        return self._table[name]


def list_files(folder: Path) -> dict[str, Path]:
    """Return the CSV and Parquet files of a folder by name, sorted; raise if there are none or two per client."""
    found = {path.stem: path for path in sorted(folder.iterdir()) if path.suffix in (".csv", ".parquet")}
    count = sum(path.suffix in (".csv", ".parquet") for path in folder.iterdir())
    if not found or len(found) != count:
        law = "two files are of one client" if found else "holds no .csv or .parquet file"
        invalid("data", folder, law, "give one file for each client")
    return found
