"""The contract of controllers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

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

    Args:
        controller: what to check, trained (`prepared`) if it has to be.
        mdp: any meta-MDP it can serve, with blocks of at least two learners.
        seed: of the tasks.
        num_updates: how many updates to watch.
    """
    subject = named("controller", controller)
    subject.declares(is_memoryless=bool, is_yardstick=bool)
    sources: Any = getattr(controller, "shaped_by", None)
    is_tuple = isinstance(sources, tuple) and all(isinstance(source, TaskSource) for source in sources)
    subject.require(is_tuple, f"`shaped_by` must be a tuple of metastep.mdp.controller.TaskSource, got {sources!r}")
    subject.has_methods("prepared", "init", "propose", "observe", "report")
    tasks = mdp.tasks(seed, Stream.VALIDATION, 0)
    other = other_first(subject, mdp, tasks)
    first, again, beside = (_proposals(subject, mdp, each, num_updates) for each in (tasks, tasks, other))
    subject.require(same(first, again), "the same tasks must give the same bits")
    subject.require(same(first[:, 1:], beside[:, 1:]), "a proposal must not depend on other learners")
    # A learner without a usable estimate must get a finite proposal, now and later.
    learners = mdp.begin(tasks)
    estimate = jax.tree.map(lambda array: array.at[0].set(jnp.nan), learners.estimate)
    broken = learners._replace(estimate=estimate, flagged=learners.flagged.at[0].set(True))
    state = subject.call("init", controller.init, mdp, broken)
    proposal = _proposal(subject, mdp, state, broken)
    _proposal(subject, mdp, subject.call("observe", controller.observe, state, broken, proposal, broken), broken)


def _proposals(subject: Subject, mdp: MetaMDP, tasks: Tasks, num_updates: int) -> NDArray[np.float32]:
    """Return checked proposals over some updates: (updates, learners, coordinates)."""
    controller, learners = subject.part, mdp.begin(tasks)
    state = subject.call("init", controller.init, mdp, learners)
    proposals = []
    for _ in range(num_updates):
        proposal = _proposal(subject, mdp, state, learners)
        subject.require(same(proposal, controller.propose(state, learners)), "propose must change nothing")
        if controller.is_memoryless:
            again = controller.propose(controller.init(mdp, learners), learners)
            subject.require(same(proposal, again), "`is_memoryless` is True, but a new `init` changes its proposals")
        after = mdp.advance(learners, proposal)
        state = subject.call("observe", controller.observe, state, learners, proposal, after)
        learners = after
        proposals.append(np.asarray(proposal))
    report = subject.call("report", controller.report, state)
    subject.require(isinstance(report, dict), f"`report` must return a dict, got a {type(report).__name__}")
    for what, value in report.items():
        subject.is_array(f"{what!r} of `report`", value, (num_updates, mdp.block_size), np.number)
    return np.stack(proposals)


def _proposal(subject: Subject, mdp: MetaMDP, state: ControllerState, learners: Learners) -> Any:
    proposal = subject.call("propose", subject.part.propose, state, learners)
    subject.is_array("a proposal", proposal, (mdp.block_size, mdp.space.num_coordinates))
    subject.require(jnp.all(jnp.isfinite(proposal)), "proposals must be finite")
    return proposal


def other_first(subject: Subject, mdp: MetaMDP, tasks: Tasks) -> Tasks:
    """Return the same tasks and policies for all learners but the first."""
    subject.require(mdp.block_size >= 2, f"the check needs blocks of at least 2 learners, got {mdp.block_size}")
    return tasks._replace(theta=tasks.theta.at[0].add(0.5), context=tasks.context.at[0].set(tasks.context[1]))
