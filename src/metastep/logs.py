"""A plain log of updates: one row of a CSV file for each, written as it happens."""

import csv
import io
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from metastep.errors import InputError
from metastep.storage import read_bytes

Log = Callable[[int, Mapping[str, Any]], None]
"""Is told the number of an update, from 0, and what is known of it, by name."""


class CSVLog:
    """Appends a row for each update; the first one decides the columns. A file of the same columns is gone on with.

    Args:
        path: of the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._columns: list[str] | None = None
        if self.path.exists() and (content := read_bytes(self.path)):
            self._columns = next(csv.reader(io.StringIO(content.decode("utf-8", "replace"))))

    def __call__(self, update: int, numbers: Mapping[str, Any]) -> None:
        """Write a row."""
        columns, rows = ["update", *numbers], [[update, *numbers.values()]]
        if self._columns is None:
            self._columns, rows = columns, [columns, *rows]
        if columns != self._columns:
            raise InputError(
                f"File {self.path} has the columns {', '.join(self._columns)}, to write are {', '.join(columns)}."
            )
        try:
            with open(self.path, "a", encoding="utf-8", newline="") as file:
                file.write(to_csv(rows))
        except OSError as error:
            raise InputError(f"File {self.path} cannot be written: {error.strerror or error}.") from error


def to_csv(rows: Iterable[Iterable[Any]]) -> str:
    """Rows as CSV; numbers in as many digits as tell them apart."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [f"{cell:.9g}" if isinstance(cell, float) else cell for cell in row] for row in rows
    )
    return text.getvalue()


def as_log(log: Log | str | os.PathLike[str] | None) -> Log | None:
    """A log, where there is one; a path is a CSV file."""
    return CSVLog(log) if isinstance(log, str | os.PathLike) else log
