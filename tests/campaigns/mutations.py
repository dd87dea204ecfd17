"""Mutate every kind of file: it is refused with one sentence or read unchanged; never other numbers, never a traceback.

Content is also changed and given a valid checksum, as on purpose; then there may be other numbers, but no traceback.
"""

import dataclasses
import json
import random
import re
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from metastep._core import storage
from metastep._core.errors import InputError
from metastep.evaluation import load
from metastep.experiments.checking import check_folder, inspect_path
from metastep.experiments.config import build_mdp
from metastep.experiments.run import Run, run
from metastep.fqi import load_model
from metastep.mdp.blocks import Stream
from metastep.mdp.controller import Exploration
from metastep.mdp.dataset import Dataset
from metastep.mdp.loop import Checkpoints, run_segments
from tests.campaigns import SETTINGS, Tally, damaged, main

JUNK: list[Any] = [None, True, 0, -1, 10**30, 0.5, 1e308, "", "x", "$\\frac{$", "[/red]", "\u00e9\u0000", [], {}, [[]]]


def _tree(value: Any) -> Any:
    """Everything in something, to be compared: arrays by their bytes."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {entry.name: _tree(getattr(value, entry.name)) for entry in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {name: _tree(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [_tree(item) for item in value]
    return value if isinstance(value, str | int | float | None) else repr(value)


class Subject:
    """A file, and what is read from it."""

    def __init__(self, path: Path, read: Callable[[Path], Any]) -> None:
        self.path, self.read, self.content = path, read, path.read_bytes()
        self.value = _tree(read(path))


def subjects(sandbox: Path) -> dict[str, Subject]:
    """A small run, and a block that has not grown up."""
    folder = run("nav2d", sandbox / "run", overrides=SETTINGS)
    mdp = build_mdp(folder.config)
    tasks = mdp.tasks(0, Stream.TRAIN, 0)
    checkpoints = Checkpoints(sandbox / "checkpoints", {"dataset": "0" * 64})
    checkpoints.folder.mkdir()
    options: Any = {"updates_per_segment": 1, "record": ("theta", "natural_gradient")}
    checkpoints.write(0, next(run_segments(mdp, Exploration(), tasks, 2, **options)))
    (part,) = checkpoints.folder.iterdir()
    content = part.read_bytes()

    def load_checkpoint(_: Path) -> Any:
        checkpoint, problem = checkpoints.load(0, mdp, tasks)
        if problem is not None:
            part.write_bytes(content)  # it was removed
            raise InputError(problem)
        assert checkpoint is not None
        learners = checkpoint.learners
        arrays = np.asarray(learners.theta), np.asarray(learners.estimate.gradient)
        return checkpoint.updates, checkpoint.histories, *arrays

    def blocks(_: Path) -> Any:
        dataset = Dataset.open(folder.data_folder)
        return dataset.transitions(), dataset.counts(), dataset.seed, dataset.config

    def configuration(_: Path) -> Any:
        opened = Run.open(folder.path)
        return opened.config.to_dict(), opened.tasks

    return {
        "block": Subject(folder.data_folder / "block-00001.safetensors", blocks),
        "manifest": Subject(folder.data_folder / "manifest.json", blocks),
        "part": Subject(part, load_checkpoint),
        "model": Subject(folder.model_file, load_model),
        "validation": Subject(folder.validation_file, load),
        "results": Subject(folder.result_file("fixed"), load),
        "comparison": Subject(folder.comparison_file, load),
        "config.json": Subject(folder.path / "config.json", configuration),
        "report.json": Subject(folder.path / "report.json", lambda _: check_folder(folder.path)),
    }


def mutated(content: bytes, generator: random.Random) -> bytes:
    """Bytes as an accident leaves them."""
    at, length = generator.randrange(len(content)), generator.choice([1, 2, 8, 64, 512])
    before, cut, after = content[:at], content[at : at + length], content[at + length :]
    kinds = [
        before + bytes([content[at] ^ 1 << generator.randrange(8)]) + content[at + 1 :],
        re.sub(rb"[0-9]", b"%d" % generator.randrange(10), content, count=generator.randrange(1, 20)),
        before,
        before + bytes(len(cut)) + after,
        before + after,
        before + generator.randbytes(length) + content[at:],
        before + cut + content[at:],
        generator.choice([b"", b"{}", b"[]", b"null", b"\0" * 8, b'{"a": NaN}', b'{"a": "\\ud800"}']),
    ]
    return generator.choice(kinds)


def reseal(path: Path, generator: random.Random) -> None:
    """Make a file say something else, with its checksum right."""
    changed = partial(damaged, generator, junk=partial(generator.choice, JUNK))
    if path.read_bytes()[:1] == b"{":
        found = changed({k: v for k, v in json.loads(path.read_bytes()).items() if k != "checksum"})
        storage.write_json(path, storage.with_checksum(found) if isinstance(found, dict) else found)
        return
    arrays, metadata = storage.read_tensors(path, verify=False)
    if generator.random() < 0.5:
        found = changed(metadata)
        storage.write_tensors(path, arrays, found if isinstance(found, dict) else {})
        return
    name = generator.choice(sorted(arrays))
    array = arrays.pop(name)
    replaced = {
        "nan": lambda: np.full_like(array, np.nan) if array.dtype.kind == "f" else array,
        "type": lambda: array.astype(np.float64 if array.dtype != np.float64 else np.int32),
        "flat": lambda: array.reshape(-1),
        "half": lambda: array[: len(array) // 2] if array.ndim else array,
        "large": lambda: (
            np.full_like(array, min(100_000, np.iinfo(array.dtype).max)) if array.dtype.kind in "iu" else array
        ),
        "negative": lambda: -array if array.dtype.kind in "if" else ~array,
        "empty": lambda: array[:0] if array.ndim else array,
    }
    kind = generator.choice([*replaced, "gone", "renamed"])
    with np.errstate(all="ignore"):
        arrays |= {"renamed": array} if kind == "renamed" else {} if kind == "gone" else {name: replaced[kind]()}
    storage.write_tensors(path, arrays, metadata)


def campaign(number: int, seed: int, sandbox: Path) -> dict[str, Any]:
    generator, tally, found = random.Random(seed), Tally(), subjects(sandbox)
    for index in range(number):
        name = list(found)[index % len(found)]
        subject, is_meant = found[name], index // len(found) % 4 == 3
        if is_meant:
            reseal(subject.path, generator)
        else:
            subject.path.write_bytes(mutated(subject.content, generator))
        try:
            value = _tree(subject.read(subject.path))
            outcome = "same" if value == subject.value else "resealed" if is_meant else "other numbers"
            if outcome == "other numbers" and name == "report.json" and any(problem for _, problem in value):
                outcome = "found by check"
            if is_meant and name == "model":
                inspect_path(subject.path)
        except InputError as error:
            outcome = "refused" if "\n" not in str(error) else f"refused in several lines, {error}"
        except Exception:
            outcome = "traceback"
            tally.failures.append(f"{name}: {traceback.format_exc()[-600:]}")
        if outcome.startswith(("other numbers", "refused in")):
            tally.failures.append(f"{name}: mutation {index}: {outcome}")
        tally.add(f"{name}: {outcome}")
        subject.path.write_bytes(subject.content)
    return tally.found()


if __name__ == "__main__":
    main(campaign)
