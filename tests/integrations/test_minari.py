"""Datasets go to Minari and back with every value, and appear there complete or not at all."""

from pathlib import Path

import minari
import numpy as np
import pytest

from metastep._core.errors import InputError
from metastep.experiments.config import build_mdp, load
from metastep.integrations import minari as bridge
from metastep.integrations.minari import to_minari
from metastep.mdp import DEFAULT_OBSERVATION
from metastep.mdp.collection import collect, layout_of
from metastep.mdp.dataset import Dataset, DatasetWriter
from metastep.mdp.history import from_arrays

NAME = "metastep/nav2d/tiny-v0"
CONFIG = load("nav2d", "full", ["reading=first", "rollout.num_episodes=4", "rollout.horizon=3", "rollout.block_size=2"])


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def write(folder: Path, *, config=None) -> Dataset:
    """Write random numbers, some of them not finite, with a last block that is not full."""
    layout = layout_of(build_mdp(CONFIG), 5, 3)
    writer = DatasetWriter(folder, layout, config or CONFIG.to_dict(), seed=3, device="cpu")
    for index in layout.blocks:
        rng = np.random.default_rng(index)
        shapes = layout.shapes(index)
        arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        arrays["flagged"] = rng.random(shapes["flagged"]) < 0.3
        arrays["feature/natural_gradient"][0, 0, :3] = np.nan, np.inf, -0.0
        arrays["mean_return"][1, 0] = -np.inf
        writer.add(index, from_arrays(arrays))
    return writer.finish()


@pytest.fixture
def dataset(tmp_path) -> Dataset:
    return write(tmp_path / "data")


def test_minari_reads_the_dataset(dataset, root):
    assert to_minari(dataset, NAME) == root / NAME
    exported = minari.load_dataset(NAME)
    assert (exported.total_episodes, exported.total_steps) == (5, 15)
    assert exported.storage.FORMAT == "hdf5"
    lanes = [(block, lane) for block in dataset.blocks() for lane in range(len(block.context))]
    for episode, (block, lane) in zip(exported, lanes, strict=True):
        expected = {
            "observations": block.observe(DEFAULT_OBSERVATION)[:, lane],  # (T+1, columns)
            "actions": block.hyperparameters[:, lane],
            "rewards": np.diff(block.mean_return[:, lane]),
        }
        for name, values in expected.items():
            found = getattr(episode, name)
            np.testing.assert_array_equal(found, values)
            assert found.dtype == np.float32
        np.testing.assert_array_equal(episode.infos["mean_return"], block.mean_return[:, lane])
        np.testing.assert_array_equal(episode.infos["flagged"], block.flagged[:, lane])
        assert not episode.terminations.any()
        assert episode.truncations.tolist() == [False, False, True]
    assert list(minari.list_local_datasets()) == [NAME]


def test_collected_episodes_come_with_their_environment(tmp_path):
    mdp = build_mdp(CONFIG)
    collected = collect(mdp, tmp_path / "data", num_episodes=2, num_updates=3, seed=0, config=CONFIG.to_dict())
    to_minari(collected, NAME)
    exported = minari.load_dataset(NAME)
    env = exported.recover_environment()
    assert env.observation_space == exported.observation_space
    assert env.action_space == exported.action_space
    assert env.unwrapped.mdp.estimator == mdp.estimator
    for episode in exported:
        assert all(observation in env.observation_space for observation in episode.observations)
        assert all(action in env.action_space for action in episode.actions)
        theta, gradient = episode.observations[:, :6], episode.observations[:, 6:12]
        direction = gradient / np.linalg.norm(gradient, axis=1, keepdims=True)
        moved = theta + np.pad(episode.actions, ((0, 1), (0, 0))) * direction
        np.testing.assert_allclose(theta[1:], moved[:-1], rtol=1e-4)
        np.testing.assert_array_equal(episode.rewards, np.diff(episode.infos["mean_return"]))


def test_an_export_replaces_nothing_and_leaves_nothing_when_it_fails(tmp_path, dataset, root, monkeypatch):
    nowhere = {"env": {"name": "nowhere", "options": {}}}
    with pytest.raises(InputError, match=r"env.name: 'nowhere'"):
        to_minari(write(tmp_path / "other", config=CONFIG.to_dict() | nowhere), NAME)

    def fail_late(block):
        yield from original(block)
        raise KeyboardInterrupt

    original = bridge._episodes
    with monkeypatch.context() as patched:
        patched.setattr(bridge, "_episodes", fail_late)
        with pytest.raises(KeyboardInterrupt):
            to_minari(dataset, NAME)
    assert not list(root.rglob("*tiny*"))
    to_minari(dataset, NAME)
    with pytest.raises(InputError, match=r"^Minari dataset .*: .* exists already, use another name or version.$"):
        to_minari(dataset, NAME)
    assert minari.load_dataset(NAME).total_episodes == 5
    for name in ("tiny", "", "../tiny-v0"):
        with pytest.raises(InputError, match=r"^dataset_id: .* must be a name with a version, like"):
            to_minari(dataset, name)
