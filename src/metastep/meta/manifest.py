"""The manifest of a dataset: the shape of what is in it, and what a file must hold to be one."""

import math
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from annotated_types import Ge, Le
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from metastep import storage
from metastep.blocks import Blocks
from metastep.errors import InputError
from metastep.meta.history import History
from metastep.settings import Count

_KIND = "dataset"
_REMEDY = "collect it again with `metastep collect` or `metastep run`"
_HEADER_BYTES = 8192  # of a block's file, at most


class Layout(NamedTuple):
    """The shape of a dataset: who is in it, what is kept of them, and how it is cut into blocks."""

    context_names: tuple[str, ...]
    features: dict[str, int]  # the size of each
    num_updates: int
    num_learners: int
    block_size: int
    num_hyperparameters: int = 1

    @property
    def blocks(self) -> Blocks:
        """The blocks of learners; the last one may be smaller."""
        return Blocks(self.num_learners, self.block_size)

    def shapes(self, block: int) -> dict[str, tuple[int, ...]]:
        """The shape of every array of one block."""
        observations, learners = self.num_updates + 1, self.blocks.num_valid(block)
        return {
            "context": (learners, len(self.context_names)),
            **dict.fromkeys(("mean_return", "flagged", "num_steps"), (observations, learners)),
            "hyperparameters": (self.num_updates, learners, self.num_hyperparameters),
            **{f"feature/{name}": (observations, learners, size) for name, size in self.features.items()},
        }

    def num_bytes(self, block: int) -> int:
        """Disk space that one block takes at most."""
        return sum(4 * math.prod(shape) for shape in self.shapes(block).values()) + _HEADER_BYTES

    def check(self, index: int, history: History, where: str) -> None:
        """Refuse a block that does not have the arrays and shapes of this layout."""
        arrays, expected = history.to_arrays(), self.shapes(index)
        for name in expected.keys() | arrays.keys():
            found = arrays[name].shape if name in arrays else "nothing"
            if found != expected.get(name, "nothing"):
                raise InputError(f"{where}: {name} has shape {found}, expected is {expected.get(name, 'nothing')}.")


class _LayoutRecord(TypedDict):
    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    context_names: list[str]
    features: dict[str, Count]
    num_updates: Count
    num_learners: Count
    block_size: Count
    num_hyperparameters: Count


class _Manifest(TypedDict):
    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    format: str
    version: int
    config: dict[str, Any]
    seed: Annotated[int, Ge(0), Le(2**32 - 1)]
    environment: dict[str, str]
    layout: _LayoutRecord
    blocks: list[Annotated[str, Field(pattern="^[0-9a-f]{64}$")]] | None
    checksum: str


_MANIFEST: TypeAdapter[_Manifest] = TypeAdapter(_Manifest)


def sealed_manifest(identity: dict[str, Any], checksums: list[str] | None) -> dict[str, Any]:
    """The content of a manifest; without checksums, of a dataset that is not complete."""
    return storage.sealed(storage.stamp(_KIND) | identity | {"blocks": checksums})


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a dataset, checked: anybody may have written it."""
    path = folder / "manifest.json"
    manifest = storage.read_sealed(path, _KIND, _REMEDY)
    # A checksum is no proof: anybody can compute one.
    try:
        _MANIFEST.validate_python(manifest, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise InputError(
            f"File {path} is not a whole manifest: {'.'.join(map(str, first['loc']))}: {first['msg']}."
        ) from None
    blocks, layout = manifest["blocks"], manifest["layout"]
    if blocks is not None and len(blocks) != len(Blocks(layout["num_learners"], layout["block_size"])):
        raise InputError(
            f"File {path} is not a whole manifest: it has {len(blocks)} checksums, another number of blocks."
        )
    return manifest
