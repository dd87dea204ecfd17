"""Parts of an unfinished block on disk, so that a stopped collection loses seconds and not a block.

    folder/part-00000-00012.safetensors   block 0 from the part before on to update 12, and what is needed to go on

The parts of a block form a chain from its first batch; they are removed once the block itself is written.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from metastep._core import storage
from metastep._core.errors import InputError
from metastep.mdp import Learners, MetaMDP, Tasks
from metastep.mdp.history import from_arrays, joined
from metastep.mdp.loop import Growth

_NAME = re.compile(r"part-(\d{5,})-(\d{5,})\.safetensors")
_PIECE, _LEARNERS = "piece.", "learners."


@dataclass(frozen=True)
class Parts:
    """The parts in the folder of a dataset."""

    folder: Path
    identity: Mapping[str, Any]  # recorded in every part; parts of another identity are not used

    def write(self, block: int, growth: Growth, since: int) -> None:
        """Write what is new of a block since another halt, and its learners.

        All of the estimate is kept although the episodes could be simulated again: a program compiled for that could differ
        from the loop's in the last bits.
        """
        ends = accumulate(len(piece.hyperparameters) for piece in growth.pieces)
        piece = joined([piece for piece, end in zip(growth.pieces, ends, strict=True) if end > since])
        arrays = {f"{_PIECE}{name}": array for name, array in piece.to_arrays().items()}
        arrays |= {name: np.asarray(leaf) for name, leaf in _leaves(growth.learners).items()}
        path = self.folder / f"part-{block:05d}-{growth.updates:05d}.safetensors"
        storage.write_tensors(path, arrays, self._metadata(block, since, growth.updates))

    def blocks(self) -> set[int]:
        """Return the blocks that have parts."""
        return {block for block, _ in _found(self.folder)}

    def take_up(self, block: int, mdp: MetaMDP, tasks: Tasks) -> tuple[Growth | None, str | None]:
        """Return a block where its usable parts end, and what is wrong with the part after them, if anything.

        Unusable parts are removed: they would be in the way of new ones.
        """
        growth: Growth | None = None
        files = sorted((end, path) for (of, end), path in _found(self.folder).items() if of == block)
        like: Any = mdp.begin(tasks) if files else None  # learners of the same form
        for position, (end, path) in enumerate(files):
            try:
                arrays, metadata = storage.read_tensors(path)
                if metadata != self._metadata(block, growth.updates if growth else 0, end):
                    raise InputError(f"File {path} is of another dataset or block, or the part before it is missing.")
                kinds = {name: (leaf.shape, leaf.dtype) for name, leaf in _leaves(like).items()}
                of_piece = {name: arrays.pop(name) for name in list(arrays) if name.startswith(_PIECE)}
                try:
                    if {name: (array.shape, array.dtype) for name, array in arrays.items()} != kinds:
                        raise TypeError
                    piece = from_arrays({name.removeprefix(_PIECE): array for name, array in of_piece.items()})
                except TypeError:
                    raise InputError(f"File {path} does not hold what this version keeps.") from None
            except InputError as error:
                _remove(path for _, path in files[position:])
                return growth, str(error)
            # Copies: the files behind these arrays will be removed.
            leaves = [jnp.array(arrays[name]) for name in kinds]
            kept: Learners = jax.tree.unflatten(jax.tree.structure(_without_key(like)), leaves)
            growth = Growth(end, (*(growth.pieces if growth else ()), piece), kept._replace(key=tasks.key))
        return growth, None

    def _metadata(self, block: int, since: int, updates: int) -> dict[str, Any]:
        return {**self.identity, "block": block, "since": since, "updates": updates}


def _without_key(learners: Learners) -> Learners:
    """The key is the block's, which the seed gives again, and no array of numbers."""
    return learners._replace(key=None)  # type: ignore[arg-type]


def _leaves(learners: Learners) -> dict[str, Array]:
    """Return every array of the learners, in the tree's order, by a name like learners.estimate.gradient."""
    leaves = jax.tree_util.tree_leaves_with_path(_without_key(learners))
    return {_LEARNERS + jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def remove_parts(folder: Path, blocks: Collection[int] | None = None) -> None:
    """Remove the parts of some blocks, or all parts."""
    _remove(path for (block, _), path in _found(folder).items() if blocks is None or block in blocks)


def _remove(paths: Iterable[Path]) -> None:
    """Remove files that another process may have removed; a file that comes back after a crash is recognised again."""
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"File {path} cannot be removed: {error.strerror or error}.") from error


def _found(folder: Path) -> dict[tuple[int, int], Path]:
    """The part files of a folder by block and number of updates."""
    matches = (_NAME.fullmatch(path.name) for path in folder.iterdir())
    return {(int(match[1]), int(match[2])): folder / match[0] for match in matches if match}
