from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from numpy.typing import NDArray

from metastep import rules
from metastep._core.errors import InputError
from metastep.rules import NGA, GradientAscent, Rule
from metastep.simulation.gradients import Estimate

Floats = NDArray[np.float64]
NUM_LEARNERS, NUM_PARAMETERS, NUM_UPDATES = 3, 4, 20


def estimate(gradient: Array | Floats, natural: Array | Floats | None = None) -> Estimate:
    gradient = jnp.asarray(gradient, jnp.float32)
    nothing = jnp.zeros(gradient.shape[:1], jnp.float32)
    other = gradient if natural is None else jnp.asarray(natural, jnp.float32)
    return Estimate(nothing, nothing, gradient, other, nothing)


def stepsizes(values: float | list[float] | Floats) -> dict[str, Array]:
    return {"stepsize": jnp.broadcast_to(jnp.asarray(values, jnp.float32), (NUM_LEARNERS,))}


def keras_adam(theta: Floats, gradients: Floats, rates: Floats) -> Floats:
    """Keras 3's Adam with its signs turned uphill, one update after the other in float64."""
    first, second = np.zeros_like(theta), np.zeros_like(theta)
    for t, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        alpha = rate * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        first += (gradient - first) * (1 - 0.9)
        second += (gradient**2 - second) * (1 - 0.999)
        theta = theta + first * alpha[:, None] / (np.sqrt(second) + 1e-7)
    return theta


def keras_rmsprop(theta: Floats, gradients: Floats, rates: Floats) -> Floats:
    """Keras 3's RMSprop without momentum: epsilon inside the root."""
    square = np.zeros_like(theta)
    for gradient, rate in zip(gradients, rates, strict=True):
        square = 0.9 * square + 0.1 * gradient**2
        theta = theta + rate[:, None] * gradient / np.sqrt(square + 1e-7)
    return theta


def history(scale: float) -> tuple[Floats, Floats, Floats]:
    """A theta, 20 gradients of the given size, and step sizes that differ by learner and change from update to update."""
    generator = np.random.default_rng(1)
    theta = generator.normal(size=(NUM_LEARNERS, NUM_PARAMETERS)).astype(np.float32).astype(np.float64)
    gradients = scale * generator.normal(size=(NUM_UPDATES, NUM_LEARNERS, NUM_PARAMETERS))
    return theta, gradients, generator.uniform(0.01, 1.0, (NUM_UPDATES, NUM_LEARNERS))


@pytest.mark.parametrize(("name", "formula"), [("adam", keras_adam), ("rmsprop", keras_rmsprop)])
@pytest.mark.parametrize(("follows", "scale"), [("gradient", 1e-7), ("natural_gradient", 1e4)])
def test_twenty_updates_equal_the_formula_of_keras(
    name: str, formula: Callable[[Floats, Floats, Floats], Floats], follows: str, scale: float
) -> None:
    theta, gradients, rates = history(scale)
    expected = formula(theta, gradients, rates)
    rule, current = rules.make(name, follows=follows), jnp.asarray(theta, jnp.float32)
    state, apply = rule.init(current), jax.jit(rule.apply)
    for gradient, rate in zip(gradients, rates, strict=True):
        noise = 1e3 * np.ones_like(gradient)  # the other gradient, which must not matter
        both = estimate(gradient, noise) if follows == "gradient" else estimate(noise, gradient)
        update = apply(current, both, stepsizes(rate), state)
        assert not np.asarray(update.flagged).any()
        current, state = update.theta, update.state
    np.testing.assert_allclose(current, expected, rtol=2e-5, atol=2e-5)
    assert np.abs(expected - theta).max() > 1e-3


@pytest.mark.parametrize(
    ("rule", "uses_natural", "is_normalised"),
    [(NGA(), True, True), (GradientAscent(normalised=True), False, True), (GradientAscent(), False, False)],
    ids=["nga", "normalised gradient", "gradient"],
)
def test_ascent_by_hand(rule: Rule, uses_natural: bool, is_normalised: bool) -> None:
    theta, gradients, _ = history(1.0)
    gradient, natural = gradients[:2]
    sizes = np.array([0.0, 0.5, 8.0])
    batch = estimate(gradient, natural)
    update = rule.apply(jnp.asarray(theta, jnp.float32), batch, stepsizes(sizes), None)
    direction = natural if uses_natural else gradient
    np.testing.assert_array_equal(rule.direction(batch), batch.natural_gradient if uses_natural else batch.gradient)
    if is_normalised:
        direction = direction / np.linalg.norm(direction, axis=1, keepdims=True)
    np.testing.assert_allclose(update.theta, theta + sizes[:, None] * direction, rtol=1e-5, atol=1e-6)
    assert not np.asarray(update.flagged).any()


@pytest.mark.parametrize("scale", [1e-38, 2e37])
def test_normalising_survives_squares_outside_of_float32(scale: float) -> None:
    gradient = scale * np.array([[3.0, 4.0, 0.0, 0.0]] * NUM_LEARNERS)
    gradient[1] = [1.5e38, 2e38, 0.0, 0.0]  # too large
    update = NGA().apply(jnp.zeros((NUM_LEARNERS, 4), jnp.float32), estimate(gradient), stepsizes(10.0), None)
    np.testing.assert_array_equal(update.flagged, [False, True, False])
    np.testing.assert_allclose(update.theta, [[6.0, 8.0, 0.0, 0.0], [0.0] * 4, [6.0, 8.0, 0.0, 0.0]], rtol=1e-6)


def warmed_up(rule: Rule) -> tuple[Array, object]:
    """After one ordinary update, so that the state is not that of `init`."""
    theta, gradients, _ = history(1.0)
    start = jnp.asarray(theta, jnp.float32)
    update = rule.apply(start, estimate(gradients[0]), stepsizes(0.1), rule.init(start))
    return update.theta, update.state


@pytest.mark.parametrize("name", ["adam", "rmsprop"])
def test_a_gradient_whose_square_overflows_does_not_stop_the_learner_for_good(name: str) -> None:
    rule = rules.make(name)
    theta, state = warmed_up(rule)
    gradient = np.ones((NUM_LEARNERS, NUM_PARAMETERS))
    broken = gradient.copy()
    broken[1, 2] = 1e25  # finite, but not its square
    sizes = stepsizes([0.5, 0.5, 0.25])
    update, usual = (jax.jit(rule.apply)(theta, estimate(each), sizes, state) for each in (broken, gradient))
    far = rule.apply(theta, estimate(gradient), stepsizes([0.5, np.inf, 0.5]), state)
    np.testing.assert_array_equal([update.flagged, far.flagged], [[False, True, False]] * 2)
    np.testing.assert_array_equal(far.theta[1], theta[1])
    trees = ((each.theta, each.state) for each in (update, usual))
    for after, expected, before in zip(*map(jax.tree.leaves, (*trees, (theta, state))), strict=True):
        np.testing.assert_array_equal(after[1], before[1])
        np.testing.assert_array_equal(after[np.array([0, 2])], expected[np.array([0, 2])])
        assert (np.asarray(after)[[0, 2]] != np.asarray(before)[[0, 2]]).any()


MENU = rules.Menu(("nga damping=0.01", "rmsprop", "nga damping=0.5", "adam", "gradient normalised=true"))


def test_every_direction_of_a_menu_is_the_update_of_its_rule_with_moments_that_run_on() -> None:
    """After updates along another direction, each is where its own rule would be had it seen the same gradients."""
    rng = np.random.default_rng(0)
    theta = jnp.asarray(rng.normal(size=(NUM_LEARNERS, NUM_PARAMETERS)), jnp.float32)
    gradients = rng.normal(size=(6, NUM_LEARNERS, NUM_PARAMETERS))
    alone = [(rule, rule.init(theta)) for rule in MENU.rules]
    state, where = MENU.init(theta), theta
    for gradient in gradients:
        both = estimate(gradient, gradient[:, ::-1])._replace(more=(jnp.asarray(gradient**3, jnp.float32),))
        for index, (rule, memory) in enumerate(alone):
            own = both._replace(natural_gradient=both.more[0]) if index == 2 else both
            expected = rule.apply(where, own, stepsizes(0.25), memory)
            along = {"direction": jnp.full(NUM_LEARNERS, index, jnp.int32)} | stepsizes(0.25)
            found = MENU.apply(where, both, along, state)
            np.testing.assert_allclose(found.theta, expected.theta, rtol=1e-6, atol=1e-6)
            alone[index] = rule, expected.state
        unit = both.gradient / jnp.linalg.norm(both.gradient, axis=1)[:, None]
        np.testing.assert_allclose(MENU.steps(both, state)[:, 4], unit, rtol=1e-5)
        mixed = {"direction": jnp.asarray([0, 3, 1], jnp.int32)} | stepsizes([0.5, 0.1, 0.2])
        update = MENU.apply(where, both, mixed, state)
        where, state = update.theta, update.state


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("adam", {"follows": "hessian"}, "meta.rule.follows: 'hessian' must be 'gradient' or 'natural_gradient'"),
        ("menu", {"directions": ()}, r"\[\] must name one direction or more, each once"),
        ("menu", {"directions": ("adma",)}, r"meta.rule.directions: 'adma' is not registered, .*Did you mean 'adam'"),
        ("menu", {"directions": ("nga damping",)}, "'nga damping' must be a rule's name and options like damping=0.1"),
        ("menu", {"directions": ("nga damping=much",)}, "'nga damping=much' must be a rule's name and options"),
        ("menu", {"directions": ("menu",)}, "'menu' must be a rule that moves along one line"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(name: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        rules.make(name, **options)
