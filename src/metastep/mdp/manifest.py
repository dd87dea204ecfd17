"""The manifest of a dataset: what it must hold, whoever wrote it."""

from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Le
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from metastep._core import storage
from metastep._core.errors import InputError
from metastep._core.settings import Count
from metastep.mdp.blocks import Blocks

_KIND = "dataset"
_REMEDY = "collect it again with `metastep collect` or `metastep run`"
_CLOSED = ConfigDict(extra="forbid")


class _Layout(TypedDict):
    __pydantic_config__ = _CLOSED  # type: ignore[misc]

    context_names: list[str]
    features: dict[str, Count]
    num_updates: Count
    num_learners: Count
    block_size: Count
    num_hyperparameters: Count
    labels: Count


class _Manifest(TypedDict):
    __pydantic_config__ = _CLOSED  # type: ignore[misc]

    format: str
    version: int
    config: dict[str, Any]
    seed: Annotated[int, Ge(0), Le(2**32 - 1)]
    environment: dict[str, str]
    layout: _Layout
    blocks: list[Annotated[str, Field(pattern="^[0-9a-f]{64}$")]] | None
    checksum: str


_MANIFEST: TypeAdapter[_Manifest] = TypeAdapter(_Manifest)


def sealed(identity: dict[str, Any], checksums: list[str] | None) -> dict[str, Any]:
    """What a manifest holds, with the checksums of the blocks once all are there."""
    return storage.sealed(storage.stamp(_KIND) | identity | {"blocks": checksums})


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest in the folder of a dataset, checked."""
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
