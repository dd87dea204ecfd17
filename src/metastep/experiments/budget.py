"""Estimate memory, disk and simulated steps of a run from its shapes, before anything is allocated.

The figures are lower bounds within a small factor: what is refused here is out of reach, not merely slow or tight.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax

from metastep import features
from metastep._core.errors import InputError
from metastep._core.parallel import count_threads
from metastep._core.progress import human
from metastep._core.storage import require_free_space
from metastep.experiments.config import learners_collected, updates_collected
from metastep.experiments.stages import some_controller
from metastep.mdp import ActorCriticMDP, MetaMDP
from metastep.mdp.collection import layout_of, recorded_features
from metastep.simulation.engine import blocks_at_once, engine_of, fills_batches

if TYPE_CHECKING:
    from metastep.experiments.run import Run

STEPS_PER_SECOND = {"in JAX": 1e7, "with learning": 1e5, "on the host": 1e5}
"""Of a few processor cores; a large GPU may be 100 times as fast, and host environments differ as much in either direction."""
MOST_DAYS = 10.0
"""A longer experiment is likelier a digit too many than meant; `--yes` says that it is meant."""


class Budget(NamedTuple):
    """The resources of an experiment."""

    block: int  # bytes, of the blocks of learners simulated at a time, where they are simulated
    fit: int  # bytes, of the training tuples and of trees that grow
    results: int  # bytes, of learning curves, tuning scores and resamples
    disk: int  # bytes, of the training data
    steps: float  # of environments, in all stages


def budget_of(run: Run) -> Budget:
    """Return the budget of a run, whatever its numbers are; nothing is allocated."""
    config, mdp, specs = run.config, run.mdp, run.methods.values()
    compare, own, fqi = config.compare, config.rollout.block_size, config.fqi

    def steps(mdp: MetaMDP, learners: int, updates: int, block: int) -> float:
        return float(-(-learners // block) * block * (updates + 1) * mdp.batch_steps)

    num, padded = compare.num_tuning_tasks, -(-compare.num_tuning_tasks // own) * own
    lanes = {spec.name: padded if compare.shared_noise or spec.tunes_rule else num for spec in specs}
    tuned = sum(math.prod(map(len, spec.grid.values())) * lanes[spec.name] for spec in specs if spec.grid)
    total, keeps_episodes = steps(mdp, tuned, compare.num_updates, own), False
    for spec in specs:
        controller = some_controller(spec)
        keeps_episodes |= controller.keeps_episodes
        batches = controller.num_batches
        if not batches:  # one that tries all step sizes has a batch for each
            space = spec.on(run.of_model(spec.model).mdp).space
            batches = 1 + (controller.num_trials(space) or fqi.num_stepsizes)
        total += batches * steps(mdp, compare.num_tasks, compare.num_updates, own)
    tasks = len(specs) * compare.num_tasks + fqi.iterations * config.selection.num_tasks
    curves = 4 * tasks * (3 * compare.num_updates + mdp.num_parameters)
    # As many blocks as there are cores are simulated side by side, or some in one batch of a GPU.
    together = compare.blocks_together if fills_batches(mdp.env) else blocks_at_once(mdp.env)
    block = together * _block_bytes(mdp, own, compare.num_updates, keeps_episodes)
    fit = disk = 0
    for model in run.models_needed:  # collecting, fitting and selecting each
        learned, mdp = run.of_model(model).config, run.of_model(model).mdp
        if learned.learner == "search":
            search, selection = learned.search, learned.selection.num_tasks
            size, judged = search.block_size or own, search.generations // search.validate_every + 2
            members = search.build().runs_of_pair * search.pairs
            for learners, times in ((members, search.generations), (selection, judged)):
                total += len(search.levels) * times * steps(mdp, learners, learned.meta.num_updates, size)
            at_once = blocks_at_once(mdp.env)
            block = max(block, at_once * _block_bytes(mdp, size, learned.meta.num_updates, keeps_episodes))
            continue
        collect, size = learned.collect, learned.collect.block_size or learned.rollout.block_size
        layout = layout_of(mdp, learners_collected(learned), updates_collected(learned), collect.labels)
        layout = layout._replace(block_size=size)
        full, rest = divmod(layout.num_learners, size)
        disk += (full and full * layout.num_bytes(0)) + (rest and layout.num_bytes(full))
        tried = layout.num_updates * collect.labels
        total += steps(mdp, layout.num_learners, tried, size)
        selected = steps(mdp, learned.selection.num_tasks, learned.compare.num_updates, learned.rollout.block_size)
        total += collect.rounds * learned.fqi.iterations * selected
        columns = sum(layout.features.get(name, 1) for name in learned.meta.observation) + len(layout.context_names)
        # Observations before and after, inputs, padded inputs, targets; for each thread ids and targets in two orders.
        row = 4 * (3 * columns + -(-(columns + 1) // 16) * 16) + 16 + 24 * count_threads(None)
        fit = max(fit, layout.num_learners * tried * row)
        at_once = min(blocks_at_once(mdp.env), len(layout.blocks))
        block = max(block, at_once * _block_bytes(mdp, size, tried, keeps_episodes))
    return Budget(block, fit, curves + 8 * (tuned + len(specs) * compare.num_resamples), disk, total)


def _block_bytes(mdp: MetaMDP, learners: int, updates: int, keeps_episodes: bool) -> int:
    """Return the bytes of a block of learners: its batches as they are simulated, and what is recorded until it is done."""
    recorded = (updates + 1) * (4 + sum(features.sizes(mdp, recorded_features(mdp)).values()))
    return 4 * learners * (mdp.learner_size(keeps_episodes=keeps_episodes) + recorded)


def require_affordable(run: Run, *, anyway: bool = False) -> Budget:
    """Refuse what does not fit into memory or onto the disk, and, unless `anyway`, what takes weeks."""
    budget, memory, device = budget_of(run), available_memory(), jax.devices()[0]
    stats = None if device.platform == "cpu" else device.memory_stats()
    on_device = None if stats is None else stats.get("bytes_limit")
    for field, what, needed, there in (
        ("rollout.block_size", "Simulating", budget.block, on_device or memory),
        ("collect.num_meta_episodes", "Fitting", budget.fit, memory),
        ("compare.num_tasks", "The comparison", budget.results, memory),
    ):
        if needed > there:
            takes = f"{what} takes about {human(needed)}B of memory with these settings, {human(there)}B are available"
            raise InputError(f"{field}: {takes}; take fewer learners, episodes, tuples, tasks or cores.")
    require_free_space(run.path, budget.disk)
    env = run.mdp.env
    pace = "in JAX" if engine_of(env).is_compiled else "on the host"
    pace = "with learning" if isinstance(run.mdp, ActorCriticMDP) else pace
    days = budget.steps / STEPS_PER_SECOND[pace] / 86400.0
    if days > MOST_DAYS and not anyway:
        work, speed = f"{human(budget.steps)}steps {pace}", f"{human(STEPS_PER_SECOND[pace])}steps/s"
        needs = f"about {days:.3g} days at {speed}; more than {MOST_DAYS:g} days need --yes"
        raise InputError(f"The experiment simulates {work}, {needs}.")
    return budget


def available_memory() -> int:
    """Return the bytes of main memory available now, within the limit of a container where there is one."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file, name in (("/proc/meminfo", "MemAvailable:"), ("/sys/fs/cgroup/memory.max", "")):
        try:
            line = next(line for line in Path(file).read_text().splitlines() if line.startswith(name))
            found.append(int(line.removeprefix(name).split()[0]) * (1024 if name else 1))
        except (OSError, StopIteration, ValueError, IndexError):  # another system, or no limit
            continue
    return min(found)
