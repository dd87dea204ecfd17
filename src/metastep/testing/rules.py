"""The contract of update rules."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from metastep.rules import ActorCriticRule, Rule, Update, unusable
from metastep.rules.spaces import Values
from metastep.simulation.gradients import Estimate
from metastep.testing.actor_critic import check_actor_critic_rule
from metastep.testing.subject import Subject, named, same

_LEARNERS, _PARAMETERS = 5, 3
_TOLERANCE = 1e-4


def check_rule(rule: Rule | ActorCriticRule, *, seed: int = 0) -> None:
    """Raise `InputError` with one sentence unless the rule keeps the contract of `metastep.rules.Rule`.

    Checked are: the declared fields; that it can select a compiled program; shapes and dtypes of direction, state, theta and
    flags; that the same input gives the same bits; that learners do not depend on each other; that a direction that is zero
    or not finite leaves theta and state, and is flagged; and that a rule that says so moves along a line. Rules that learn from
    steps are held to the same as far as they have it.
    """
    if isinstance(rule, ActorCriticRule):
        check_actor_critic_rule(rule, seed)
        return
    subject = named("rule", rule)
    names: Any = getattr(rule, "hyperparameters", None)
    subject.words("hyperparameters", names)
    distinct = names and len(set(names)) == len(names) and all(name.isidentifier() for name in names)
    subject.require(distinct, f"`hyperparameters` must name one identifier or more, each once, got {names!r}")
    damping: Any = getattr(rule, "damping", None)
    values = damping if isinstance(damping, tuple) else (0.5 if damping is None else damping,)
    is_share = bool(values) and all(isinstance(value, float) and 0.0 < value < 1.0 for value in values)
    subject.require(is_share, f"`damping` must be None or lie in (0, 1), got {damping!r}")
    subject.flag("is_along_a_line")
    right = not rule.is_along_a_line or len(names) == 1
    subject.require(right, f"`is_along_a_line` is True, which needs one hyperparameter, but there are {len(names)}")
    subject.methods("direction", "init", "apply")
    subject.hashable()
    keys = jax.random.split(jax.random.key(seed), 5)
    theta, gradient, natural = (jax.random.normal(key, (_LEARNERS, _PARAMETERS), jnp.float32) for key in keys[:3])
    mean_return, return_error, num_steps = jax.random.uniform(keys[3], (3, _LEARNERS), jnp.float32, 0.1, 1.0)
    more = tuple(natural * (2.0 + index) for index in range(len(values) - 1))
    estimate = Estimate(mean_return, return_error, gradient, natural, num_steps, more)
    drawn = jax.random.uniform(keys[4], (_LEARNERS, len(names)), jnp.float32, 0.1, 0.9)
    choices = jnp.zeros(_LEARNERS, jnp.int32)
    chosen = {name: choices if name == "direction" else drawn[:, index] for index, name in enumerate(names)}
    _check_shapes(subject, rule, theta, estimate, chosen)

    def evaluate(theta: Array, estimate: Estimate, chosen: Values) -> tuple[Any, ...]:
        """Two updates, so that the state is not the one it starts as."""
        start = rule.init(theta)
        first = rule.apply(theta, estimate, chosen, start)
        second = rule.apply(first.theta, estimate, chosen, first.state)
        return start, rule.direction(estimate), second

    inputs = theta, estimate, chosen
    others = jax.tree.map(lambda array: array.at[0].add(jnp.float32(0.5).astype(array.dtype)), inputs)
    *_, last = subject.apart(("init", "direction", "apply"), evaluate, inputs, others)
    _check_unusable(subject, rule, last, estimate, chosen)
    if rule.is_along_a_line:
        _check_line(subject, rule, last, estimate)


def _check_shapes(subject: Subject, rule: Rule, theta: Array, estimate: Estimate, chosen: Values) -> None:
    direction = subject.trace("direction", rule.direction, estimate)
    subject.array("what `direction` returns", direction, theta.shape)
    state = subject.trace("init", rule.init, theta)
    for leaf in jax.tree.leaves(state):
        first = leaf.shape[:1] == theta.shape[:1]
        subject.require(first, f"an array of the state has shape {leaf.shape}, its first axis must be the learners'")
    after = subject.trace("apply", rule.apply, theta, estimate, chosen, state)
    subject.returns("apply", after, "metastep.rules.Update", *Update._fields)
    subject.array("the theta that `apply` returns", after.theta, theta.shape)
    subject.array("`flagged`", after.flagged, theta.shape[:1], np.bool_)
    subject.alike("what `apply` returns", after.state, state)


def _check_unusable(subject: Subject, rule: Rule, last: Update, estimate: Estimate, chosen: Values) -> None:
    """The first learner has no gradient, the next ones have gradients that are not finite."""
    values = jnp.asarray([0.0, jnp.nan, jnp.inf], jnp.float32)[:, None]
    gradients = {name: getattr(estimate, name).at[:3].set(values) for name in ("gradient", "natural_gradient")}
    broken = estimate._replace(**gradients)
    after = rule.apply(last.theta, broken, chosen, last.state)
    stuck = np.asarray(unusable(rule.direction(broken)))
    stays = same(*(jax.tree.map(lambda array: array[stuck], (each.theta, each.state)) for each in (last, after)))
    subject.require(
        stays and np.asarray(after.flagged)[stuck].all(),
        "a direction that is zero or not finite must leave theta and state, and be flagged; `metastep.rules.guard` helps",
    )
    subject.require(np.isfinite(after.theta).all(), "theta must stay finite where a gradient is not")


def _check_line(subject: Subject, rule: Rule, last: Update, estimate: Estimate) -> None:
    def moved(theta: Array, stepsize: float) -> Any:
        chosen = {name: jnp.full(_LEARNERS, stepsize, jnp.float32) for name in rule.hyperparameters}
        return np.asarray(rule.apply(theta, estimate, chosen, last.state).theta - theta)

    origin = jnp.zeros_like(last.theta)
    unit = moved(origin, 1.0)
    for theta, stepsize in ((last.theta, 0.0), (last.theta, 1.0), (origin, 0.25), (last.theta, 2.0)):
        subject.require(
            np.allclose(moved(theta, stepsize), stepsize * unit, _TOLERANCE, _TOLERANCE),
            "`is_along_a_line` is True, but theta' - theta is not h times a vector that depends on neither h nor theta",
        )
