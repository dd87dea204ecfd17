"""Estimate memory, disk and simulated steps of a run from its shapes, before anything is allocated.

The figures are lower bounds within a small factor: an experiment that is rejected here is out of reach, not merely slow or tight.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax

from metastep import features
from metastep._core.errors import InputError
from metastep._core.parallel import count_threads
from metastep._core.progress import format_si
from metastep._core.storage import require_free_space
from metastep.experiments.config import learners_collected, updates_collected
from metastep.experiments.stages import example_controller
from metastep.mdp import ActorCriticMDP, MetaMDP
from metastep.mdp.collection import layout_of, recorded_features
from metastep.search.evolution import Search, feedback_features
from metastep.simulation.engine import blocks_at_once, fills_batches, is_compiled

if TYPE_CHECKING:
    from metastep.experiments.run import Run

STEPS_PER_SECOND = {"in JAX": 1e7, "with learning": 1e5, "on the host": 1e5}
"""Speeds of a few cores; a large GPU may be 100 times as fast, and host environments vary as much in both directions."""
MOST_DAYS = 10.0
"""A longer experiment is more likely a typing error than intended; `--yes` runs it."""


class Budget(NamedTuple):
    """The resources of an experiment."""

    memory: dict[str, int]  # bytes, by the setting that affects them most
    disk: int  # bytes, of the training data
    steps: float  # of environments, in all stages


def budget_of(run: Run) -> Budget:
    """Return the budget of a run without allocating anything."""
    config, compare, specs = run.config, run.config.compare, run.methods.values()
    controllers = [example_controller(spec) for spec in specs]
    keeps_episodes = any(controller.keeps_episodes for controller in controllers)
    memory, disk, steps = Counter[str](), 0, 0.0

    def simulate(field: str, mdp: MetaMDP, learners: int, updates: int, times: int = 1, at_once: int = 0) -> None:
        """Add `times` simulations of learners, with `at_once` blocks in memory: by default one per core."""
        nonlocal steps
        block, at_once = mdp.block_size, at_once or blocks_at_once(mdp.env)
        steps += times * float(-(-learners // block) * block * (updates + 1) * mdp.batch_steps)
        recorded = (updates + 1) * (4 + sum(features.sizes(mdp, recorded_features(mdp)).values()))
        size = 4 * block * (mdp.learner_size(keeps_episodes=keeps_episodes) + recorded)
        memory[field] = max(memory[field], at_once * size)

    tuned = compare.num_tuning_tasks * sum(math.prod(map(len, spec.grid.values())) for spec in specs if spec.grid)
    together = compare.blocks_together if fills_batches(run.mdp.env) else 0  # in one batch of a GPU
    simulate("rollout.block_size", run.mdp, tuned, compare.num_updates, 1, together)
    for spec, controller in zip(specs, controllers, strict=True):
        if not (batches := controller.num_batches):  # it simulates a batch for each step size
            space = spec.on(run.of_model(spec.model).mdp).space
            batches = 1 + (controller.num_trials(space) or config.fqi.num_stepsizes)
        simulate("rollout.block_size", run.mdp, compare.num_tasks, compare.num_updates, batches, together)
    tasks = len(specs) * compare.num_tasks + config.fqi.iterations * config.selection.num_tasks
    curves = 4 * tasks * (3 * compare.num_updates + run.mdp.policy.num_parameters)
    memory["compare.num_tasks"] = curves + 8 * (tuned + len(specs) * compare.num_resamples)
    for model_run in map(run.of_model, run.models_needed):  # collect, fit and select each model, or search it
        learned, mdp, collect = model_run.config, model_run.mdp, model_run.config.collect
        if learned.learner == "search":
            search, updates = Search(**dict(learned.search)), learned.meta.num_updates
            mdp, num = replace(mdp, block_size=search.block_size or mdp.block_size), len(search.levels)
            judged, runs = search.generations // search.validate_every + 2, search.runs_of_pair
            simulate("search.block_size", mdp, learned.selection.num_tasks, updates, judged * num)
            mdp = replace(mdp, block_size=runs * mdp.block_size)  # the learners of a pair run side by side
            simulate("search.block_size", mdp, runs * search.pairs, updates, search.generations * num)
            units = search.units if "feedback" in search.levels else 0
            knots = search.knots if {"schedule", "feedback"} & {*search.levels} else 1
            inputs = 1 + len(features.columns(mdp, feedback_features(search, mdp))) if units else 0
            weights = mdp.space.num_coordinates * (knots + units) + inputs * units
            # The population as it was drawn and as blocks follow it; CMA-ES has the covariance of the weights.
            numbers = 2 * runs * search.pairs * weights + (search.strategy == "cma-es") * weights**2
            field = max((search.pairs, "search.pairs"), (knots, "search.knots"), (units, "search.units"))[1]
            memory[field] = max(memory[field], 4 * numbers)
            continue
        judged = collect.rounds * learned.fqi.iterations
        simulate("rollout.block_size", mdp, learned.selection.num_tasks, learned.compare.num_updates, judged)
        mdp = replace(mdp, block_size=collect.block_size or mdp.block_size)
        layout = layout_of(mdp, learners_collected(learned), updates_collected(learned), collect.labels)
        full, rest = divmod(layout.num_learners, layout.block_size)
        disk += (full and full * layout.num_bytes(0)) + (rest and layout.num_bytes(full))
        evaluated, at_once = layout.num_updates * collect.labels, min(blocks_at_once(mdp.env), len(layout.blocks))
        field = "collect.block_size" if collect.block_size else "rollout.block_size"
        simulate(field, mdp, layout.num_learners, evaluated, 1, at_once)
        columns = sum(layout.features.get(name, 1) for name in learned.meta.observation) + len(layout.context_names)
        # Observations before and after, inputs, padded inputs, targets; for each thread ids and targets in two orders.
        row = 4 * (3 * columns + -(-(columns + 1) // 16) * 16) + 16 + 24 * count_threads(None)
        fit = layout.num_learners * evaluated * row
        memory["collect.num_meta_episodes"] = max(memory["collect.num_meta_episodes"], fit)
    return Budget(memory, disk, steps)


def require_affordable(run: Run, *, anyway: bool = False) -> Budget:
    """Raise an error if a run does not fit into memory or onto the disk or, unless `anyway`, takes more than `MOST_DAYS`."""
    budget, memory, device = budget_of(run), available_memory(), jax.devices()[0]
    stats = None if device.platform == "cpu" else device.memory_stats()
    on_device = memory if stats is None else stats.get("bytes_limit") or memory
    for field, needed in budget.memory.items():
        free = on_device if field.endswith("block_size") else memory
        if needed > free:
            takes = f"what depends on it takes about {format_si(needed)}B of memory, {format_si(free)}B are available"
            raise InputError(f"{field}: {takes}; take fewer learners, episodes, tuples, tasks, weights or cores.")
    require_free_space(run.path, budget.disk)
    kind = "in JAX" if is_compiled(run.mdp.env) else "on the host"
    kind = "with learning" if isinstance(run.mdp, ActorCriticMDP) else kind
    days = budget.steps / STEPS_PER_SECOND[kind] / 86400.0
    if days > MOST_DAYS and not anyway:
        work, speed = f"{format_si(budget.steps)}steps {kind}", f"{format_si(STEPS_PER_SECOND[kind])}steps/s"
        needs = f"about {days:.3g} days at {speed}; more than {MOST_DAYS:g} days need --yes"
        raise InputError(f"The experiment simulates {work}, {needs}.")
    return budget


def available_memory() -> int:
    """Return the bytes of main memory available now, within the limit of a container where there is one."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file, name in (("/proc/meminfo", "MemAvailable:"), ("/sys/fs/cgroup/memory.max", "")):
        with suppress(OSError, StopIteration, ValueError, IndexError):  # another system, or no limit
            line = next(line for line in Path(file).read_text().splitlines() if line.startswith(name))
            limits.append(int(line.removeprefix(name).split()[0]) * (1024 if name else 1))
    return min(limits)
