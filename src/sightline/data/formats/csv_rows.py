"""Gzipped CSV tables with a header."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from sightline.data.formats.broken import raise_broken
from sightline.data.formats.gz import read_gzip

MOST_CSV_BYTES = 2**30


def read_csv(path: Path, columns: Sequence[str]) -> list[tuple[str, ...]]:
    """The named columns of every row, as text.

    Guarantees: unpacks at most 1 GiB; every row has as many fields as the header.
    """
    try:
        text = read_gzip(path, most=MOST_CSV_BYTES).decode("utf-8")
        rows = csv.reader(io.StringIO(text, newline=""), strict=True)
        header = next(rows, [])
        places = [_column_place(path, header, column) for column in columns]
        return [tuple(_check_row(path, row, header, rows.line_num)[place] for place in places) for row in rows]
    except UnicodeDecodeError:
        raise_broken(path, "is not UTF-8 text")
    except csv.Error as error:
        raise_broken(path, f"is not a CSV table ({error})")


def _column_place(path: Path, header: list[str], column: str) -> int:
    if column not in header:
        raise_broken(path, f'has no column "{column}"')
    return header.index(column)


def _check_row(path: Path, row: list[str], header: list[str], line: int) -> list[str]:
    if len(row) != len(header):
        raise_broken(path, f"line {line} has {len(row)} fields, the header {len(header)}")
    return row
