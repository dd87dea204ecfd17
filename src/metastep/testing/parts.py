"""The contracts of policies, update rules and regressors."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from metastep._core.errors import InputError
from metastep.fqi.regressors import Regressor, options_of
from metastep.policies import ActorCritic, Arrays, LinearGaussian, Policy, flatten
from metastep.rules import ActorCriticRule, Rule, Update, unusable
from metastep.rules.actor_critic import Experience, Lanes, Trained
from metastep.rules.spaces import Values
from metastep.simulation.gradients import Estimate
from metastep.testing.subject import Subject, named, read_only, same

_SHAPE = (5, 3)  # episodes and learners of a policy
_LEARNERS, _PARAMETERS = 5, 3  # of a rule
_BATCH = 256  # steps of a learner, for a rule that learns from steps
_TINY = ActorCritic(num_observations=2, num_actions=1, hidden=(3,))
_ROWS, _FEATURES = 60, 4  # of the data that a regressor is fitted to


def check_policy(policy: Policy | ActorCritic, *, seed: int = 0) -> None:
    """Raise `InputError` with one sentence unless the policy keeps the contract of `metastep.policies.Policy`.

    Checked: the declared fields; that it is hashable and equal to its copies; number, shapes and dtypes of mean and score in
    the batched layout; that the same input gives the same bits; that an episode depends neither on other episodes nor on other
    learners; that the score is the derivative of log pi; and that a policy with `is_linear` is linear. Of an `ActorCritic`:
    sizes, first parameters, and shapes of values and samples.
    """
    subject = Subject(policy, f"policy {type(policy).__name__}")
    subject.declares(num_observations=1, num_actions=1, num_parameters=1)
    if isinstance(policy, ActorCritic):
        key = jax.random.key(seed)
        subject.is_hashable()
        first = subject.call("initial", policy.initial, key, 2)
        subject.is_array("what `initial` returns", first, (2, policy.num_parameters))
        wrong = "`join` must put together what `split` took apart"
        subject.require(same(policy.join(policy.split(first)), first), wrong)
        parts = policy.split(first[0])
        seen = jax.random.normal(key, (5, policy.num_observations), jnp.float32)
        subject.is_array("what `value` returns", subject.call("value", policy.value, parts, seen), (5,))
        distribution: Any = subject.call("act", policy.act, parts, seen)
        action = distribution.sample(jax.random.normal(key, (5, policy.num_actions), jnp.float32))
        subject.is_array("a sample", action, (5, policy.num_actions), np.int32 if policy.is_discrete else np.float32)
        subject.is_array("`log_density`", distribution.log_density(action), (5,))
        return
    sigma: Any = getattr(policy, "sigma", None)
    is_positive = isinstance(sigma, (int, float)) and 0.0 < sigma < math.inf
    subject.require(is_positive, f"`sigma` must be a positive number, got {sigma!r}")
    subject.declares(is_linear=bool)
    subject.has_methods("mean", "score")
    subject.is_hashable()
    keys = jax.random.split(jax.random.key(seed), 4)
    theta = jax.random.normal(keys[0], (policy.num_parameters, _SHAPE[1]), jnp.float32)
    observation = tuple(jax.random.normal(keys[1], (policy.num_observations, *_SHAPE), jnp.float32))
    noise = tuple(jax.random.normal(keys[2], (policy.num_actions, *_SHAPE), jnp.float32))
    for what, field, given in (
        ("mean", "num_actions", (theta, observation)),
        ("score", "num_parameters", (theta, observation, noise)),
    ):
        found = subject.trace(what, getattr(policy, what), *given)
        kind = type(found).__name__
        subject.require(isinstance(found, tuple), f"`{what}` returns a {kind}, it must return a tuple of arrays")
        for index, piece in enumerate(found):
            leading = piece.shape[:-2] if what == "score" else ()
            subject.is_array(f"array {index} of `{what}`", piece, (*leading, *_SHAPE))
        num, declared = sum(math.prod(piece.shape[:-2]) for piece in found), getattr(policy, field)
        subject.require(num == declared, f"`{what}` returns {num} numbers, but {field} is {declared}")

    def evaluate(theta: Array, observation: Arrays) -> tuple[Arrays, Arrays]:
        return policy.mean(theta, observation), policy.score(theta, observation, noise)

    # The first learner has another policy; it and the first episode of every learner see something else.
    others = theta.at[:, 0].add(1.0), tuple(each.at[0].add(1.0).at[:, 0].add(1.0) for each in observation)
    mean, pieces = subject.independent(
        ("mean", "score"),
        evaluate,
        (theta, observation),
        others,
        lambda piece: piece[..., 1:, 1:],
        "other learners or episodes",
    )
    # A random combination of the episodes' scores, and of their log densities.
    weight = jax.random.normal(keys[3], _SHAPE, jnp.float32)

    def log_density(theta: Array) -> Array:
        """Of the actions with these means and this noise, up to a constant."""
        apart = zip(mean, noise, policy.mean(theta, observation), strict=True)
        squares = ((z + (m - now) / policy.sigma) ** 2 for m, z, now in apart)
        return sum((-0.5 * jnp.sum(weight * square) for square in squares), jnp.float32(0))

    score = jax.jit(lambda: flatten(tuple(jnp.sum(weight * piece, axis=-2) for piece in pieces)))()
    derivative = np.asarray(jax.jit(jax.grad(log_density))(theta))
    close = np.isclose(score, derivative, 1e-3, 1e-3 * np.abs(derivative).max()).all(axis=1)
    wrong = f"`score` is not the derivative of log pi with respect to parameter {close.argmin()} of theta"
    subject.require(close.all(), wrong)
    if policy.is_linear:
        linear = LinearGaussian(policy.num_observations, policy.num_actions, policy.sigma)
        right = linear.num_parameters == policy.num_parameters
        right = right and np.allclose(linear.mean(theta, observation), mean, 1e-3, 1e-3)
        subject.require(right, "`is_linear` is True, but the mean is not b + W s with theta = (b, W), W row by row")


def check_rule(rule: Rule | ActorCriticRule, *, seed: int = 0) -> None:
    """Raise `InputError` with one sentence unless the rule keeps the contract of `metastep.rules.Rule`.

    Checked: the declared fields; that it is hashable and equal to its copies; shapes and dtypes of direction, state, theta and
    flags; that the same input gives the same bits; that learners do not depend on each other; that a direction that is zero or
    not finite (or a batch that is not finite) leaves theta and state, and is flagged; and that a rule with `is_along_a_line`
    moves along a line.
    """
    subject = named("rule", rule)
    subject.declares(hyperparameters=tuple)
    subject.is_hashable()
    if isinstance(rule, ActorCriticRule):
        _check_on_batches(subject, rule, jax.random.key(seed))
        return
    names = rule.hyperparameters
    distinct = names and len(set(names)) == len(names) and all(name.isidentifier() for name in names)
    subject.require(distinct, f"`hyperparameters` must name one identifier or more, each once, got {names!r}")
    subject.declares(is_along_a_line=bool)
    right = not rule.is_along_a_line or len(names) == 1
    subject.require(right, f"`is_along_a_line` is True, which needs one hyperparameter, but there are {len(names)}")
    keys = jax.random.split(jax.random.key(seed), 5)
    theta, gradient, natural = (jax.random.normal(key, (_LEARNERS, _PARAMETERS), jnp.float32) for key in keys[:3])
    mean_return, return_error, num_steps = jax.random.uniform(keys[3], (3, _LEARNERS), jnp.float32, 0.1, 1.0)
    others_damped = len(rule.damping) - 1 if isinstance(rule.damping, tuple) else 0
    more = tuple(natural * (2.0 + index) for index in range(others_damped))
    estimate = Estimate(mean_return, return_error, gradient, natural, num_steps, more)
    drawn = jax.random.uniform(keys[4], (_LEARNERS, len(names)), jnp.float32, 0.1, 0.9)
    choices = jnp.zeros(_LEARNERS, jnp.int32)
    chosen = {name: choices if name == "direction" else drawn[:, index] for index, name in enumerate(names)}
    direction = subject.trace("direction", rule.direction, estimate)
    subject.is_array("what `direction` returns", direction, theta.shape)
    apply = partial(rule.apply, theta, estimate, chosen)
    _check_update(subject, theta, apply, "metastep.rules.Update", Update._fields)

    def evaluate(theta: Array, estimate: Estimate, chosen: Values) -> tuple[Any, ...]:
        """Two updates, so that the state is not the first one."""
        start = rule.init(theta)
        first = rule.apply(theta, estimate, chosen, start)
        second = rule.apply(first.theta, estimate, chosen, first.state)
        return start, rule.direction(estimate), second

    inputs = theta, estimate, chosen
    others = jax.tree.map(lambda array: array.at[0].add(jnp.asarray(0.5, array.dtype)), inputs)
    *_, last = subject.independent(("init", "direction", "apply"), evaluate, inputs, others)
    # The first learner has no gradient, the next ones have gradients that are not finite.
    values = jnp.asarray([0.0, jnp.nan, jnp.inf], jnp.float32)[:, None]
    gradients = {name: getattr(estimate, name).at[:3].set(values) for name in ("gradient", "natural_gradient")}
    broken = estimate._replace(**gradients)
    after = rule.apply(last.theta, broken, chosen, last.state)
    stuck = np.asarray(unusable(rule.direction(broken)))
    stays = same(*(jax.tree.map(lambda array: array[stuck], (each.theta, each.state)) for each in (last, after)))
    must = "must leave theta and state, and be flagged; `metastep.rules.guard` helps"
    stays = stays and np.asarray(after.flagged)[stuck].all()
    subject.require(stays, f"a direction that is zero or not finite {must}")
    subject.require(np.isfinite(after.theta).all(), "theta must stay finite where a gradient is not")
    if rule.is_along_a_line:

        def moved(theta: Array, stepsize: float) -> Any:
            chosen = {name: jnp.full(_LEARNERS, stepsize, jnp.float32) for name in names}
            return np.asarray(rule.apply(theta, estimate, chosen, last.state).theta - theta)

        origin = jnp.zeros_like(theta)
        unit = moved(origin, 1.0)
        for start, stepsize in ((last.theta, 0.0), (last.theta, 1.0), (origin, 0.25), (last.theta, 2.0)):
            wrong = "theta' - theta is not h times a vector that depends on neither h nor theta"
            along = np.allclose(moved(start, stepsize), stepsize * unit, 1e-4, 1e-4)
            subject.require(along, f"`is_along_a_line` is True, but {wrong}")


def _check_update(
    subject: Subject, theta: Array, apply: Callable[[Any], Any], kind: str, fields: tuple[str, ...]
) -> None:
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


def _check_on_batches(subject: Subject, rule: ActorCriticRule, key: Array) -> None:
    names = rule.hyperparameters
    subject.require("stepsize" in names, f"`hyperparameters` must have 'stepsize' among them, got {names!r}")
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

    def apply(state: Any) -> Trained:
        return rule.apply(_TINY, theta, batch, chosen, state, key)

    _check_update(subject, theta, apply, "metastep.rules.actor_critic.Trained", Trained._fields)
    broken = batch._replace(advantage=batch.advantage.at[0].set(jnp.nan), target=batch.target.at[0].set(jnp.inf))
    changed = theta.at[0].add(0.5), broken, chosen
    subject.independent(("init", "apply"), evaluate, (theta, batch, chosen), changed)
    start, stuck = jax.jit(evaluate)(*changed)
    stays = same(*(jax.tree.map(lambda array: array[0], each) for each in ((changed[0], start), stuck[:2])))
    wrong = "a batch that is not finite must leave theta and state, and be flagged"
    subject.require(stays and bool(stuck.flagged[0]), wrong)


def check_regressor(regressor: Regressor, *, seed: int = 0) -> None:
    """Raise `InputError` with one sentence unless the regressor keeps the contract of `metastep.fqi.regressors.Regressor`.

    Checked: that its options make an equal regressor; that `fit` returns a `Head` that predicts finite float64 numbers of shape
    (rows,); that the same seed gives the same bits with any number of threads, and leaves the data unchanged; that a loaded head
    predicts the same bits; and that `load` refuses other arrays with an `InputError`.
    """
    subject = named("regressor", regressor)
    subject.has_methods("fit", "load")
    rng = np.random.default_rng(seed)
    inputs, fresh = rng.normal(size=(2, _ROWS, _FEATURES)).astype(np.float32)
    targets = np.sin(inputs[:, 0]) - inputs[:, -1] ** 2
    given = read_only(inputs, targets.astype(np.float64))

    def predict(head: Any) -> Any:
        fields = ("num_features", "importances", "predict", "arrays")
        subject.has_fields("fit", head, "metastep.fqi.regressors.Head", fields)
        num = head.num_features
        subject.require(num == _FEATURES, f"`num_features` is {num}, it must be {_FEATURES}")
        if head.importances is not None:
            subject.is_array("`importances`", head.importances, (_FEATURES,), np.number)
        predicted = subject.call("predict", head.predict, *read_only(fresh))
        subject.is_array("what `predict` returns", predicted, (_ROWS,), np.float64)
        subject.require(np.isfinite(predicted).all(), "what `predict` returns must be finite")
        return predicted

    first, *others = (subject.call("fit", regressor.fit, *given, seed=seed, threads=threads) for threads in (1, 1, 2))
    predicted = predict(first)
    alike = all(same(predicted, predict(other)) for other in others)
    subject.require(alike, "`fit` gives different heads for the same seed; they must not depend on the threads either")
    arrays = subject.call("arrays", first.arrays)
    is_dict = isinstance(arrays, dict) and bool(arrays) and all(isinstance(name, str) for name in arrays)
    subject.require(is_dict, f"`arrays` must return arrays by name, got a {type(arrays).__name__}")
    for name, array in arrays.items():
        right = isinstance(array, np.ndarray) and array.dtype.kind in "biuf"
        subject.require(right, f"{name!r} of `arrays` must be a NumPy array of numbers, got a {type(array).__name__}")
    options = options_of(regressor)
    equal = subject.call("__init__", type(regressor), **options) == regressor
    subject.require(equal, f"one with its options {options!r} is not equal to it; make it a frozen dataclass")
    loaded = subject.call("load", regressor.load, dict(zip(arrays, read_only(*arrays.values()), strict=True)))
    subject.require(same(predicted, predict(loaded)), "a head that is loaded predicts something else")
    try:
        regressor.load({"nothing": np.zeros(0)})
    except InputError:
        return
    except Exception as error:
        subject.require(False, f"`load` must refuse arrays of others with an InputError, not a {type(error).__name__}")
    subject.require(False, "`load` must refuse arrays of others with an InputError, but it takes them")
