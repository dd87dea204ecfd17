"""Which settings shape the training data, and taking over the data of another run."""

import json
from pathlib import Path

import numpy as np
import pytest

from metastep._core.errors import InputError
from metastep.experiments.config import load
from metastep.experiments.provenance import copy_data, data_settings, find_data, recorded_with_data
from metastep.experiments.run import Run

SMALL = [
    "collect.num_meta_episodes=16",
    "meta.num_updates=2",
    "rollout.num_episodes=4",
    "rollout.horizon=4",
    "rollout.block_size=8",
]


def make_folder(path: Path, *overrides: str, tasks: np.ndarray | None = None) -> Run:
    return Run.create(path, load("nav2d", "quick", [*SMALL, *overrides]), tasks)


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = make_folder(tmp_path_factory.mktemp("data") / "first")
    folder.collect()
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_later_settings_may_differ(collected: Run, tmp_path: Path) -> None:
    other = make_folder(tmp_path / "second", "fqi.regressor.trees=7", "meta.meta_discount=0.5", "compare.num_tasks=3")
    copy_data(find_data(collected.path, other.config, None), other)
    assert files(other.data_folder) == files(collected.data_folder)
    dataset = other.collect()
    assert dataset is not None
    assert files(other.data_folder) == files(collected.data_folder)  # nothing was collected or rewritten
    assert recorded_with_data(other)["fqi"] == collected.config.to_dict()["fqi"]
    before = files(other.data_folder)
    copy_data(find_data(collected.data_folder, other.config, None), other)  # the data folder itself; there already
    assert files(other.data_folder) == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("seed=1", r"seed = 0, which is now 1"),
        ("meta.rule.damping=0.1", r"meta\.rule\.damping = 0\.01, which is now 0\.1"),
        ("meta.rule=rmsprop", r"meta\.rule\.damping = 0\.01, which is now not set"),
        ("meta.stepsize_high=3.0", r"meta\.stepsize_high = 8\.0, which is now 3\.0"),
        ("rollout.block_size=4", r"collect\.block_size = 8, which is now 4"),
        ("collect.num_meta_episodes=8", r"collect\.num_meta_episodes = 16, which is now 8"),
        ("env.fixed_context=[0.1, 0.2]", r"env\.fixed_context = null, which is now \[0\.1, 0\.2\]"),
    ],
)
def test_settings_that_shape_data_may_not(collected: Run, tmp_path: Path, change: str, words: str) -> None:
    config = load("nav2d", "quick", [*SMALL, change])
    with pytest.raises(InputError, match=rf"^--data: .* was collected with {words}; collect new data\.$"):
        find_data(collected.path, config, None)
    # Copied by hand, the data is refused by the dataset's own check.
    folder = make_folder(tmp_path / "run", change)
    (folder.path / "data").mkdir()
    for name, content in files(collected.data_folder).items():
        (folder.data_folder / name).write_bytes(content)
    with pytest.raises(InputError, match=r"Dataset .* was started with "):
        folder.collect()


def test_listed_tasks_shape_data(collected: Run) -> None:
    tasks = np.array([[0.1, 0.2]], np.float32)
    with pytest.raises(InputError, match=r"was collected with tasks = null, which is now \[\["):
        find_data(collected.path, collected.config, tasks)


def test_folders_without_usable_data_are_refused(collected: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--data: .* holds no training data; name a run folder"):
        find_data(tmp_path, collected.config, None)
    content = json.loads((collected.data_folder / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps(content | {"seed": 5}))
    with pytest.raises(InputError, match=r"manifest\.json is damaged or was edited"):
        find_data(tmp_path, collected.config, None)


def test_every_section_is_either_of_the_data_or_not() -> None:
    """A new section must be put on one side: silently leaving it out would mix data."""
    later = {"fqi", "selection", "compare", "models"}
    config = load("nav2d")
    assert set(data_settings(config)) | later == set(config.to_dict())
    ours, all_of_meta = set(data_settings(config)["meta"]), set(config.to_dict()["meta"])
    assert all_of_meta - ours == {"meta_discount", "observation"}
    own = load("nav2d", "quick", ["collect.block_size=32", "rollout.block_size=4"])
    assert data_settings(own) == data_settings(load("nav2d", "quick", ["rollout.block_size=32"]))
