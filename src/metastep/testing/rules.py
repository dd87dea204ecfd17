"""The contract of update rules, with estimates or with batches of steps."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from metastep.policies import ActorCritic
from metastep.rules import ActorCriticRule, Rule, Update, unusable
from metastep.rules.actor_critic import Experience, Lanes, Trained
from metastep.rules.spaces import Values
from metastep.simulation.gradients import Estimate
from metastep.testing.subject import Subject, named, same

_LEARNERS, _PARAMETERS, _BATCH = 5, 3, 256
_TINY = ActorCritic(num_observations=2, num_actions=1, hidden=(3,))
_TOLERANCE = 1e-4


def check_rule(rule: Rule | ActorCriticRule, *, seed: int = 0) -> None:
    """Raise `InputError` with one sentence unless the rule keeps the contract of `metastep.rules.Rule`.

    Checked: the declared fields; that it is hashable and equal to its copies; shapes and dtypes of direction, state, theta and
    flags; that the same input gives the same bits; that learners do not depend on each other; that a direction that is zero or
    not finite (or a batch that is not finite) leaves theta and state, and is flagged; and that a rule with `is_along_a_line`
    moves along a line.
    """
    subject = named("rule", rule)
    subject.declares(hyperparameters=tuple)
    if isinstance(rule, ActorCriticRule):
        _check_on_batches(subject, rule, jax.random.key(seed))
    else:
        _check_on_estimates(subject, rule, seed)


def _check_update(
    subject: Subject, theta: Array, apply: Callable[[Any], Any], kind: str, fields: tuple[str, ...]
) -> None:
    """Check shapes of the first state and of what `apply` makes of it."""
    state = subject.trace("init", subject.part.init, theta)
    for leaf in jax.tree.leaves(state):
        first = leaf.shape[:1] == theta.shape[:1]
        subject.require(first, f"an array of the state has shape {leaf.shape}, its first axis must be the learners'")
    after = subject.trace("apply", apply, state)
    subject.has_fields("apply", after, kind, fields)
    subject.is_array("the theta that `apply` returns", after.theta, theta.shape)
    subject.is_array("`flagged`", after.flagged, theta.shape[:1], np.bool_)
    subject.same_state("what `apply` returns", after.state, state)
    for field in set(fields) - {"theta", "state", "flagged"}:
        subject.is_array(f"`{field}`", getattr(after, field), theta.shape[:1])


def _check_on_estimates(subject: Subject, rule: Rule, seed: int) -> None:
    names = rule.hyperparameters
    distinct = names and len(set(names)) == len(names) and all(name.isidentifier() for name in names)
    subject.require(distinct, f"`hyperparameters` must name one identifier or more, each once, got {names!r}")
    damping: Any = getattr(rule, "damping", None)
    shares = damping if isinstance(damping, tuple) else (0.5 if damping is None else damping,)
    is_share = bool(shares) and all(isinstance(value, float) and 0.0 < value < 1.0 for value in shares)
    subject.require(is_share, f"`damping` must be None or lie in (0, 1), got {damping!r}")
    subject.declares(is_along_a_line=bool)
    right = not rule.is_along_a_line or len(names) == 1
    subject.require(right, f"`is_along_a_line` is True, which needs one hyperparameter, but there are {len(names)}")
    subject.has_methods("direction", "init", "apply")
    subject.is_hashable()
    keys = jax.random.split(jax.random.key(seed), 5)
    theta, gradient, natural = (jax.random.normal(key, (_LEARNERS, _PARAMETERS), jnp.float32) for key in keys[:3])
    mean_return, return_error, num_steps = jax.random.uniform(keys[3], (3, _LEARNERS), jnp.float32, 0.1, 1.0)
    more = tuple(natural * (2.0 + index) for index in range(len(shares) - 1))
    estimate = Estimate(mean_return, return_error, gradient, natural, num_steps, more)
    drawn = jax.random.uniform(keys[4], (_LEARNERS, len(names)), jnp.float32, 0.1, 0.9)
    choices = jnp.zeros(_LEARNERS, jnp.int32)
    chosen = {name: choices if name == "direction" else drawn[:, index] for index, name in enumerate(names)}
    direction = subject.trace("direction", rule.direction, estimate)
    subject.is_array("what `direction` returns", direction, theta.shape)
    _check_update(
        subject,
        theta,
        lambda state: rule.apply(theta, estimate, chosen, state),
        "metastep.rules.Update",
        Update._fields,
    )

    def evaluate(theta: Array, estimate: Estimate, chosen: Values) -> tuple[Any, ...]:
        """Two updates, so that the state is not the first one."""
        start = rule.init(theta)
        first = rule.apply(theta, estimate, chosen, start)
        second = rule.apply(first.theta, estimate, chosen, first.state)
        return start, rule.direction(estimate), second

    inputs = theta, estimate, chosen
    others = jax.tree.map(lambda array: array.at[0].add(jnp.float32(0.5).astype(array.dtype)), inputs)
    *_, last = subject.independent(("init", "direction", "apply"), evaluate, inputs, others)
    # The first learner has no gradient, the next ones have gradients that are not finite.
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
    if rule.is_along_a_line:
        _check_line(subject, rule, last, estimate)


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


def _check_on_batches(subject: Subject, rule: ActorCriticRule, key: Array) -> None:
    names = rule.hyperparameters
    subject.require("stepsize" in names, f"`hyperparameters` must have 'stepsize' among them, got {names!r}")
    subject.has_methods("init", "apply", "require_batch")
    subject.is_hashable()
    theta = _TINY.initial(key, _LEARNERS)
    chosen = {name: jnp.full(_LEARNERS, 0.01, jnp.float32) for name in names}
    keys, shape = jax.random.split(key, 4), (_LEARNERS, _BATCH)
    observation = jax.random.normal(keys[0], (*shape, _TINY.num_observations), jnp.float32)
    action, advantage, target = (jax.random.normal(one, shape, jnp.float32) for one in keys[1:])
    density, each = jnp.full(shape, -1.0, jnp.float32), jnp.zeros(_LEARNERS, jnp.float32)
    lane = jnp.zeros((_LEARNERS, 1), jnp.float32)
    lanes = Lanes((), lane, lane, lane, lane > 0.0)
    batch = Experience(
        observation, action[..., None], density, target + 0.1, advantage, target, each, each, each, each, lanes
    )

    def evaluate(theta: Array, batch: Experience, chosen: Values) -> tuple[Any, ...]:
        start = rule.init(theta)
        return start, rule.apply(_TINY, theta, batch, chosen, start, key)

    kind = "metastep.rules.actor_critic.Trained"
    _check_update(
        subject, theta, lambda state: rule.apply(_TINY, theta, batch, chosen, state, key), kind, Trained._fields
    )
    broken = batch._replace(advantage=batch.advantage.at[0].set(jnp.nan), target=batch.target.at[0].set(jnp.inf))
    changed = theta.at[0].add(0.5), broken, chosen
    subject.independent(("init", "apply"), evaluate, (theta, batch, chosen), changed)
    start, stuck = jax.jit(evaluate)(*changed)
    stays = same(*(jax.tree.map(lambda array: array[0], each) for each in ((changed[0], start), stuck[:2])))
    subject.require(
        stays and bool(stuck.flagged[0]), "a batch that is not finite must leave theta and state, and be flagged"
    )
