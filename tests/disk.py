"""Watch or disturb the calls with which `metastep._core.storage` changes the disk."""

import builtins
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from metastep._core import storage

Around = Callable[..., Any]  # called as `around(name, call, *arguments)` in place of `call(*arguments)`
CALLS = ("fsync", "replace", "link", "unlink")  # besides "create" and "write"


class _Os:
    def __init__(self, around: Around) -> None:
        self._around = around

    def __getattr__(self, name: str) -> Any:
        return partial(self._around, name, getattr(os, name)) if name in CALLS else getattr(os, name)

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        create = partial(os.open, path, flags, mode)
        return int(self._around("create", create) if flags & os.O_CREAT else create())


class _File:
    def __init__(self, file: Any, around: Around) -> None:
        self._file, self._around = file, around

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, data: bytes) -> None:
        self._around("write", self._file.write, data)


def watch(around: Around, set_attribute: Callable[..., None] = setattr) -> None:
    """Have storage make its calls through `around`; a monkeypatch's `setattr` undoes it."""

    def opened(path: Any, mode: str = "r") -> Any:
        file = builtins.open(path, mode)  # noqa: SIM115
        return _File(file, around) if "w" in mode else file

    set_attribute(storage, "os", _Os(around))
    storage.__dict__.setdefault("open", builtins.open)
    set_attribute(storage, "open", opened)
