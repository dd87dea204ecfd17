"""From a preset or file to a run. What cannot run is refused before a folder is created."""

from collections.abc import Sequence
from pathlib import Path

from metastep._core.progress import Tracker
from metastep.envs import Env, HostEnv
from metastep.experiments.budget import require_affordable
from metastep.experiments.build import build_env, require_available
from metastep.experiments.config import Scale, load
from metastep.experiments.provenance import copy_data, find_data
from metastep.experiments.run import Run
from metastep.experiments.schema import Experiment
from metastep.mdp.tasks import load_tasks
from metastep.policies import build as build_policy
from metastep.testing import check_env
from metastep.testing.envs import declared

_CHECKED_STEPS = 50  # of an episode, at most


def run(
    source: str | Path,
    out: str | Path,
    *,
    scale: Scale | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
    tracker: Tracker | None = None,
    anyway: bool = False,
) -> Run:
    """Run an experiment: everything that `metastep run` does. A stopped run resumes.

    Args:
        source: the name of a preset, or the path of a .toml file.
        out: folder of the run.
        scale: "quick" or "full"; by default quick where the configuration has such a table.
        seed: of everything random, in place of the configuration's.
        overrides: further settings, like `"fqi.regressor.trees=20"`.
        tracker: receives progress.
        anyway: whether it may take weeks.

    Returns:
        The run, with its `config`, `dataset`, `model` and `comparison`.
    """
    started = start_run(source, scale, Path(out), seed=seed, overrides=overrides, anyway=anyway)
    started.run_all(tracker=tracker)
    return started


def start_run(
    source: str | Path,
    scale: Scale | None,
    out: Path,
    *,
    command: str = "",
    seed: int | None = None,
    overrides: Sequence[str] | None = None,
    tasks: Path | None = None,
    data: Path | None = None,
    anyway: bool = False,
) -> Run:
    """Create or resume a run; arguments are those of `run` and these.

    Args:
        command: that was typed, kept for the report.
        tasks: a file of contexts to train on.
        data: another run, or its data, to copy the training data from.
    """
    config = load(source, scale, [*(overrides or ()), *([f"seed={seed}"] if seed is not None else [])])
    env = build_env(config)
    if ":" in config.env.name:
        _check_own_env(config, env)
    space = env.context_space
    listed = None if tasks is None else load_tasks(tasks, space.names, space.low, space.high)
    new = Run(out, config, listed).require_buildable()
    require_available(new.mdp)
    require_affordable(new, anyway=anyway)
    dataset = None if data is None else find_data(data, config, listed)
    new.prepare_folder(command)
    if dataset is not None:
        with new.writing():
            copy_data(dataset, new)
    return new


def _check_own_env(config: Experiment, env: Env | HostEnv) -> None:
    """Refuse a user's environment that breaks the contract: in a run it would fail later, or give wrong numbers."""
    declared(env)  # the policy is built from it
    policy = build_policy(config.policy.name, config.policy.options, env)
    horizon = min(config.rollout.horizon, _CHECKED_STEPS)
    check_env(env, horizon=horizon, sigma=getattr(policy, "sigma", 1.0), thorough=False)
