"""Compiled functions whose machine code is kept on disk where that is possible, and used only if it is undamaged.

Numba alone fails on import where no folder for its cache can be written, and on the first call where a file of it is damaged;
it would even run damaged machine code. Here a cache that does not work costs the seconds of a compilation, nothing else.
"""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function on its first call, without the interpreter's lock."""
    try:
        compiled: Any = numba.njit(cache=True, nogil=True)(function)
    except (RuntimeError, OSError):  # no folder to keep it in
        return numba.njit(nogil=True)(function)
    compiled._cache = _Cache(compiled._cache)
    return compiled


class _Cache:
    """Numba's cache of one function; what goes wrong in it is as if nothing were kept."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        files = cache._cache_file
        load, save, path = files._load_data, files._save_data, files._data_path

        def checked(name: str) -> Any:
            if _digest(path(name)) != _sum_of(path(name)).read_text():
                raise ValueError(f"{name} is damaged")
            return load(name)

        def summed(name: str, data: Any) -> None:
            save(name, data)
            _sum_of(path(name)).write_text(_digest(path(name)))

        files._load_data, files._save_data = checked, summed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def load_overload(self, *arguments: Any) -> Any:
        """The kept code, or None; a damaged index is emptied, since it would be in the way of a new one."""
        try:
            return self._cache.load_overload(*arguments)
        except Exception:  # whatever reading damaged files ends in
            with suppress(Exception):
                self._cache.flush()
            return None

    def save_overload(self, *arguments: Any) -> None:
        """Keep code, if that can be done."""
        with suppress(Exception):
            self._cache.save_overload(*arguments)


def _sum_of(path: str) -> Path:
    return Path(f"{path}.sha256")


def _digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
