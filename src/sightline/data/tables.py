"""Read tables of examples, in memory or on disk: a label column, input columns, optionally a client column.

A table is recognised by its columns: a Hugging Face data set, a pandas or polars data frame, an Arrow table, a CSV or
Parquet file. None of these packages is imported unless a Parquet file is read.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.data.federation import Option
from sightline.errors import did_you_mean, invalid
from sightline.formatting import read_text

Pair = tuple[NDArray[Any], NDArray[Any]]
"""Inputs and labels, not checked yet."""

INDEX = re.compile(r"__index_level_\d+__")
"""Name of pandas row numbers in a Parquet file (in a CSV file their column has no name). They are not inputs."""
LABELS = ("label", "labels", "y")
"""Default names of a label column."""
TOKENS = "input_ids"
"""Name that tokenizers give their column of tokens; masks and texts beside it are not inputs."""
OTHER_OPTIONS = {
    "vocabulary": Option(5000, 2, 2**31),
    "padding": Option(0, 0, 2**31),
    "size": Option(32, 1, 4096),
    "users": Option("one", choices=("one", "grouped")),
}
"""Options beside the names of columns: number of tokens, the padding token, side of images, what `by_user` makes."""


@dataclass(frozen=True)
class ColumnNames:
    """The columns to read, as `data.options` names them: `client`, `label` and `inputs`."""

    client: str = "client"
    label: str | None = None
    inputs: tuple[str, ...] | None = None
    tokens: bool = False
    """Whether whole numbers are tokens: a vocabulary is given."""
    size: int | None = None
    """Side in pixels that image files are scaled to; None if all have one size."""

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> "ColumnNames":
        """Return the column names in the options of data of the user's own; raise for an unknown option."""
        columns = ["client", "label", "inputs"]
        known = [*columns, *OTHER_OPTIONS]
        for name, value in options.items():
            if name not in known:
                invalid(f"data.options.{name}", value, "not an option of data=", did_you_mean(name, known))
            names = value if isinstance(value, list | tuple) and name == "inputs" else [value]
            if name in columns and not (names and all(isinstance(entry, str) for entry in names)):
                invalid(
                    f"data.options.{name}",
                    value,
                    "must be the name of a column",
                    f'e.g. options = {{{name} = "{name}"}}',
                )
            if name in OTHER_OPTIONS:
                OTHER_OPTIONS[name].check(name, value)
        inputs = options.get("inputs")
        named = None if inputs is None else (inputs,) if isinstance(inputs, str) else tuple(inputs)
        tokens, size = "vocabulary" in options, options.get("size")
        return cls(options.get("client", "client"), options.get("label"), named, tokens, size)


def table_columns(given: Any) -> list[str] | None:
    """Return the names of a table's columns; None for what is not a table."""
    names = _raw_names(given)
    if names is None or callable(names) or isinstance(names, str | Mapping) or not hasattr(given, "__getitem__"):
        return None
    return [str(name) for name in names if str(name) and not INDEX.fullmatch(str(name))]


def _raw_names(given: Any) -> Any:
    names = getattr(given, "column_names", None)
    return getattr(given, "columns", None) if names is None else names


# By name, not by position: files of two clients with swapped columns would otherwise be trained as one layout.
class TableReader:
    """Reader of tables with the same columns; the first table decides which columns are inputs.

    Guarantees: columns are found by name, so their order in a client's file does not matter. A table with other columns
    than the first is refused.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.names = ColumnNames.read(options)
        self._columns: list[str] | None = None
        self.picture_shape: tuple[int, ...] | None = None
        """Shape of the first image file; all others must have it."""

    def read_pair(self, origin: str, table: Any) -> Pair:
        """Return inputs and labels of a table's rows.

        A single input column is taken as it is; several are the features of a vector. Whole numbers in several columns,
        or one per row, are features too, unless a vocabulary says that they are tokens.
        """
        columns = self._same_columns(origin, table_columns(table) or [])
        labels = _whole_labels(read_column(origin, table, self._find_label(origin, columns)))
        return self.read_inputs(origin, table, self._find_inputs(origin, columns)), labels

    def read_inputs(self, origin: str, table: Any, inputs: list[str]) -> NDArray[Any]:
        """Return the named columns as inputs; raise for one that does not hold numbers, with its name."""
        result = [read_column(origin, table, name) for name in inputs]
        if len(result) == 1 and result[0].ndim != 1 and result[0].dtype.kind in "biuf":
            return channels_first(result[0])
        fit = [name for name, one in zip(inputs, result, strict=True) if one.ndim == 1 and one.dtype.kind in "biuf"]
        for name, column in zip(inputs, result, strict=True):
            if name not in fit:
                way_out = f"name the inputs: options = {{inputs = {json.dumps(fit[:8])}}}" if fit else "give numbers"
                invalid("data.options.inputs", name, f"{origin}: {_describe_cells(column)}", way_out)
            if column.dtype.kind == "f" and not np.isfinite(column).all():
                row = int(np.flatnonzero(~np.isfinite(column))[0])
                reason = f"{origin}: this column has NaN or infinity in row {row}"
                invalid("data.options.inputs", name, reason, "fill or drop such rows")
        return np.stack([one.astype(np.int64 if self.names.tokens else np.float64) for one in result], axis=1)

    def split_by_client(self, origin: str, table: Any) -> dict[Any, Pair]:
        """Return each client's rows, ordered by the sorted values of the client column."""
        x, y = self.read_pair(origin, table)
        name, owners = self.names.client, read_column(origin, table, self.names.client)
        if owners.ndim != 1:
            invalid("data.options.client", name, f"{origin}: a row names several clients", "name another column")
        try:
            values, owner = np.unique(owners, return_inverse=True)
            if any(value is None or value != value for value in values.tolist()):
                raise TypeError
        # Numbers mixed with text, or rows without a client.
        except TypeError:
            invalid(
                "data.options.client",
                name,
                f"{origin}: its values cannot be sorted",
                "fill every row with values of one type",
            )
        parts = np.split(np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner))[:-1])
        return {value: (x[part], y[part]) for value, part in zip(values.tolist(), parts, strict=True)}

    def declared_classes(self, table: Any) -> tuple[str, ...] | None:
        """Return the names of classes that a Hugging Face data set declares, or None."""
        columns, features = table_columns(table), getattr(table, "features", None)
        if columns is None or not isinstance(features, Mapping):
            return None
        # A fact of the schema, not of the rows: counting the labels of private rows would be a release.
        names = getattr(features.get(self._find_label("data", columns)), "names", None)
        return tuple(map(str, names)) if isinstance(names, list | tuple) else None

    def _same_columns(self, origin: str, columns: list[str]) -> list[str]:
        """Return the columns of the first table; raise if this table has others."""
        own = [name for name in columns if name != self.names.client]
        if self._columns is None:
            self._columns = own
        odd = sorted(set(own) ^ set(self._columns))
        if odd and self.names.inputs is None:
            invalid(
                "data",
                odd[0],
                f"{origin}: not all clients have this column",
                "give all clients the same columns, or name the inputs",
            )
        return self._columns if not odd else own

    def _find_label(self, origin: str, columns: list[str]) -> str:
        if self.names.label is not None:
            return _known_column(origin, "label", self.names.label, columns)
        result = [name for name in LABELS if name in columns]
        if len(result) != 1:
            reason = f"{origin}: {len(result) or 'none'} of its columns could be the label ({', '.join(LABELS)})"
            invalid("data.options.label", "missing", reason, f"name it; there are {', '.join(columns[:8])}")
        return result[0]

    def _find_inputs(self, origin: str, columns: list[str]) -> list[str]:
        """Return the named input columns, else all columns that are left."""
        if self.names.inputs is not None:
            return [_known_column(origin, "inputs", name, columns) for name in self.names.inputs]
        if TOKENS in columns:
            return [TOKENS]
        result = [name for name in columns if name != self._find_label(origin, columns)]
        if not result:
            invalid("data.options.inputs", "missing", f"{origin}: no column is left for the inputs", "name them")
        return result


def _known_column(origin: str, key: str, name: str, columns: list[str]) -> str:
    if name not in columns:
        invalid(f"data.options.{key}", name, f"{origin} has no such column", did_you_mean(name, columns))
    return name


def _describe_cells(column: NDArray[Any]) -> str:
    if column.ndim != 1:
        return f"a row of this column holds {column.dtype} {column.shape[1:]}, not one number"
    row = next((row for row, cell in enumerate(column.tolist()) if not _is_number(cell)), 0)
    return f"this column holds text or gaps, not numbers (row {row}: {str(column[row])[:30]!r})"


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (TypeError, ValueError):
        return False
    return True


def read_column(origin: str, table: Any, name: str) -> NDArray[Any]:
    """Return one column as an array; rows that are arrays are stacked."""
    column: Any = None
    try:
        # A data frame's columns may be numbers.
        key = next(one for one in _raw_names(table) if str(one) == name)
        column = table.with_format("numpy")[name][:] if hasattr(table, "with_format") else table[key]
        return stack_rows(column)
    except Exception as error:
        cause = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        reason = explain_lengths(column) or f"the column cannot be read as one array ({cause}); give rows of one shape"
        invalid("data", name, f"{origin}: {reason}")


def explain_lengths(rows: Any) -> str | None:
    """Return what to do about rows of several lengths, such as texts that were not padded; None for other rows."""
    try:
        lengths = {len(row) for row in rows if np.ndim(row[0]) == 0}
    except Exception:
        return None
    if len(lengths) < 2:
        return None
    how = 'pad every example to one length, e.g. tokenizer(..., padding="max_length", truncation=True)'
    return f"rows have {min(lengths)} to {max(lengths)} numbers; {how}"


def stack_rows(rows: Any) -> NDArray[Any]:
    """Return rows of one shape (numbers, arrays or pictures) as one array."""
    whole = to_array(rows)
    if whole.dtype != object and whole.ndim:
        return whole
    result = [to_array(row) for row in (whole if whole.ndim else rows)]
    return np.stack(result) if any(one.ndim for one in result) else whole


def to_array(value: Any) -> NDArray[Any]:
    """Return a numpy array of anything that holds numbers: lists, arrays, torch tensors on any device."""
    return np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)


def channels_first(x: NDArray[Any]) -> NDArray[Any]:
    """Return byte images with any channel order as (n, channels, height, width); other arrays unchanged.

    >>> channels_first(np.full((2, 4, 5, 3), 255, dtype=np.uint8)).shape
    (2, 3, 4, 5)
    """
    if x.dtype != np.uint8 or x.ndim not in (3, 4):
        return x
    return x[:, None] if x.ndim == 3 else np.moveaxis(x, -1, 1) if x.shape[-1] in (1, 3, 4) else x


def _whole_labels(labels: NDArray[Any]) -> NDArray[Any]:
    """Return labels as int64 if they are all whole numbers, since files store them as floats."""
    if labels.dtype == np.bool_:
        return labels.astype(np.int64)
    whole = labels.dtype.kind == "f" and np.isfinite(labels).all() and bool((labels == np.round(labels)).all())
    return labels.astype(np.int64) if whole else labels


def read_csv_table(path: Path) -> dict[str, NDArray[Any]]:
    """Return the columns of a CSV file with a header: float64 if every cell is a number, else text."""
    try:
        text = read_text(path)
        header = [name.strip() for name in next(csv.reader(io.StringIO(text, newline="")), [])]
        body = text.split("\n", 1)[1] if "\n" in text else ""
        if not header or not body.strip():
            invalid("data", path, "has no rows below a header", "the first line must name the columns")
        if len(set(header)) != len(header):
            invalid("data", path, "two columns have one name", "name each column once")
        try:
            # comments=None: a "#" is an error in the data, not the start of a comment.
            rows = np.loadtxt(io.StringIO(body), delimiter=",", quotechar='"', comments=None, ndmin=2)
            columns = [*rows.T]
        except ValueError:
            columns = _read_mixed_columns(path, text, len(header))
    except (OSError, ValueError, csv.Error) as error:
        cause = " ".join(str(error).split())[:120]
        invalid("data", path, f"is not a CSV file ({cause})", "one header line, then rows of as many cells")
    if len(columns) != len(header):
        invalid("data", path, f"{len(columns)} cells a row for {len(header)} columns", "name each column once")
    return dict(zip(header, columns, strict=True))


def _read_mixed_columns(path: Path, text: str, width: int) -> list[NDArray[Any]]:
    """Return the columns of a CSV file of which some hold text."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    next(reader)
    rows = []
    for row in reader:
        if row and len(row) != width:
            reason = f"line {reader.line_num} has {len(row)} cells, the header {width}"
            invalid("data", path, reason, "quote cells that contain a comma")
        if row:
            rows.append(row)
    cells = (np.array(column) for column in zip(*rows, strict=True))
    return [np.char.strip(column) if _holds_text(column) else column.astype(np.float64) for column in cells]


def _holds_text(column: NDArray[Any]) -> bool:
    try:
        column.astype(np.float64)
    except ValueError:
        return True
    return False


def read_parquet_table(path: Path) -> Any:
    """Return a Parquet file as a table, read by pyarrow or pandas."""
    if find_spec("pyarrow") is not None:
        read: Callable[[Path], Any] = import_module("pyarrow.parquet").read_table
    elif find_spec("pandas") is not None and find_spec("fastparquet") is not None:
        read = import_module("pandas").read_parquet
    else:
        invalid(
            "data", path, "reading Parquet needs pyarrow, which cannot be imported", "pip install pyarrow, or use CSV"
        )
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
    result = {path.stem: path for path in sorted(folder.iterdir()) if path.suffix in (".csv", ".parquet")}
    count = sum(path.suffix in (".csv", ".parquet") for path in folder.iterdir())
    if not result or len(result) != count:
        reason = "two files have the same client" if result else "has no .csv or .parquet file"
        invalid("data", folder, reason, "give one file for each client")
    return result
