"""The contract of controllers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from metastep.mdp import Learners, MetaMDP, Tasks
from metastep.mdp.blocks import Stream
from metastep.mdp.controller import Controller, ControllerState, TaskSource
from metastep.testing.subject import Subject, named, other_first, same


def check_controller(controller: Controller, mdp: MetaMDP, *, seed: int = 0, num_updates: int = 3) -> None:
    """Raise `InputError` with one sentence unless the controller keeps the contract that the shared loop relies on.

    It has a name; it proposes finite float32 numbers of shape (learners, coordinates), also for learners whose estimate is
    not finite; the same tasks give the same bits; `propose` changes nothing; what it proposes for a learner does not depend
    on the other learners of the block; a controller without memory proposes the same after a new `init`; and what it reports
    has one number for each learner and update.

    Args:
        controller: what to check; one that has to be trained first must be (`prepared`).
        mdp: a meta-MDP it can serve, with blocks of two learners or more; a small one will do.
        seed: of the tasks.
        num_updates: how long it is watched.
    """
    subject = named("controller", controller)
    subject.flag("is_memoryless")
    subject.flag("is_yardstick")
    sources: Any = getattr(controller, "shaped_by", None)
    is_tuple = isinstance(sources, tuple) and all(isinstance(source, TaskSource) for source in sources)
    subject.require(is_tuple, f"`shaped_by` must be a tuple of metastep.mdp.controller.TaskSource, got {sources!r}")
    subject.methods("prepared", "init", "propose", "observe", "report")
    tasks = mdp.tasks(seed, Stream.VALIDATION, 0)
    other = other_first(subject, mdp, tasks)
    first = _proposals(subject, mdp, tasks, num_updates)
    again = _proposals(subject, mdp, tasks, num_updates)
    subject.require(same(first, again), "the same tasks must give the same bits")
    apart = _proposals(subject, mdp, other, num_updates)
    subject.require(same(first[:, 1:], apart[:, 1:]), "a proposal must not depend on other learners")
    _check_broken_learner(subject, mdp, tasks)


def _proposals(subject: Subject, mdp: MetaMDP, tasks: Tasks, num_updates: int) -> NDArray[np.float32]:
    """What the controller proposes over some updates, each checked: (updates, learners, coordinates)."""
    controller, learners = subject.part, mdp.begin(tasks)
    state = subject.call("init", controller.init, mdp, learners)
    proposals = []
    for _ in range(num_updates):
        proposal = _proposal(subject, mdp, state, learners)
        subject.require(same(proposal, controller.propose(state, learners)), "propose must change nothing")
        if controller.is_memoryless:
            anew = controller.propose(controller.init(mdp, learners), learners)
            subject.require(same(proposal, anew), "`is_memoryless` is True, but a new `init` changes its proposals")
        after = mdp.advance(learners, proposal)
        state = subject.call("observe", controller.observe, state, learners, proposal, after)
        learners = after
        proposals.append(np.asarray(proposal))
    report = subject.call("report", controller.report, state)
    subject.require(isinstance(report, dict), f"`report` must return a dict, got a {type(report).__name__}")
    for what, value in report.items():
        subject.array(f"{what!r} of `report`", value, (num_updates, mdp.block_size), np.number)
    return np.stack(proposals)


def _proposal(subject: Subject, mdp: MetaMDP, state: ControllerState, learners: Learners) -> Any:
    proposal = subject.call("propose", subject.part.propose, state, learners)
    subject.array("a proposal", proposal, (mdp.block_size, mdp.space.num_coordinates))
    subject.require(jnp.all(jnp.isfinite(proposal)), "proposals must be finite")
    return proposal


def _check_broken_learner(subject: Subject, mdp: MetaMDP, tasks: Tasks) -> None:
    """A learner without a usable estimate must not get a proposal that is not finite, now or later."""
    learners, controller = mdp.begin(tasks), subject.part
    estimate = jax.tree.map(lambda array: array.at[0].set(jnp.nan), learners.estimate)
    broken = learners._replace(estimate=estimate, flagged=learners.flagged.at[0].set(True))
    state = subject.call("init", controller.init, mdp, broken)
    proposal = _proposal(subject, mdp, state, broken)
    _proposal(subject, mdp, subject.call("observe", controller.observe, state, broken, proposal, broken), broken)
