"""From what was typed to a run folder; whatever cannot be run is refused before there is one."""

from collections.abc import Sequence
from pathlib import Path

from metastep import policies
from metastep.experiments.budget import require_affordable
from metastep.experiments.build import build_env, build_mdp, require_available, require_buildable
from metastep.experiments.config import Experiment, Scale, load
from metastep.experiments.data import find_data, take_over
from metastep.experiments.folder import RunFolder
from metastep.mdp.tasks import load_tasks
from metastep.testing import check_env
from metastep.testing.episodes import declared

_CHECKED_STEPS = 50  # of an episode, at most


def start_run(
    source: str,
    scale: Scale | None,
    out: Path,
    *,
    command: str,
    seed: int | None = None,
    overrides: Sequence[str] | None = None,
    tasks: Path | None = None,
    data: Path | None = None,
    anyway: bool = False,
) -> RunFolder:
    """Create or resume the run folder of a configuration.

    Args:
        source: the name of a preset, or the path of a .toml file.
        scale: quick or full; by default quick where there is such a table.
        out: the folder.
        command: that was typed, kept for the report.
        seed: of everything random, in place of the preset's.
        overrides: further settings, like `fqi.regressor.trees=20`.
        tasks: a file of contexts to train on.
        data: another run, or its data, to copy the training data from.
        anyway: whether it may take weeks.
    """
    config = load(source, scale, [*(overrides or ()), *([f"seed={seed}"] if seed is not None else [])])
    _check_own_env(config)
    require_buildable(config)
    mdp = build_mdp(config)
    space = mdp.env.context_space
    listed = None if tasks is None else load_tasks(tasks, space.names, space.low, space.high)
    require_available(mdp)
    require_affordable(config, out, anyway=anyway)
    dataset = None if data is None else find_data(data, config, listed)
    folder = RunFolder.create(out, config, listed, command=command)
    if dataset is not None:
        with folder.writing("run"):
            take_over(dataset, folder)
    return folder


def _check_own_env(config: Experiment) -> None:
    """Refuse an environment of the user's own that breaks the contract: in a run it would be a traceback, or no numbers."""
    if ":" not in config.env.name:
        return
    env = build_env(config)
    declared(env)  # the policy is built from it
    policy = policies.build(config.policy.name, config.policy.options, env)
    check_env(
        env, horizon=min(config.rollout.horizon, _CHECKED_STEPS), sigma=getattr(policy, "sigma", 1.0), thorough=False
    )
