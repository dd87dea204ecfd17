"""From what was typed to a run folder; whatever cannot be run is refused before there is one."""

from collections.abc import Sequence
from pathlib import Path

from metastep.experiments.build import build_mdp, require_available
from metastep.experiments.config import Experiment, Scale, load_file, load_preset
from metastep.experiments.data import find_data, take_over
from metastep.experiments.folder import RunFolder
from metastep.experiments.stages import require_fittable
from metastep.meta.tasks import load_tasks


def load_config(preset: str, scale: Scale, seed: int | None, overrides: Sequence[str] | None) -> Experiment:
    """The resolved configuration of a preset or a file."""
    changes = [*(overrides or ()), *([f"seed={seed}"] if seed is not None else [])]
    return (load_file if preset.endswith(".toml") else load_preset)(preset, scale, changes)


def open_folder(
    preset: str,
    scale: Scale,
    out: Path,
    *,
    command: str,
    seed: int | None = None,
    overrides: Sequence[str] | None = None,
    tasks: Path | None = None,
    data: Path | None = None,
    fits: bool = True,
) -> RunFolder:
    """Create or resume the run folder of a configuration.

    Args:
        preset: the name of one, or the path of a .toml file.
        scale: of the preset.
        out: the folder.
        command: that was typed, kept for the report.
        seed: of everything random, in place of the preset's.
        overrides: further settings, like `fqi.trees=20`.
        tasks: a file of contexts to train on.
        data: another run, or its data, to copy the training data from.
        fits: whether a model will be fitted for certain; where not, the methods to compare decide.
    """
    config = load_config(preset, scale, seed, overrides)
    if fits or "metafqi" in config.compare.methods:
        require_fittable(config)
    env = build_mdp(config).estimator.rollout.env
    space = env.context_space
    listed = None if tasks is None else load_tasks(tasks, space.names, space.low, space.high)
    require_available(env)
    dataset = None if data is None else find_data(data, config, listed)
    folder = RunFolder.create(out, config, listed, command=command)
    if dataset is not None:
        take_over(dataset, folder)
    return folder
