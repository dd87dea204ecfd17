"""What every controller must do, as one check for our own and for users' controllers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep.blocks import Stream
from metastep.errors import InputError
from metastep.mdp import Learners, MetaMDP, Tasks, advance, begin
from metastep.meta.loop import Controller


def check_controller(controller: Controller, mdp: MetaMDP, *, seed: int = 0, num_updates: int = 3) -> None:
    """Raise `InputError` with one sentence unless the controller keeps the contract that the shared loop relies on.

    It has a name; it proposes finite float32 numbers of shape (learners, coordinates), also for learners whose estimate is
    not finite; the same tasks give the same bits; `propose` changes nothing; and what it proposes for a learner does not
    depend on the other learners of the block.

    Args:
        controller: what to check.
        mdp: a meta-MDP it can serve, with blocks of two learners or more; a small one will do.
        seed: of the tasks.
        num_updates: how long it is watched.
    """
    name: Any = controller.name
    _require(isinstance(name, str) and bool(name), f"controller: the name {name!r} must be a non-empty string.")
    _require(mdp.block_size >= 2, f"check_controller: blocks of {mdp.block_size} learner, needed are at least 2.")
    tasks = mdp.tasks(seed, Stream.VALIDATION, 0)
    first = _proposals(controller, mdp, tasks, num_updates)
    again = _proposals(controller, mdp, tasks, num_updates)
    _require(np.array_equal(first, again), f"controller {name}: the same tasks must give the same bits.")
    other = tasks._replace(theta=tasks.theta.at[0].add(0.5), context=tasks.context.at[0].set(tasks.context[1]))
    apart = _proposals(controller, mdp, other, num_updates)
    _require(
        np.array_equal(first[:, 1:], apart[:, 1:]), f"controller {name}: a proposal must not depend on other learners."
    )
    _check_broken_learner(controller, mdp, tasks)


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise InputError(sentence)


def _proposals(controller: Controller, mdp: MetaMDP, tasks: Tasks, num_updates: int) -> NDArray[np.float32]:
    """What the controller proposes over some updates, each checked: (updates, learners, coordinates)."""
    learners = begin(mdp, tasks)
    state = controller.init(mdp, learners)
    proposals = []
    for _ in range(num_updates):
        proposal = controller.propose(state, learners)
        _check_proposal(controller, mdp, proposal)
        repeated = controller.propose(state, learners)
        _require(np.array_equal(proposal, repeated), f"controller {controller.name}: propose must change nothing.")
        after = advance(mdp, learners, proposal)
        state = controller.observe(state, learners, proposal, after)
        learners = after
        proposals.append(np.asarray(proposal))
    return np.stack(proposals)


def _check_proposal(controller: Controller, mdp: MetaMDP, proposal: Array) -> None:
    name, expected = controller.name, (mdp.block_size, mdp.space.num_coordinates)
    shape = tuple(proposal.shape)
    _require(shape == expected, f"controller {name}: proposals have shape {shape}, expected is {expected}.")
    _require(proposal.dtype == jnp.float32, f"controller {name}: proposals are {proposal.dtype}, expected is float32.")
    _require(bool(jnp.all(jnp.isfinite(proposal))), f"controller {name}: proposals must be finite.")


def _check_broken_learner(controller: Controller, mdp: MetaMDP, tasks: Tasks) -> None:
    """A learner without a usable estimate must not get a proposal that is not finite, now or later."""
    broken = _without_estimate(begin(mdp, tasks))
    state = controller.init(mdp, broken)
    proposal = controller.propose(state, broken)
    _check_proposal(controller, mdp, proposal)
    state = controller.observe(state, broken, proposal, broken)
    _check_proposal(controller, mdp, controller.propose(state, broken))


def _without_estimate(learners: Learners) -> Learners:
    estimate = jax.tree.map(lambda array: array.at[0].set(jnp.nan), learners.estimate)
    return learners._replace(estimate=estimate, flagged=learners.flagged.at[0].set(True))
