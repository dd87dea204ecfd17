"""Parts of blocks that are still growing, so that a stopped collection loses seconds and not a block.

    folder/part-00000-00012.safetensors   block 0 from the part before on to update 12, and what is needed to go on

The parts of a block form a chain from its first batch; they are removed once the block itself is written.
"""

import os
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from metastep import storage
from metastep.errors import InputError

_NAME = re.compile(r"part-(\d{5,})-(\d{5,})\.safetensors")


class Part(NamedTuple):
    """What happened to a block between two numbers of updates, and its state after the second."""

    since: int  # updates made before this part
    updates: int  # updates made at its end
    arrays: Mapping[str, NDArray[Any]]


class Chain(NamedTuple):
    """The parts of a block that follow one another, and what is wrong with the one after them, if any."""

    parts: tuple[Part, ...]
    problem: str | None


@dataclass(frozen=True)
class Parts:
    """The parts in the folder of a dataset.

    Args:
        folder: of the dataset.
        identity: recorded in every part; parts of another identity are not used.
    """

    folder: Path
    identity: Mapping[str, Any]

    def write(self, block: int, part: Part) -> None:
        """Write one part of a block."""
        path = self.folder / f"part-{block:05d}-{part.updates:05d}.safetensors"
        storage.write_tensors(path, part.arrays, self._metadata(block, part.since, part.updates))

    def blocks(self) -> set[int]:
        """Blocks that have parts."""
        return {block for block, _ in _found(self.folder)}

    def take_up(self, block: int) -> Chain:
        """The parts of a block as far as they can be used; the rest would be in the way of new ones and is removed."""
        chain: list[Part] = []
        files = sorted((updates, path) for (of, updates), path in _found(self.folder).items() if of == block)
        for position, (updates, path) in enumerate(files):
            since = chain[-1].updates if chain else 0
            try:
                chain.append(self._read(path, block, since, updates))
            except InputError as error:
                _remove(path for _, path in files[position:])
                return Chain(tuple(chain), str(error))
        return Chain(tuple(chain), None)

    def _read(self, path: Path, block: int, since: int, updates: int) -> Part:
        arrays, metadata = storage.read_tensors(path)
        if metadata != self._metadata(block, since, updates):
            raise InputError(f"File {path} belongs to another dataset or block, or the part before it is missing.")
        return Part(since, updates, arrays)

    def _metadata(self, block: int, since: int, updates: int) -> dict[str, Any]:
        return {**self.identity, "block": block, "since": since, "updates": updates}


def remove_parts(folder: Path, blocks: Collection[int] | None = None) -> None:
    """Remove the parts of some blocks, or all parts."""
    _remove(path for (block, _), path in _found(folder).items() if blocks is None or block in blocks)


def _remove(paths: Iterable[Path]) -> None:
    """Remove files that another process may have removed; a file that comes back after a crash is recognised again."""
    for path in paths:
        try:
            with suppress(FileNotFoundError):
                storage.DISK.unlink(path)
        except OSError as error:
            raise InputError(f"File {path} cannot be removed: {error.strerror or error}.") from error


def _found(folder: Path) -> dict[tuple[int, int], Path]:
    """The part files of a folder by block and number of updates."""
    matches = (_NAME.fullmatch(name) for name in os.listdir(folder))
    return {(int(match[1]), int(match[2])): folder / match[0] for match in matches if match}
