"""Datasets to Minari and back, for offline reinforcement learning with other libraries (extra `gym`).

A Minari episode is a meta-episode: T+1 observations <theta, g, omega>, T actions (step sizes), T rewards (improvements of the
return), truncated at the end; `infos` holds whatever else is known of every observation. Storage is HDF5: Minari's Arrow
writer is quadratic in the number of episodes.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from fcntl import LOCK_EX, flock
from pathlib import Path
from secrets import token_hex
from typing import Any

import minari
import numpy as np
from gymnasium.envs.registration import EnvSpec
from minari.data_collector.episode_buffer import EpisodeBuffer
from minari.dataset.minari_dataset import parse_dataset_id
from minari.dataset.minari_storage import MinariStorage
from minari.namespace import NAMESPACE_METADATA_FILENAME
from minari.storage import get_dataset_path

from metastep._core.errors import InputError
from metastep._core.storage import remove_leftovers, require_free_space
from metastep.experiments.build import build_mdp
from metastep.experiments.config import parse
from metastep.experiments.schema import Experiment
from metastep.integrations.metaepisode import action_space, observation_space
from metastep.mdp import DEFAULT_OBSERVATION
from metastep.mdp.dataset import Dataset, DatasetWriter, Layout
from metastep.mdp.history import History, from_arrays

# What HDF5 takes for an episode of Minari beside the numbers.
_EPISODE_BYTES = 24_000
_ENTRY_POINT = "metastep.integrations.gymnasium:make_env"


def to_minari(dataset: str | Path | Dataset, dataset_id: str, *, root: str | Path | None = None) -> Path:
    """Write a dataset as the Minari dataset `dataset_id`; returns its folder, which appears whole or not at all.

    Every value is kept, those that are not finite included, and so is what `from_minari` needs. Minari's
    `recover_environment` gives the environment of the dataset's configuration, with step sizes as actions.

    Args:
        dataset: the dataset or its folder.
        dataset_id: as Minari wants it, like `metastep/cartpole-v0`.
        root: folder of all Minari datasets; None is Minari's own (`MINARI_DATASETS_PATH`, or a folder in the home).
    """
    if not isinstance(dataset, Dataset):
        dataset = Dataset.open(dataset)
    folder = _folder(dataset_id, root)
    if folder.exists():
        raise InputError(f"Minari dataset {dataset_id}: {folder} exists already, use another name or version.")
    layout = dataset.layout
    if layout.labels > 1:
        raise InputError(
            f"Dataset {dataset.folder}: it holds {layout.labels} updates for every state, and an episode of Minari has one; "
            "export it to Parquet."
        )
    numbers = sum(layout.num_bytes(index) for index in layout.blocks)
    require_free_space(folder, numbers + layout.num_learners * _EPISODE_BYTES)
    spec = _environment(dataset.config)
    try:
        mdp = build_mdp(parse(spec.kwargs["config"]))
    except InputError as error:
        raise InputError(f"Dataset {dataset.folder}: its configuration describes no environment, {error}") from error
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder.parent)
    unfinished = folder.parent / f".{folder.name}.{token_hex(8)}.tmp"
    unfinished.mkdir()
    descriptor = os.open(unfinished, os.O_RDONLY)
    try:
        with suppress(OSError):
            flock(descriptor, LOCK_EX)  # says that it is not a leftover
        storage = MinariStorage.new(
            unfinished / "data", observation_space(mdp), action_space(mdp, "stepsize"), spec, data_format="hdf5"
        )
        storage.update_episodes(episode for block in dataset.blocks() for episode in _episodes(block))
        storage.update_metadata(
            {
                "dataset_id": dataset_id,
                "minari_version": minari.__version__,
                "description": "Policy-gradient learners: observations <theta, natural gradient, context>, actions step "
                "sizes, rewards improvements of the return.",
                "requirements": ["metastep"],
                "metastep": _origin(dataset),
            }
        )
        _register_namespace(dataset_id, folder)
        unfinished.rename(folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    finally:
        os.close(descriptor)
    return folder


def from_minari(dataset_id: str, folder: str | Path, *, root: str | Path | None = None) -> Dataset:
    """Turn a dataset that `to_minari` wrote into a metastep dataset again, with the values it was made of.

    A stopped import resumes. The manifest records the versions of the packages that import.

    Args:
        dataset_id: the Minari dataset.
        folder: of the new dataset.
        root: as of `to_minari`.
    """
    source = _folder(dataset_id, root) / "data"
    try:
        storage = MinariStorage.read(source)
        origin = storage.metadata.get("metastep")
    except (OSError, ValueError, KeyError, AssertionError) as error:
        raise InputError(f"Minari dataset {dataset_id} cannot be read: {_one_line(error)}.") from error
    if origin is None:
        raise InputError(
            f"Minari dataset {dataset_id} was not exported by metastep, only such datasets can be imported."
        )
    try:
        layout = Layout(**(origin["layout"] | {"context_names": tuple(origin["layout"]["context_names"])}))
        config, seed, device = origin["config"], origin["seed"], origin["environment"]["device"]
        fingerprints = dict(enumerate(origin["blocks"]))
    except (KeyError, TypeError) as error:
        raise InputError(f"Minari dataset {dataset_id} is damaged: {_one_line(error)}.") from error
    writer = DatasetWriter(folder, layout, config, seed=seed, device=device)
    for index in writer.missing_blocks():
        first = index * layout.block_size
        try:
            episodes = list(storage.get_episodes(range(first, first + layout.blocks.num_valid(index))))
            block = _block(episodes, layout)
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"Minari dataset {dataset_id} is damaged: {_one_line(error)}.") from error
        if _fingerprint(block) != fingerprints.get(index):
            raise InputError(
                f"Minari dataset {dataset_id} is damaged or was edited: episodes {first} to "
                f"{first + len(episodes) - 1} differ from those that were exported."
            )
        writer.add(index, block)
    return writer.finish()


def _folder(dataset_id: str, root: str | Path | None) -> Path:
    try:
        parse_dataset_id(dataset_id)
    except (ValueError, TypeError):
        allowed = "a name with a version like 'metastep/cartpole-v0'"
        raise InputError(f"dataset_id: {dataset_id!r} must be {allowed}.") from None
    return (Path(root) if root is not None else get_dataset_path()) / dataset_id


def _environment(config: Mapping[str, Any]) -> EnvSpec:
    """The environment whose observations and actions the exported ones are."""
    known = {name: value for name, value in config.items() if name in Experiment.model_fields}
    known["meta"] = {**known.get("meta", {}), "observation": list(DEFAULT_OBSERVATION)}
    name = str(known.get("env", {}).get("name", "environment"))
    return EnvSpec(f"metastep/{name}-dataset", _ENTRY_POINT, kwargs={"config": known, "actions": "stepsize"})


def _origin(dataset: Dataset) -> dict[str, Any]:
    """All of the manifest that `from_minari` needs, and a fingerprint of every block."""
    return {
        "config": dataset.config,
        "seed": dataset.seed,
        "environment": dataset.environment,
        "layout": dataset.layout._asdict(),
        "checksum": dataset.checksum,
        "blocks": [_fingerprint(block) for block in dataset.blocks()],
    }


def _fingerprint(block: History) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(block.to_arrays().items()):
        digest.update(name.encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


# In the observation or the actions of an episode; all other arrays go into its infos.
_SEEN = ("context", "hyperparameters", *(f"feature/{name}" for name in DEFAULT_OBSERVATION))


def _episodes(block: History) -> Iterator[EpisodeBuffer]:
    observation, reward = block.observe(DEFAULT_OBSERVATION), block.rewards
    others = {name: array for name, array in block.to_arrays().items() if name not in _SEEN}
    num_updates, num_learners = reward.shape
    for learner in range(num_learners):
        yield EpisodeBuffer(
            observations=observation[:, learner],
            actions=block.hyperparameters[:, learner],
            rewards=reward[:, learner],
            terminations=np.zeros(num_updates, np.bool_),
            truncations=np.arange(1, num_updates + 1) == num_updates,
            infos={_key(name): array[:, learner] for name, array in others.items()},
        )


def _key(name: str) -> str:
    """Minari's files take a slash for a folder."""
    return name.replace("/", ".")


def _block(episodes: list[dict[str, Any]], layout: Layout) -> History:
    observation = np.stack([episode["observations"] for episode in episodes], axis=1)
    sizes = [layout.features[name] for name in DEFAULT_OBSERVATION[:-1]]
    *seen, context = np.split(observation, np.cumsum(sizes), axis=2)
    arrays = {f"feature/{name}": array for name, array in zip(DEFAULT_OBSERVATION[:-1], seen, strict=True)}
    arrays |= {"context": context[0], "hyperparameters": np.stack([e["actions"] for e in episodes], axis=1)}
    others = [name for name in layout.shapes(0) if name not in _SEEN]
    arrays |= {name: np.stack([e["infos"][_key(name)] for e in episodes], axis=1) for name in others}
    return from_arrays(arrays)


def _register_namespace(dataset_id: str, folder: Path) -> None:
    """A namespace is a folder with a metadata file; Minari's own function knows only its own root."""
    parent = folder.parent
    for _ in range(dataset_id.count("/")):
        metadata = parent / NAMESPACE_METADATA_FILENAME
        if not metadata.exists():
            metadata.write_text("{}")
        parent = parent.parent


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__} {error}".split()).rstrip(".")
