"""Log every update as a row of a CSV file, written immediately."""

import csv
import io
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from metastep._core.errors import InputError, shown
from metastep._core.storage import read_bytes, translate_os_errors, write_atomically

Log = Callable[[int, Mapping[str, Any]], None]
"""Receives the number of an update, from 0, and its quantities by name."""
AnyLog = Log | str | os.PathLike[str] | None  # a path names a CSV file

# Text that a spreadsheet would run as a formula: it begins with =, @, + or -. Signed numbers are exempt, because rows that are
# read back from a file hold their numbers as text.
_FORMULA = re.compile(r" *([=@]|[+-](?!(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$|inf$|nan$))")


class CSVLog:
    """Append a row for each update to a file.

    Update 0 starts a new file. An update that was written before, as after restoring a learner, replaces its row and later ones.
    A file of an earlier version, which lacks a column, gets it, with nothing in the earlier rows.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._columns: list[str] = []
        self._last: int | None = None  # the last update written
        self._rows()  # fails now, before training, if the file is not a log

    def __call__(self, update: int, numbers: Mapping[str, Any]) -> None:
        columns = next(csv.reader([to_csv([["update", *numbers]])]))  # as a file holds them
        if self._last is None or update <= self._last:
            known, *rows = (self._rows() if update else []) or [columns]
            # A kill may have cut the last row.
            complete = (row for row in rows if len(row) == len(known) and row[0].isdecimal())
            earlier = [dict(zip(known, row, strict=True)) for row in complete if int(row[0]) < update]
            self._columns = columns if set(known) <= set(columns) else known
            table = [[row.get(name, "") for name in self._columns] for row in earlier]
            write_atomically(self.path, to_csv([self._columns, *table]).encode())
        if columns != self._columns:
            raise InputError(f"File {self.path} has the columns {', '.join(self._columns)}, not {', '.join(columns)}.")
        with translate_os_errors(f"File {self.path} cannot be written"), self.path.open("a", encoding="utf-8") as file:
            file.write(to_csv([[update, *numbers.values()]]))
        self._last = update

    def _rows(self) -> list[list[str]]:
        """Return the rows of an existing file, the header first."""
        text = read_bytes(self.path).decode("utf-8", "replace") if self.path.exists() else ""
        if text and not text.startswith("update,"):
            raise InputError(f"File {self.path} is not a log of updates; name another one.")
        return list(csv.reader(io.StringIO(text)))


def to_csv(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as CSV, with a quote before text that a spreadsheet would run as a formula."""

    def cell(value: Any) -> Any:
        if not isinstance(value, str):
            # Nine digits identify a float32; csv writes NumPy's float32 with the fewest digits that identify it.
            return f"{value:.9g}" if isinstance(value, float) else value
        line = "".join(each if each.isprintable() else " " for each in value)
        return f"'{line}" if _FORMULA.match(line) else line

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(cell, row) for row in rows)
    return text.getvalue()


def as_log(log: AnyLog) -> Log | None:
    """Return a `CSVLog` for a path, and a function or None unchanged."""
    if not (log is None or callable(log) or isinstance(log, str | os.PathLike)):
        raise InputError(f"log is {shown(log)}, allowed are a function, the path of a CSV file and None.")
    return CSVLog(log) if isinstance(log, str | os.PathLike) else log
