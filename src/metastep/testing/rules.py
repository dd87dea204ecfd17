"""The contract of update rules."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from metastep.gradients import Estimate
from metastep.rules import Rule, Update, unusable
from metastep.testing.subject import Subject, named, same

_LEARNERS, _PARAMETERS = 5, 3
_TOLERANCE = 1e-4


def check_rule(rule: Rule, *, seed: int = 0) -> None:
    """Raise `InputError` with one sentence unless the rule keeps the contract of `metastep.rules.Rule`.

    Checked are: the declared fields; that it can select a compiled program; shapes and dtypes of direction, state, theta and
    flags; that the same input gives the same bits; that learners do not depend on each other; that a direction that is zero
    or not finite leaves theta and state, and is flagged; and that a rule that says so moves along a line.
    """
    subject = named("rule", rule)
    names: Any = getattr(rule, "hyperparameters", None)
    subject.words("hyperparameters", names)
    distinct = names and len(set(names)) == len(names) and all(name.isidentifier() for name in names)
    subject.require(distinct, f"`hyperparameters` must name one identifier or more, each once, got {names!r}")
    damping: Any = getattr(rule, "damping", None)
    is_share = damping is None or (isinstance(damping, float) and 0.0 < damping < 1.0)
    subject.require(is_share, f"`damping` must be None or lie in (0, 1), got {damping!r}")
    subject.flag("is_along_a_line")
    subject.methods("direction", "init", "apply")
    subject.hashable()
    keys = jax.random.split(jax.random.key(seed), 5)
    theta, gradient, natural = (jax.random.normal(key, (_LEARNERS, _PARAMETERS), jnp.float32) for key in keys[:3])
    mean_return, return_error, num_steps = jax.random.uniform(keys[3], (3, _LEARNERS), jnp.float32, 0.1, 1.0)
    estimate = Estimate(mean_return, return_error, gradient, natural, num_steps)
    chosen = jax.random.uniform(keys[4], (_LEARNERS, len(names)), jnp.float32, 0.1, 0.9)
    _check_shapes(subject, rule, theta, estimate, chosen)

    def evaluate(theta: Array, estimate: Estimate, chosen: Array) -> tuple[Any, ...]:
        """Two updates, so that the state is not the one it starts as."""
        start = rule.init(theta)
        first = rule.apply(theta, estimate, chosen, start)
        second = rule.apply(first.theta, estimate, chosen, first.state)
        return start, rule.direction(estimate), second

    inputs = theta, estimate, chosen
    others = jax.tree.map(lambda array: array.at[0].add(0.5), inputs)
    *_, last = subject.apart(("init", "direction", "apply"), evaluate, inputs, others)
    _check_unusable(subject, rule, last, estimate, chosen)
    if rule.is_along_a_line:
        _check_line(subject, rule, last, estimate)


def _check_shapes(subject: Subject, rule: Rule, theta: Array, estimate: Estimate, chosen: Array) -> None:
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


def _check_unusable(subject: Subject, rule: Rule, last: Update, estimate: Estimate, chosen: Array) -> None:
    """The first learner has no gradient, the next ones have gradients that are not finite."""
    values = jnp.asarray([0.0, jnp.nan, jnp.inf], jnp.float32)[:, None]
    gradients = {name: getattr(estimate, name).at[:3].set(values) for name in ("gradient", "natural_gradient")}
    broken = estimate._replace(**gradients)
    after = rule.apply(last.theta, broken, chosen, last.state)
    stuck = np.asarray(unusable(rule.direction(broken)))
    advice = "; `metastep.rules.guard` sees to it"
    wrong = f"a direction that is zero or not finite must be flagged{advice}"
    subject.require(np.asarray(after.flagged)[stuck].all(), wrong)
    kept = ((each.theta, each.state) for each in (last, after))
    stays = same(*(jax.tree.map(lambda array: array[stuck], each) for each in kept))
    subject.require(stays, f"theta and state must stay where the direction is zero or not finite{advice}")
    subject.require(np.isfinite(after.theta).all(), f"theta must stay finite where a gradient is not{advice}")


def _check_line(subject: Subject, rule: Rule, last: Update, estimate: Estimate) -> None:
    says = "`is_along_a_line` is True, but"
    wrong = f"{says} there are {len(rule.hyperparameters)} hyperparameters"
    subject.require(len(rule.hyperparameters) == 1, wrong)

    def moved(theta: Array, stepsize: float) -> Any:
        after = rule.apply(theta, estimate, jnp.full((_LEARNERS, 1), stepsize, jnp.float32), last.state)
        return np.asarray(after.theta - theta)

    unit = moved(last.theta, 1.0)
    subject.require(not moved(last.theta, 0.0).any(), f"{says} a step size of 0 moves theta")
    for stepsize in (0.25, 2.0):
        close = np.allclose(moved(last.theta, stepsize), stepsize * unit, _TOLERANCE, _TOLERANCE)
        subject.require(close, f"{says} theta' - theta is not proportional to the step size")
    close = np.allclose(moved(jnp.zeros_like(last.theta), 1.0), unit, _TOLERANCE, _TOLERANCE)
    subject.require(close, f"{says} theta' - theta depends on theta")
