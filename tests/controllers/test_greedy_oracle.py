import jax.numpy as jnp
import numpy as np

from metastep.controllers import GreedyOracle
from metastep.controllers.search import line_search
from metastep.mdp.blocks import Stream
from tests.controllers.problems import BLOCK, make_mdp


def test_the_search_prices_each_step_with_the_estimator_on_the_controllers_episodes() -> None:
    mdp = make_mdp("cartpole")
    learners = mdp.begin(mdp.tasks(0, Stream.TUNING, 0))
    steps = jnp.linspace(0.0, 2.0, 11, dtype=jnp.float32)
    found = line_search(mdp, learners, steps[:, None])
    for step, row in zip(steps, found, strict=True):
        proposal = {"stepsize": jnp.full(BLOCK, step)}
        moved = mdp.rule.apply(learners.theta, learners.estimate, proposal, None).theta
        expected = mdp.estimator(moved, learners.context, learners.controller_key).mean_return
        np.testing.assert_allclose(row, expected, rtol=1e-4)


def test_the_proposal_is_the_best_step_of_the_search_and_finite() -> None:
    mdp = make_mdp("cartpole")
    learners = mdp.begin(mdp.tasks(0, Stream.TUNING, 0))
    controller = GreedyOracle(num_stepsizes=21)
    proposal = np.asarray(controller.propose(controller.init(mdp, learners), learners))[:, 0]
    grid = mdp.space.candidates(21)[:, 0]
    returns = np.asarray(line_search(mdp, learners, jnp.asarray(grid)[:, None]))
    np.testing.assert_array_equal(proposal, grid[returns.argmax(axis=0)])
    broken = learners._replace(context=learners.context.at[0].set(jnp.nan))
    assert np.all(np.isfinite(controller.propose(controller.init(mdp, broken), broken)))


def test_the_episodes_are_neither_the_current_nor_the_next_batch() -> None:
    mdp = make_mdp("nav2d")
    learners = mdp.begin(mdp.tasks(0, Stream.TUNING, 0))
    still = jnp.zeros((BLOCK, 1), jnp.float32)
    fresh = np.asarray(line_search(mdp, learners, jnp.zeros((2, 1), jnp.float32)))[0]
    assert not np.any(fresh == np.asarray(learners.estimate.mean_return))
    assert not np.any(fresh == np.asarray(mdp.advance(learners, still).estimate.mean_return))
