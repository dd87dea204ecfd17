import jax.numpy as jnp
import numpy as np

from metastep.controllers import Metagrad
from metastep.controllers.schedules import cosine
from metastep.mdp import Learners
from metastep.mdp.blocks import Stream
from tests.controllers.problems import BLOCK, make_mdp


def on_a_bowl(learners: Learners, theta: np.ndarray) -> Learners:
    """The learners at theta (learners, parameters) of the quadratic -||theta||^2 / 2, whose gradient is -theta."""
    values = jnp.asarray(theta, jnp.float32)
    estimate = learners.estimate._replace(natural_gradient=-values, gradient=jnp.full_like(values, jnp.nan))
    return learners._replace(theta=values, estimate=estimate)


def step_sizes_on_a_bowl(controller: Metagrad, start: float, num_updates: int) -> tuple[np.ndarray, np.ndarray]:
    """Distances to the optimum before each update, and the step sizes, both (updates, learners)."""
    mdp = make_mdp()
    template = mdp.begin(mdp.tasks(0, Stream.TUNING, 0))
    theta = np.zeros((BLOCK, mdp.num_parameters))
    theta[:, 0] = start
    learners = on_a_bowl(template, theta)
    state = controller.init(mdp, learners)
    distances, steps = [], []
    for _ in range(num_updates):
        proposal = controller.propose(state, learners)
        moved = mdp.rule.apply(learners.theta, learners.estimate, mdp.space.named(proposal), None).theta
        after = on_a_bowl(template, np.asarray(moved))
        state = controller.observe(state, learners, proposal, after)
        distances.append(np.linalg.norm(learners.theta, axis=1))
        steps.append(np.asarray(proposal[:, 0]))
        learners = after
    return np.stack(distances), np.stack(steps)


def test_the_step_grows_while_gradients_agree_and_shrinks_when_they_oppose() -> None:
    """On a line through the optimum the cosine is 1 before it and -1 when it was overshot."""
    distances, steps = step_sizes_on_a_bowl(Metagrad(0.1, 0.1), 3.0, 20)
    changes, overshot = np.diff(steps[:, 0]), distances[:-1, 0] < steps[:-1, 0]
    np.testing.assert_allclose(changes[~overshot & (steps[:-1, 0] < 1.9)], 0.1, atol=1e-5)
    np.testing.assert_allclose(changes[overshot & (steps[:-1, 0] > 0.1)], -0.1, atol=1e-5)
    assert overshot.any()
    assert not overshot[:5].any()


def test_the_step_stays_inside_the_space() -> None:
    _, up = step_sizes_on_a_bowl(Metagrad(1.5, 5.0), 100.0, 4)
    np.testing.assert_allclose(up[:, 0], [1.5, 2.0, 2.0, 2.0])
    _, down = step_sizes_on_a_bowl(Metagrad(1.0, 5.0), 0.5, 3)
    np.testing.assert_allclose(down[:2, 0], [1.0, 0.0])
    _, first = step_sizes_on_a_bowl(Metagrad(7.0, 0.0), 100.0, 2)
    np.testing.assert_array_equal(first, 2.0)


def test_every_learner_has_its_own_start_and_beta() -> None:
    starts, betas = np.linspace(0.1, 0.8, BLOCK), np.linspace(0.0, 0.07, BLOCK)
    _, steps = step_sizes_on_a_bowl(Metagrad(starts, betas), 100.0, 3)
    np.testing.assert_allclose(steps[2], starts + 2.0 * betas, rtol=1e-5)


def test_cosine() -> None:
    first = jnp.asarray([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [jnp.nan, 1.0], [1e30, 1e30], [1e-30, 0.0]], jnp.float32)
    second = jnp.asarray([[0.0, 2.0], [3.0, 3.0], [1.0, 0.0], [1.0, 1.0], [-2e30, -2e30], [1e-30, 0.0]], jnp.float32)
    np.testing.assert_allclose(cosine(first, second)[:, 0], [0.0, 1.0, 0.0, 0.0, -1.0, 1.0], atol=1e-6)
