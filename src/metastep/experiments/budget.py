"""What an experiment takes, from its shapes, before anything is allocated: memory, disk, simulated steps.

The figures are lower bounds within a small factor: what is refused here is out of reach, not merely slow or tight.
"""

import math
import os
from pathlib import Path
from typing import NamedTuple

import jax

from metastep import features
from metastep._core.errors import InputError
from metastep._core.parallel import count_threads
from metastep._core.progress import human
from metastep._core.storage import require_free_space
from metastep.evaluation import MethodSpec
from metastep.experiments.build import (
    build_mdp,
    config_of,
    learners_collected,
    method_specs,
    models_needed,
    some_controller,
    updates_collected,
)
from metastep.experiments.config import variant
from metastep.experiments.schema import Experiment
from metastep.mdp import ActorCriticMDP, Process
from metastep.mdp.collection import layout_of, recorded_features
from metastep.simulation.engine import blocks_at_once, engine_of, fills_batches

STEPS_PER_SECOND = {"in JAX": 1e7, "with learning": 1e5, "on the host": 1e5}
"""Of a few processor cores; a large GPU may be 100 times as fast, and host environments differ as much in either direction.

Actor-critic rules go over every step several times, with gradients of networks: most of their time is learning.
"""
MOST_DAYS = 10.0
"""Longer than that hardly anybody means: a digit too many is likelier, and `--yes` says that it is not one."""


class Budget(NamedTuple):
    """What an experiment takes."""

    block: int  # bytes, of the blocks of learners simulated at a time, where they are simulated
    fit: int  # bytes, of the training tuples and of trees that grow
    results: int  # bytes, of learning curves, tuning scores and resamples
    disk: int  # bytes, of the training data
    steps: float  # of environments, in all stages


def budget_of(config: Experiment) -> Budget:
    """The budget of a configuration, whatever its numbers are; nothing is allocated."""
    mdp, specs, compare = build_mdp(config), method_specs(config), config.compare
    own = config.rollout.block_size
    batch = mdp.batch_steps

    def steps(learners: int, updates: int) -> float:
        return float(-(-learners // own) * own * (updates + 1) * batch)

    tuned = sum(
        math.prod(map(len, spec.grid.values())) * compare.num_tuning_tasks for spec in specs.values() if spec.grid
    )
    total = sum(_batches(config, spec) * steps(compare.num_tasks, compare.num_updates) for spec in specs.values())
    total += steps(tuned, compare.num_updates)
    tasks = len(specs) * compare.num_tasks + config.fqi.iterations * config.selection.num_tasks
    curves = 4 * tasks * (3 * compare.num_updates + mdp.num_parameters)
    # As many blocks as there are cores are simulated side by side, or some in one batch of a GPU.
    together = compare.blocks_together if fills_batches(mdp.env) else blocks_at_once(mdp.env)
    block = together * _block_bytes(mdp, own, compare.num_updates, specs)
    fit = disk = 0
    for model in models_needed(config):
        learned = _learning(variant(config, model), specs)
        block, fit, disk = max(block, learned.block), max(fit, learned.fit), disk + learned.disk
        total += learned.steps
    return Budget(block, fit, curves + 8 * (tuned + len(specs) * compare.num_resamples), disk, total)


def _learning(config: Experiment, specs: dict[str, MethodSpec]) -> Budget:
    """What collecting, fitting and selecting one model takes."""
    mdp, collect, num_updates = build_mdp(config), config.collect, config.compare.num_updates
    block, batch = collect.block_size or config.rollout.block_size, mdp.batch_steps
    layout = layout_of(mdp, learners_collected(config), updates_collected(config), collect.labels)
    layout = layout._replace(block_size=block)
    full, rest = divmod(layout.num_learners, block)
    disk = (full and full * layout.num_bytes(0)) + (rest and layout.num_bytes(full))
    collected = float(-(-layout.num_learners // block) * block * (layout.num_updates * collect.labels + 1) * batch)
    own = config.rollout.block_size
    selected = collect.rounds * config.fqi.iterations * -(-config.selection.num_tasks // own) * own * (num_updates + 1)
    columns = sum(layout.features.get(name, 1) for name in config.meta.observation) + len(layout.context_names)
    # Observations before and after, inputs, padded inputs, targets; for each thread ids and targets in two orders.
    row = 4 * (3 * columns + -(-(columns + 1) // 16) * 16) + 16 + 24 * count_threads(None)
    fit = layout.num_learners * layout.num_updates * collect.labels * row
    at_once = min(blocks_at_once(mdp.env), len(layout.blocks))
    memory = at_once * _block_bytes(mdp, block, layout.num_updates * collect.labels, specs)
    return Budget(memory, fit, 0, disk, collected + float(selected * batch))


def _batches(config: Experiment, spec: MethodSpec) -> int:
    """How many batches a method simulates for an update; one that tries all step sizes has a batch for each."""
    controller = some_controller(spec)
    if controller.num_batches:
        return controller.num_batches
    space = spec.on(build_mdp(config_of(config, spec))).space
    return 1 + (controller.num_trials(space) or config.fqi.num_stepsizes)


def _block_bytes(mdp: Process, learners: int, updates: int, specs: dict[str, MethodSpec]) -> int:
    """Of a block of learners: its batches as they are simulated, and what is recorded until it is done."""
    keeps_episodes = any(some_controller(spec).keeps_episodes for spec in specs.values())
    recorded = (updates + 1) * (4 + sum(features.sizes(mdp, recorded_features(mdp)).values()))
    return 4 * learners * (mdp.learner_size(keeps_episodes=keeps_episodes) + recorded)


def require_affordable(config: Experiment, out: Path, *, anyway: bool = False) -> Budget:
    """Refuse what does not fit into memory or onto the disk, and, unless it is wanted anyway, what takes weeks."""
    budget, memory = budget_of(config), available_memory()
    for field, what, needed, there in (
        ("rollout.block_size", "Simulating", budget.block, _device_memory() or memory),
        ("collect.num_meta_episodes", "Fitting", budget.fit, memory),
        ("compare.num_tasks", "The comparison", budget.results, memory),
    ):
        if needed > there:
            raise InputError(
                f"{field}: {what} takes about {human(needed)}B of memory with these settings, and {human(there)}B are "
                "available; take fewer learners, episodes, tuples, tasks or cores."
            )
    require_free_space(out, budget.disk)
    place = _pace(config)
    days = budget.steps / STEPS_PER_SECOND[place] / 86400.0
    if days > MOST_DAYS and not anyway:
        raise InputError(
            f"The experiment simulates {human(budget.steps)}steps {place}, about {days:.3g} days at "
            f"{human(STEPS_PER_SECOND[place])}steps/s; more than {MOST_DAYS:g} days need --yes."
        )
    return budget


def _pace(config: Experiment) -> str:
    """What decides how many steps are made in a second."""
    mdp = build_mdp(config)
    if isinstance(mdp, ActorCriticMDP):
        return "with learning"
    return "in JAX" if engine_of(mdp.env).is_compiled else "on the host"


def available_memory() -> int:
    """Bytes of main memory that could be had now, within the limit of a container where there is one."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file, name in (("/proc/meminfo", "MemAvailable:"), ("/sys/fs/cgroup/memory.max", "")):
        try:
            line = next(line for line in Path(file).read_text().splitlines() if line.startswith(name))
            found.append(int(line.removeprefix(name).split()[0]) * (1024 if name else 1))
        except (OSError, StopIteration, ValueError, IndexError):  # another system, or no limit
            continue
    return min(found)


def _device_memory() -> int | None:
    device = jax.devices()[0]
    stats = None if device.platform == "cpu" else device.memory_stats()
    return None if stats is None else stats.get("bytes_limit")
