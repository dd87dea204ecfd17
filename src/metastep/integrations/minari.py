"""Datasets to Minari, for offline reinforcement learning with other libraries (extra `gym`).

A Minari episode is a meta-episode: T+1 observations <theta, g, omega>, T actions (step sizes), T rewards (improvements of the
return), truncated at the end; `infos` holds the other arrays. Minari's Arrow writer is quadratic in episodes: this is HDF5.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import minari
import numpy as np
from gymnasium.envs.registration import EnvSpec
from minari.data_collector.episode_buffer import EpisodeBuffer
from minari.dataset.minari_dataset import parse_dataset_id
from minari.dataset.minari_storage import MinariStorage
from minari.storage import get_dataset_path

from metastep._core.errors import InputError
from metastep._core.storage import require_free_space
from metastep.experiments.schema import Experiment
from metastep.mdp import DEFAULT_OBSERVATION
from metastep.mdp.dataset import Dataset
from metastep.mdp.history import History

_EPISODE_BYTES = 24_000  # of HDF5 for an episode, beside its numbers
# In the observation or the actions of an episode; all other arrays are infos.
_SEEN = ("context", "hyperparameters", *(f"feature/{name}" for name in DEFAULT_OBSERVATION))


def to_minari(dataset: str | Path | Dataset, dataset_id: str) -> Path:
    """Write a dataset as the Minari dataset `dataset_id` with every value, and return its folder, which appears complete.

    Minari's `recover_environment` gives the environment of the dataset's configuration, with step sizes as actions.
    """
    dataset = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    try:
        namespace, _, _ = parse_dataset_id(dataset_id)
    except (ValueError, TypeError):
        raise InputError(f"dataset_id: {dataset_id!r} must be a name with a version, like 'my/data-v0'.") from None
    folder, layout = get_dataset_path(dataset_id), dataset.layout
    if folder.exists():
        raise InputError(f"Minari dataset {dataset_id}: {folder} exists already, use another name or version.")
    if layout.labels > 1:
        raise InputError(f"Dataset {dataset.folder}: it holds several updates for every state; export it to Parquet.")
    numbers = sum(layout.num_bytes(index) for index in layout.blocks)
    require_free_space(folder, numbers + layout.num_learners * _EPISODE_BYTES)
    known = {name: value for name, value in dataset.config.items() if name in Experiment.model_fields}
    known["meta"] = {**known.get("meta", {}), "observation": list(DEFAULT_OBSERVATION)}
    options = {"config": known, "actions": "stepsize"}
    spec = EnvSpec("metastep/dataset-v0", "metastep.integrations.gymnasium:make_env", kwargs=options)
    env = spec.make()
    if namespace and namespace not in minari.namespace.list_local_namespaces():
        minari.namespace.create_namespace(namespace)
    unfinished = folder.parent / f".{folder.name}.{token_hex(8)}.tmp"
    unfinished.mkdir(parents=True)
    try:
        spaces = env.observation_space, env.action_space
        storage = MinariStorage.new(unfinished / "data", *spaces, spec, data_format="hdf5")
        storage.update_episodes(episode for block in dataset.blocks() for episode in _episodes(block))
        origin = {"config": dataset.config, "seed": dataset.seed, "device": dataset.environment["device"]}
        origin |= {"layout": layout._asdict(), "checksum": dataset.checksum}
        about = {"dataset_id": dataset_id, "minari_version": minari.__version__, "requirements": ["metastep"]}
        storage.update_metadata({**about, "metastep": origin})
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _episodes(block: History) -> Iterator[EpisodeBuffer]:
    observation = block.observe(DEFAULT_OBSERVATION)
    with np.errstate(invalid="ignore", over="ignore"):  # a diverged learner's reward is not finite
        reward = np.diff(block.mean_return, axis=0)
    others = {name.replace("/", "."): array for name, array in block.to_arrays().items() if name not in _SEEN}
    is_last = np.arange(len(reward)) == len(reward) - 1
    for learner in range(reward.shape[1]):
        yield EpisodeBuffer(
            observations=observation[:, learner],
            actions=block.hyperparameters[:, learner],
            rewards=reward[:, learner],
            terminations=np.zeros_like(is_last),
            truncations=is_last,
            infos={name: array[:, learner] for name, array in others.items()},
        )
