"""The contracts of controllers and features, which see learners in a meta-MDP."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from metastep import features
from metastep.features import Feature
from metastep.mdp import Learners, MetaMDP, Tasks
from metastep.mdp.blocks import Stream
from metastep.mdp.controller import Controller, ControllerState, TaskSource
from metastep.testing.subject import Subject, named, same


def check_controller(controller: Controller, mdp: MetaMDP, *, seed: int = 0, num_updates: int = 3) -> None:
    """Raise `InputError` with one sentence unless the controller keeps the contract that the shared loop relies on.

    Checked: the declared fields; that proposals are finite float32 numbers of shape (learners, coordinates), also for learners
    whose estimate is not finite; that the same tasks give the same bits; that `propose` changes nothing; that proposals for a
    learner do not depend on other learners; that a controller with `is_memoryless` proposes the same after a new `init`; and
    that it reports one number for each learner and update.

    The controller must be trained (`prepared`) if it has to be; `mdp` is any meta-MDP with blocks of at least two learners.
    """
    subject = named("controller", controller)
    subject.declares(is_memoryless=bool, is_yardstick=bool)
    sources: Any = controller.shaped_by
    is_tuple = isinstance(sources, tuple) and all(isinstance(source, TaskSource) for source in sources)
    subject.require(is_tuple, f"`shaped_by` must be a tuple of metastep.mdp.controller.TaskSource, got {sources!r}")

    def propose(state: ControllerState, learners: Learners) -> Any:
        proposal = subject.call("propose", controller.propose, state, learners)
        subject.is_array("a proposal", proposal, (mdp.block_size, mdp.space.num_coordinates))
        subject.require(jnp.all(jnp.isfinite(proposal)), "proposals must be finite")
        return proposal

    def run(tasks: Tasks) -> NDArray[np.float32]:
        """Return proposals over some updates: (updates, learners, coordinates)."""
        learners = mdp.begin(tasks)
        state = subject.call("init", controller.init, mdp, learners)
        proposals = []
        for _ in range(num_updates):
            proposal = propose(state, learners)
            subject.require(same(proposal, controller.propose(state, learners)), "propose must change nothing")
            if controller.is_memoryless:
                again = controller.propose(controller.init(mdp, learners), learners)
                wrong = "`is_memoryless` is True, but a new `init` changes its proposals"
                subject.require(same(proposal, again), wrong)
            after = mdp.advance(learners, proposal)
            state = subject.call("observe", controller.observe, state, learners, proposal, after)
            learners = after
            proposals.append(np.asarray(proposal))
        report = subject.call("report", controller.report, state)
        subject.require(isinstance(report, dict), f"`report` must return a dict, got a {type(report).__name__}")
        for what, value in report.items():
            subject.is_array(f"{what!r} of `report`", value, (num_updates, mdp.block_size), np.number)
        return np.stack(proposals)

    tasks, others = _neighbours(subject, mdp, seed)
    first = run(tasks)
    subject.require(same(first, run(tasks)), "the same tasks must give the same bits")
    subject.require(same(first[:, 1:], run(others)[:, 1:]), "a proposal must not depend on other learners")
    # A learner without a usable estimate must get a finite proposal, now and later.
    learners = mdp.begin(tasks)
    estimate = jax.tree.map(lambda array: array.at[0].set(jnp.nan), learners.estimate)
    broken = learners._replace(estimate=estimate, flagged=learners.flagged.at[0].set(True))
    state = subject.call("init", controller.init, mdp, broken)
    proposal = propose(state, broken)
    propose(subject.call("observe", controller.observe, state, broken, proposal, broken), broken)


def check_feature(feature: Feature, mdp: MetaMDP, *, seed: int = 0) -> None:
    """Raise `InputError` with one sentence unless the feature keeps the contract of `metastep.features.Feature`.

    Checked: that it has a name, a size and as many names of columns and bounds; that it gives float32 numbers of shape
    (learners, size); that the same learners give the same bits; and that a learner's numbers do not depend on other learners.
    `mdp` is any meta-MDP that has such features, with blocks of at least two learners.
    """
    subject = named("feature", feature)
    size = subject.call("size", feature.size, mdp)
    subject.require(isinstance(size, int) and size >= 1, f"`size` must be a whole number of at least 1, got {size!r}")
    columns: Any = subject.call("columns", feature.columns, mdp)
    is_right = isinstance(columns, tuple) and all(isinstance(word, str) and word for word in columns)
    is_right = is_right and len(columns) == len(set(columns)) == size
    subject.require(is_right, f"`columns` must be a tuple of {size} different names, got {columns!r}")
    bounds: Any = subject.call("bounds", feature.bounds, mdp)
    is_pair = isinstance(bounds, tuple) and [np.shape(each) for each in bounds] == [(size,)] * 2
    is_right = is_pair and all(low <= high for low, high in zip(*bounds, strict=True))
    subject.require(is_right, f"`bounds` must be {size} lower and {size} upper ones, at least as high, got {bounds!r}")

    def evaluate(learners: Learners) -> tuple[Any]:
        return (features.evaluate(feature, mdp.diagnostics(learners), mdp.block_size),)

    learners, others = (mdp.begin(tasks) for tasks in _neighbours(subject, mdp, seed))
    (found,) = subject.trace("__call__", evaluate, learners)
    subject.is_array("what `__call__` returns", found, (mdp.block_size, size))
    subject.independent(("__call__",), evaluate, (learners,), (others,))


def _neighbours(subject: Subject, mdp: MetaMDP, seed: int) -> tuple[Tasks, Tasks]:
    """Return tasks, and the same tasks and policies for all learners but the first."""
    subject.require(mdp.block_size >= 2, f"the check needs blocks of at least 2 learners, got {mdp.block_size}")
    tasks = mdp.tasks(seed, Stream.VALIDATION, 0)
    return tasks, tasks._replace(theta=tasks.theta.at[0].add(0.5), context=tasks.context.at[0].set(tasks.context[1]))
