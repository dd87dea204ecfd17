"""The meta-dataset on disk: one safetensors file a block of learners, and a manifest.

    folder/manifest.json             configuration, seed, versions, device, layout and, once complete, all checksums
    folder/block-00000.safetensors   the tensors of `Block`

While a block grows, its parts lie beside it (see `metastep.meta.parts`); a complete dataset has none.
Files contain neither times nor anything else that depends on how the work was split or how often it was interrupted.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from metastep import storage
from metastep.errors import InputError
from metastep.meta.episodes import DEFAULT_PARTS, Block, Layout, feature_names, observe, rewards, trim, usable
from metastep.meta.parts import Parts, remove_parts
from metastep.meta.history import Transitions

_FORMAT = {"format": "metastep dataset", "version": 1}
_NOT_SET = object()


class Counts(NamedTuple):
    """How many tuples a dataset holds, and what is wrong with some of them."""

    transitions: int
    flagged: int  # tuples whose observation or next observation came with a zero or non-finite estimate
    excluded: int  # tuples with a non-finite number, which `Dataset.transitions` leaves out


class DatasetWriter:
    """Creates a dataset or resumes one; several processes may add blocks to the same folder at the same time.

    Args:
        folder: made if it is not there.
        layout: the shape of the dataset.
        config: the resolved configuration, anything that JSON can hold; another one is refused on resuming.
        seed: likewise.
        device: recorded with the versions of the packages that decide numbers; others are refused on resuming a
            dataset that is not complete.
        packages: such packages of this environment.

    `damaged` holds one sentence for each block file found damaged at the start; such blocks count as missing. `parts` keeps
    what there is of blocks that are not complete.
    """

    damaged: tuple[str, ...] = ()

    def __init__(
        self,
        folder: str | Path,
        layout: Layout,
        config: Mapping[str, Any],
        *,
        seed: int,
        device: str,
        packages: Sequence[str] = (),
    ):
        self.folder, self.layout = Path(folder), layout
        for name, number in layout._asdict().items():
            if name != "context_names" and number < 1:
                raise InputError(f"Dataset {folder}: {name} is {number}, but must be at least 1.")
        environment = storage.environment_record(device, packages)
        identity = {"config": config, "seed": seed, "environment": environment, "layout": layout._asdict()}
        # Through JSON and back, so that a tuple equals the list that will be read from the manifest.
        self._identity = json.loads(json.dumps(identity, allow_nan=False))

        if (self.folder / "manifest.json").exists():
            self._resume()
        else:
            self._create()
        # The last bits of a block come from one environment, also where that of a complete dataset is not asked for.
        self.parts = Parts(self.folder, {"dataset": self._digest(), "environment": environment})

    def missing_blocks(self) -> list[int]:
        """Blocks that are still to be added: not there, or damaged. Reads every block file that is there."""
        return sorted(self._problems())

    def add(self, index: int, block: Block) -> None:
        """Write one block in place of its parts; lanes beyond the layout's learners (padding) are cut off."""
        if not 0 <= index < self.layout.num_blocks:
            raise InputError(f"Block {index} does not exist: the dataset has blocks 0 to {self.layout.num_blocks - 1}.")
        learners, valid = len(block.context), self.layout.learners_in(index)
        if learners not in (valid, self.layout.block_size):
            allowed = f"{valid} or, padded, {self.layout.block_size}"
            raise InputError(f"Block {index} has {learners} learners, but must have {allowed}.")
        block = trim(block, valid)
        self.layout.check(index, block, f"Block {index}")
        storage.write_tensors(self._path(index), block._asdict(), self._metadata(index))
        remove_parts(self.folder, {index})

    def finish(self) -> "Dataset":
        """Verify all blocks and write the manifest with their checksums."""
        if problems := self._problems():
            raise InputError(f"Dataset {self.folder} is not complete: {problems[min(problems)]}")
        remove_parts(self.folder)
        checksums = [storage.sha256_of(self._path(index)) for index in range(self.layout.num_blocks)]
        before = _read_manifest(self.folder)["blocks"]
        if before is None:
            storage.write_json(self.folder / "manifest.json", _sealed(self._identity, checksums))
        elif before != checksums:
            index = next(i for i, checksum in enumerate(checksums) if before[i] != checksum)
            raise InputError(f"File {self._path(index)} differs from the one whose checksum is in the manifest.")
        return Dataset.open(self.folder, verify=False)

    def _create(self) -> None:
        storage.require_free_space(self.folder, self._num_bytes(range(self.layout.num_blocks)))
        storage.create_folder(self.folder)
        storage.remove_leftovers(self.folder)
        first = storage.canonical_json(_sealed(self._identity, None))
        # A block without a manifest cannot come from an interrupted run: it is somebody else's, and would be replaced.
        found = sorted(path for kind in ("block", "part") for path in self.folder.glob(f"{kind}-*.safetensors"))
        if found and not (self.folder / "manifest.json").exists():
            raise InputError(f"Folder {self.folder} holds {found[0].name} but no manifest.json; use another folder.")
        if not storage.write_atomically(self.folder / "manifest.json", first, overwrite=False):
            self._resume()  # another process was first

    def _resume(self) -> None:
        manifest = _read_manifest(self.folder)
        if manifest["blocks"] is not None:
            # Nothing is left to compute. Should a block be damaged, its new version must match the checksum anyway.
            self._identity["environment"] = manifest["environment"]
        if difference := first_difference({key: manifest[key] for key in self._identity}, self._identity):
            key, before, now = difference
            raise InputError(
                f"Dataset {self.folder} was started with {key} = {before}, which is now {now}; "
                "resume with the same setting or use another folder."
            )
        storage.remove_leftovers(self.folder)
        problems = self._problems()
        self.damaged = tuple(text for index, text in problems.items() if self._path(index).exists())
        remove_parts(self.folder, set(range(self.layout.num_blocks)) - problems.keys())
        storage.require_free_space(self.folder, self._num_bytes(problems))

    def _path(self, index: int) -> Path:
        return _block_path(self.folder, index)

    def _metadata(self, index: int) -> dict[str, Any]:
        return {"block": index, "dataset": self._digest()}

    def _digest(self) -> str:
        return storage.sha256_of_json(self._identity)

    def _num_bytes(self, indices: Iterable[int]) -> int:
        return sum(self.layout.num_bytes(index) for index in indices)

    def _problems(self) -> dict[int, str]:
        """What is wrong with each block that cannot be used, one sentence each."""
        problems = {}
        for index in range(self.layout.num_blocks):
            try:
                if storage.read_tensors(self._path(index)).metadata != self._metadata(index):
                    problems[index] = f"File {self._path(index)} belongs to another dataset or block."
            except InputError as error:
                problems[index] = str(error)
        return problems


@dataclass(frozen=True)
class Dataset:
    """A complete dataset; blocks are mapped from their files when asked for, never held all at once."""

    folder: Path
    layout: Layout
    config: dict[str, Any]
    seed: int
    environment: dict[str, str]
    checksum: str  # of the manifest's content, hence of everything

    @classmethod
    def open(cls, folder: str | Path, *, verify: bool = True) -> Self:
        """Open a dataset; unless told otherwise, verify that every file is as it was written."""
        folder = Path(folder)
        manifest = _read_manifest(folder)
        checksums, layout = manifest["blocks"], manifest["layout"]
        layout = Layout(**(layout | {"context_names": tuple(layout["context_names"])}))
        if checksums is None:
            there = len(list(folder.glob("block-*.safetensors")))
            raise InputError(
                f"Dataset {folder} is not complete: {there} of {layout.num_blocks} blocks are there; "
                "run the command that collects it again."
            )
        for index, checksum in enumerate(checksums if verify else ()):
            storage.read_tensors(_block_path(folder, index), checksum)
        kept = {key: manifest[key] for key in ("config", "seed", "environment", "checksum")}
        return cls(folder, layout, **kept)

    @property
    def num_transitions(self) -> int:
        """All tuples, those that `transitions` leaves out included."""
        return self.layout.num_learners * self.layout.num_updates

    @property
    def num_flagged(self) -> int:
        """Tuples whose observation or next observation is flagged."""
        return self.counts().flagged

    @property
    def num_excluded(self) -> int:
        """Tuples with a non-finite number."""
        return self.counts().excluded

    def counts(self) -> Counts:
        """Count tuples, flagged tuples and tuples with non-finite numbers, in one pass over the blocks."""
        flagged = excluded = 0
        for block in self.blocks():
            flagged += int((block.flagged[:-1] | block.flagged[1:]).sum())
            excluded += int((~usable(block)).sum())
        return Counts(self.num_transitions, flagged, excluded)

    def block(self, index: int) -> Block:
        """One block, mapped from its file (which was verified when the dataset was opened)."""
        path = _block_path(self.folder, index)
        arrays = storage.read_tensors(path, verify=False).arrays
        if arrays.keys() != set(Block._fields):
            raise InputError(f"File {path} holds {', '.join(sorted(arrays))} instead of {', '.join(Block._fields)}.")
        block = Block(**arrays)
        self.layout.check(index, block, f"File {path}")
        return block

    def blocks(self) -> Iterator[Block]:
        """All blocks in order, one at a time."""
        return (self.block(index) for index in range(self.layout.num_blocks))

    def feature_names(self, parts: Sequence[str] = DEFAULT_PARTS) -> tuple[str, ...]:
        """A name for every column of the observations that `transitions` returns."""
        return feature_names(parts, self.layout.num_parameters, self.layout.context_names)

    def transitions(self, parts: Sequence[str] = DEFAULT_PARTS) -> Transitions:
        """All usable tuples, episode after episode; the observation is the given parts side by side, in that order.

        Tuples with a non-finite number in any part (asked for or not, so that different parts give the same rows) are
        left out; `num_excluded` says how many. With several hyperparameters `stepsize` is (tuples, hyperparameters).
        """
        observation = np.empty((self.num_transitions, len(self.feature_names(parts))), np.float32)
        next_observation = np.empty_like(observation)
        stepsize = np.empty((self.num_transitions, self.layout.num_hyperparameters), np.float32)
        reward = np.empty(self.num_transitions, np.float32)
        start = 0
        for block in self.blocks():
            # Learner first, so that an episode's tuples follow one another.
            keep = usable(block).T  # (learners, updates)
            features = observe(block, parts).swapaxes(0, 1)  # (learners, updates + 1, features)
            rows = slice(start, start := start + int(keep.sum()))
            observation[rows] = features[:, :-1][keep]
            next_observation[rows] = features[:, 1:][keep]
            stepsize[rows] = block.stepsize.swapaxes(0, 1)[keep]
            reward[rows] = rewards(block).T[keep]
        stepsizes = stepsize[:start, 0] if self.layout.num_hyperparameters == 1 else stepsize[:start]
        return Transitions(observation[:start], stepsizes, reward[:start], next_observation[:start])


def first_difference(old: Any, new: Any, key: str = "") -> tuple[str, str, str] | None:
    """The first key, dotted and in alphabetical order, whose values differ, with both values as text."""
    if old == new:
        return None
    if not (isinstance(old, dict) and isinstance(new, dict)):
        before, now = ("not set" if value is _NOT_SET else json.dumps(value) for value in (old, new))
        return key, before, now
    inner = ((f"{key}.{name}" if key else name, name) for name in sorted(old.keys() | new.keys()))
    differences = (first_difference(old.get(name, _NOT_SET), new.get(name, _NOT_SET), dotted) for dotted, name in inner)
    return next(difference for difference in differences if difference is not None)


def _block_path(folder: Path, index: int) -> Path:
    return folder / f"block-{index:05d}.safetensors"


def _sealed(identity: dict[str, Any], checksums: list[str] | None) -> dict[str, Any]:
    content = _FORMAT | identity | {"blocks": checksums}
    return content | {"checksum": storage.sha256_of_json(content)}


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    manifest = storage.read_json(path)
    if not isinstance(manifest, dict) or {key: manifest.get(key) for key in _FORMAT} != _FORMAT:
        raise InputError(f"File {path} is not the manifest of a metastep dataset of version {_FORMAT['version']}.")
    content = {key: value for key, value in manifest.items() if key != "checksum"}
    if manifest.get("checksum") != storage.sha256_of_json(content):
        raise InputError(f"File {path} is damaged or was edited: its content does not match its checksum.")
    return manifest
