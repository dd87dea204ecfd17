"""The meta-dataset on disk: one safetensors file for each block of learners, and a manifest.

    folder/manifest.json             configuration, seed, versions, device, layout and, once complete, all checksums
    folder/block-00000.safetensors   the arrays of a `History`; features are columns by name

Beside the files of blocks lie the checkpoints of unfinished ones (see `metastep.mdp.loop.Checkpoints`); a complete dataset has
none. Files contain neither times nor anything else that depends on how the work was split or how often it was interrupted.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from metastep._core import storage
from metastep._core.errors import InputError
from metastep._core.provenance import environment_record, first_difference
from metastep._core.settings import Count, from_json
from metastep.mdp import DEFAULT_OBSERVATION
from metastep.mdp.blocks import Blocks
from metastep.mdp.history import History, Outcomes, Transitions, from_arrays
from metastep.mdp.loop import Checkpoints

_HEADER_BYTES = 8192  # of a block's file, at most


class Layout(NamedTuple):
    """The shape of a dataset: its learners, what is kept of them, and how it is cut into blocks."""

    context_names: tuple[str, ...]
    features: dict[str, Count]  # the size of each
    num_updates: Count
    num_learners: Count
    block_size: Count
    num_hyperparameters: Count = 1
    labels: Count = 1  # updates evaluated at every state, including the one that was applied

    @property
    def blocks(self) -> Blocks:
        """The blocks of learners; the last one may be smaller."""
        return Blocks(self.num_learners, self.block_size)

    def shapes(self, block: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of every array of one block."""
        learners, updates = self.blocks.num_valid(block), self.num_updates
        moments: dict[str, tuple[int, ...]] = {"": (updates + 1, learners)}
        if self.labels > 1:  # candidates
            moments["tried/"] = (updates, self.labels - 1, learners)
        shapes: dict[str, tuple[int, ...]] = {"context": (learners, len(self.context_names))}
        for prefix, seen in moments.items():
            shapes |= {f"{prefix}{name}": seen for name in ("mean_return", "flagged", "num_steps")}
            shapes |= {f"{prefix}feature/{name}": (*seen, size) for name, size in self.features.items()}
            shapes[f"{prefix}hyperparameters"] = (updates, *seen[1:], self.num_hyperparameters)
        return shapes

    def num_bytes(self, block: int) -> int:
        """Return the disk space that one block takes at most."""
        return sum(4 * math.prod(shape) for shape in self.shapes(block).values()) + _HEADER_BYTES

    def check(self, index: int, arrays: Mapping[str, NDArray[Any]], where: str) -> None:
        """Raise an error if the arrays of a block do not have the names and shapes of this layout."""
        expected, actual = self.shapes(index), {name: array.shape for name, array in arrays.items()}
        for name in sorted(expected.keys() | actual.keys()):
            shape, expected_shape = (shapes.get(name, "nothing") for shapes in (actual, expected))
            if shape != expected_shape:
                raise InputError(f"{where}: {name} has shape {shape}, expected is {expected_shape}.")

    def read(self, folder: Path, index: int) -> History:
        """Read one block of a dataset, without verifying its checksum."""
        path = _block_path(folder, index)
        arrays = storage.read_tensors(path, verify=False).arrays
        self.check(index, arrays, f"File {path}")
        return from_arrays(arrays)


class _Manifest(TypedDict):
    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    format: str
    version: int
    config: dict[str, Any]
    seed: Annotated[int, Ge(0), Le(2**32 - 1)]
    environment: dict[str, str]
    layout: Layout
    blocks: list[Annotated[str, Field(pattern="^[0-9a-f]{64}$")]] | None
    checksum: str


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    manifest = storage.read_checked_json(path, "dataset", "collect it again with `metastep collect` or `metastep run`")
    # A valid checksum is no proof of a valid manifest.
    from_json(TypeAdapter(_Manifest), manifest, f"File {path} is not a whole manifest")
    blocks, layout = manifest["blocks"], manifest["layout"]
    if blocks is not None and len(blocks) != len(Blocks(layout["num_learners"], layout["block_size"])):
        raise InputError(f"File {path} is not a whole manifest: {len(blocks)} checksums are not one for each block.")
    return manifest


class Counts(NamedTuple):
    """Numbers of transitions in a dataset."""

    transitions: int
    flagged: int  # with a zero or non-finite estimate before or after the update
    excluded: int  # with a non-finite number; `Dataset.transitions` leaves them out
    num_steps: float  # environment steps simulated to collect them


class DatasetWriter:
    """Create a dataset or resume one; several processes may add blocks to the same folder at the same time.

    To resume a dataset, `config` and `seed` must be the same and, unless it is complete, also the device and the versions of
    packages that affect numbers (`environment_record`, whose arguments are the others). `damaged` has a sentence for each damaged
    block file; such blocks count as missing.
    """

    def __init__(
        self, folder: str | Path, layout: Layout, config: Mapping[str, Any], *, seed: int, **environment: Any
    ) -> None:
        from_json(TypeAdapter(Layout), layout._asdict(), f"Dataset {folder}")
        self.folder, self.layout, self._environment = Path(folder), layout, environment_record(**environment)
        identity = {"config": config, "seed": seed, "environment": self._environment, "layout": layout._asdict()}
        # Through JSON and back, so that a tuple equals the list that will be read from the manifest.
        self._identity = json.loads(json.dumps(identity, allow_nan=False))
        path = self.folder / "manifest.json"
        if not path.exists():
            storage.require_free_space(self.folder, sum(map(layout.num_bytes, layout.blocks)))
            storage.create_folder(self.folder)
            # A block without a manifest cannot come from an interrupted run: it belongs to something else.
            files = sorted(file for kind in ("block", "part") for file in self.folder.glob(f"{kind}-*.safetensors"))
            if files and not path.exists():
                holds = f"holds {files[0].name} but no manifest.json"
                raise InputError(f"Folder {self.folder} {holds}; use another folder.")
            # Another process may have written it meanwhile.
            storage.write_atomically(path, storage.canonical_json(self._manifest(None)), overwrite=False)
        manifest = _read_manifest(self.folder)
        if manifest["blocks"] is not None:
            # Nothing is left to compute. Should a block be damaged, its new version must match the checksum anyway.
            self._identity["environment"] = manifest["environment"]
        if difference := first_difference({key: manifest[key] for key in self._identity}, self._identity):
            started = "was started with {} = {}, which is now {}".format(*difference)
            raise InputError(f"Dataset {self.folder} {started}; resume with the same setting or use another folder.")
        self._digest = storage.sha256_of_json(self._identity)  # recorded in every file
        storage.remove_leftovers(self.folder)
        problems = self.problems()
        self.damaged = tuple(text for index, text in problems.items() if self.path(index).exists())
        self.checkpoints.remove(set(layout.blocks) - problems.keys())
        storage.require_free_space(self.folder, sum(map(layout.num_bytes, problems)))

    @property
    def checkpoints(self) -> Checkpoints:
        """The checkpoints of blocks that are not complete."""
        # All segments of a block must come from the same packages and device, even when a complete dataset is repaired.
        return Checkpoints(self.folder, {"dataset": self._digest, "environment": self._environment})

    def add(self, index: int, history: History) -> None:
        """Write one block and remove its checkpoint; learners beyond those of the layout (padding) are cut off."""
        arrays = history.select_learners(0, self.layout.blocks.num_valid(index)).to_arrays()
        self.layout.check(index, arrays, f"Block {index}")
        storage.write_tensors(self.path(index), arrays, self._metadata(index))
        self.checkpoints.remove({index})

    def path(self, index: int) -> Path:
        """Return the path of a block."""
        return _block_path(self.folder, index)

    def problem(self, index: int) -> str:
        """Return one sentence on what is wrong with a block's file; "" if it is complete and belongs to this dataset."""
        try:
            belongs = storage.read_tensors(self.path(index)).metadata == self._metadata(index)
        except InputError as error:
            return str(error)
        return "" if belongs else f"File {self.path(index)} belongs to another dataset or block."

    def problems(self) -> dict[int, str]:
        """Return one sentence for each block that is missing or cannot be used; read every block file."""
        return {index: problem for index in self.layout.blocks if (problem := self.problem(index))}

    def finish(self) -> "Dataset":
        """Verify all blocks and write the manifest with their checksums."""
        if problems := self.problems():
            raise InputError(f"Dataset {self.folder} is not complete: {problems[min(problems)]}")
        self.checkpoints.remove()
        checksums = [storage.sha256_of(self.path(index)) for index in self.layout.blocks]
        before = _read_manifest(self.folder)["blocks"]
        if before is None:
            storage.write_json(self.folder / "manifest.json", self._manifest(checksums))
        elif before != checksums:
            index = next(i for i, checksum in enumerate(checksums) if before[i] != checksum)
            raise InputError(f"File {self.path(index)} differs from the one whose checksum is in the manifest.")
        return Dataset.open(self.folder, verify=False)

    def _manifest(self, checksums: list[str] | None) -> dict[str, Any]:
        return storage.with_checksum(storage.stamp("dataset") | self._identity | {"blocks": checksums})

    def _metadata(self, index: int) -> dict[str, Any]:
        return {"block": index, "dataset": self._digest}


@dataclass(frozen=True)
class Dataset:
    """A complete dataset; blocks are read from their files on request, never all at once."""

    folder: Path
    layout: Layout
    config: dict[str, Any]
    seed: int
    environment: dict[str, str]
    checksum: str  # of the manifest, which has the checksums of all blocks

    @classmethod
    def open(cls, folder: str | Path, *, verify: bool = True) -> Self:
        """Open a dataset; unless `verify` is false, compare every file with its checksum."""
        folder = Path(folder)
        manifest = _read_manifest(folder)
        checksums, layout = manifest["blocks"], manifest["layout"]
        layout = Layout(**(layout | {"context_names": tuple(layout["context_names"])}))
        if checksums is None:
            blocks = f"{len(list(folder.glob('block-*.safetensors')))} of {len(layout.blocks)} blocks are there"
            raise InputError(f"Dataset {folder} is not complete: {blocks}; run the command that collects it again.")
        for index, checksum in enumerate(checksums if verify else ()):
            storage.read_tensors(_block_path(folder, index), checksum)
        return cls(folder, layout, **{key: manifest[key] for key in ("config", "seed", "environment", "checksum")})

    def counts(self) -> Counts:
        """Count transitions and environment steps, in one pass over the blocks."""
        every = self.layout.num_learners * self.layout.num_updates * self.layout.labels
        flagged, excluded, num_steps = 0, every, 0.0
        for history in self.blocks():
            excluded -= len(history.transitions(("return",)).reward)
            num_steps += float(history.num_steps[0].sum(dtype=np.float64))
            for outcome in history.outcomes:
                flagged += int((history.flagged[:-1] | outcome.flagged).sum())
                num_steps += float(outcome.num_steps.sum(dtype=np.float64))
        return Counts(every, flagged, excluded, num_steps)

    def block(self, index: int) -> History:
        """Return one block, read from its file (which was verified when the dataset was opened)."""
        return self.layout.read(self.folder, index)

    def blocks(self) -> Iterator[History]:
        """Return all blocks in order, one at a time."""
        return (self.block(index) for index in self.layout.blocks)

    def transitions(self, names: Sequence[str] = DEFAULT_OBSERVATION) -> Transitions:
        """Return the usable transitions of all blocks (see `History.transitions`)."""
        return all_transitions(self.blocks(), names)


def all_transitions(histories: Iterable[History], names: Sequence[str]) -> Transitions:
    """Return the usable transitions of several histories, concatenated."""
    parts = [history.transitions(names) for history in histories]
    return Transitions(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _block_path(folder: Path, index: int) -> Path:
    return folder / f"block-{index:05d}.safetensors"


def block_checksums(folder: Path) -> dict[Path, str]:
    """Return the block files that a dataset's manifest lists, with their SHA-256; none while it is not complete."""
    return {_block_path(folder, index): sum_ for index, sum_ in enumerate(_read_manifest(folder)["blocks"] or ())}


def to_parquet(dataset: str | Path | Dataset, path: str | Path, *, force: bool = False) -> None:
    """Write all transitions, one per row, including non-finite ones, to a new Parquet file; `force` replaces an existing one.

    Columns: `learner`, `update`, `tried` (only with candidates: 0 for the update that was applied, else the candidate's number),
    `context_<name>`, the features of the dataset, `return`, `flagged`, `stepsize`, `reward`, and `next_<name>` for every
    feature, `return` and `flagged`. Several numbers of one name are a list.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(path)
    storage.require_new(path, force=force)
    whole = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)

    def fill(file: Path) -> None:
        writer: Any = None
        first_learner = 0
        for block in whole.blocks():
            for label in range(whole.layout.labels):
                columns = _columns(block, whole.layout, first_learner, label)
                table = pa.table({name: column(array) for name, array in columns.items()})
                writer = writer or pq.ParquetWriter(file, table.schema)
                writer.write_table(table)
            first_learner += len(block.context)
        writer.close()

    def column(array: NDArray[Any]) -> Any:
        """Return (updates, learners) or (updates, learners, width) as one column, episode after episode."""
        values = pa.array(np.swapaxes(array, 0, 1).reshape(-1))
        return values if array.ndim == 2 else pa.FixedSizeListArray.from_arrays(values, array.shape[2])

    storage.write_new(path, fill, force=force)


def _columns(block: History, layout: Layout, first_learner: int, label: int) -> dict[str, NDArray[Any]]:
    shape = (layout.num_updates, len(block.context))
    columns: dict[str, NDArray[Any]] = {
        "learner": np.broadcast_to(np.arange(first_learner, first_learner + shape[1]), shape),
        "update": np.broadcast_to(np.arange(shape[0])[:, np.newaxis], shape),
    }
    if layout.labels > 1:
        columns["tried"] = np.full(shape, label)
    for index, name in enumerate(layout.context_names):
        columns[f"context_{name}"] = np.broadcast_to(block.context[:, index], shape)
    outcome = block.outcomes[label]
    chosen, after = outcome.hyperparameters, _seen(outcome)
    before = {name: array[:-1] for name, array in _seen(block).items()}
    columns |= before | {"stepsize": chosen[:, :, 0] if layout.num_hyperparameters == 1 else chosen}
    with np.errstate(invalid="ignore", over="ignore"):
        columns["reward"] = after["return"] - before["return"]
    return columns | {f"next_{name}": array for name, array in after.items()}


def _seen(record: History | Outcomes) -> dict[str, NDArray[Any]]:
    """Return features, returns and flags by name; a feature of size 1 loses its last axis."""
    columns = {name: array[:, :, 0] if array.shape[2] == 1 else array for name, array in record.features.items()}
    return {**columns, "return": record.mean_return, "flagged": record.flagged}
