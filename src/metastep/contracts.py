"""What every controller must do, as one check for our own and for users' controllers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep.blocks import Stream
from metastep.meta.loop import Controller
from metastep.meta.mdp import Learners, MetaMDP, Tasks, advance, begin


def check_controller(controller: Controller, mdp: MetaMDP, *, seed: int = 0, num_updates: int = 3) -> None:
    """Raise AssertionError with one sentence unless the controller keeps the contract that the shared loop relies on.

    It has a name; it proposes finite float32 numbers of shape (learners, coordinates), also for learners whose estimate is
    not finite; the same tasks give the same bits; `propose` changes nothing; and what it proposes for a learner does not
    depend on the other learners of the block.
    """
    name: Any = controller.name
    assert isinstance(name, str), f"controller: the name {name!r} must be a string."
    assert name, "controller: the name must not be empty."
    tasks = mdp.tasks(seed, Stream.VALIDATION, 0)
    assert mdp.block_size >= 2, "check_controller: needs blocks of at least 2 learners."
    first = _proposals(controller, mdp, tasks, num_updates)
    again = _proposals(controller, mdp, tasks, num_updates)
    assert np.array_equal(first, again), f"{name}: the same tasks must give the same bits."
    other = tasks._replace(theta=tasks.theta.at[0].add(0.5), context=tasks.context.at[0].set(tasks.context[1]))
    apart = _proposals(controller, mdp, other, num_updates)
    assert np.array_equal(first[:, 1:], apart[:, 1:]), f"{name}: a proposal must not depend on other learners."
    _check_broken_learner(controller, mdp, tasks)


def _proposals(controller: Controller, mdp: MetaMDP, tasks: Tasks, num_updates: int) -> NDArray[np.float32]:
    """What the controller proposes over some updates, each checked: (updates, learners, coordinates)."""
    learners = begin(mdp, tasks)
    state = controller.init(mdp, learners)
    proposals = []
    for _ in range(num_updates):
        proposal = controller.propose(state, learners)
        _check_proposal(controller, mdp, proposal)
        repeated = np.asarray(controller.propose(state, learners))
        assert np.array_equal(np.asarray(proposal), repeated), f"{controller.name}: propose must change nothing."
        after = advance(mdp, learners, proposal)
        state = controller.observe(state, learners, proposal, after)
        learners = after
        proposals.append(np.asarray(proposal))
    return np.stack(proposals)


def _check_proposal(controller: Controller, mdp: MetaMDP, proposal: Array) -> None:
    shape, expected = tuple(proposal.shape), (mdp.block_size, mdp.space.num_coordinates)
    assert shape == expected, f"{controller.name}: proposals have shape {shape}, expected is {expected}."
    assert proposal.dtype == jnp.float32, f"{controller.name}: proposals are {proposal.dtype}, expected is float32."
    assert bool(jnp.all(jnp.isfinite(proposal))), f"{controller.name}: proposals must be finite."


def _check_broken_learner(controller: Controller, mdp: MetaMDP, tasks: Tasks) -> None:
    """A learner without a usable estimate must not break the others, nor get a proposal that is not finite."""
    whole = begin(mdp, tasks)
    broken = _without_estimate(whole)
    state = controller.init(mdp, broken)
    proposal = controller.propose(state, broken)
    _check_proposal(controller, mdp, proposal)
    state = controller.observe(state, broken, proposal, broken)
    _check_proposal(controller, mdp, controller.propose(state, broken))


def _without_estimate(learners: Learners) -> Learners:
    estimate = jax.tree.map(lambda array: array.at[0].set(jnp.nan), learners.estimate)
    return learners._replace(estimate=estimate, flagged=learners.flagged.at[0].set(True))
