"""The contracts of policies, update rules, features, controllers and regressors."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep import features
from metastep._core.errors import InputError
from metastep.features import Feature
from metastep.fqi.regressors import Regressor, options_of
from metastep.mdp import Learners, MetaMDP, Tasks
from metastep.mdp.blocks import Stream
from metastep.mdp.controller import Controller, ControllerState, TaskSource
from metastep.policies import ActorCritic, Arrays, LinearGaussian, Policy, flatten
from metastep.rules import ActorCriticRule, Rule, Update, unusable
from metastep.rules.actor_critic import Experience, Lanes, Trained
from metastep.rules.spaces import Values
from metastep.simulation.gradients import Estimate
from metastep.testing.subject import Subject, named, read_only, same

_SHAPE = (5, 3)  # episodes and learners of a policy
_LEARNERS, _PARAMETERS = 5, 3  # of a rule
_UNUSABLE = (0.0, math.nan, math.inf)  # what the first learners of a rule follow, one each
_TINY = ActorCritic(num_observations=2, num_actions=1, hidden=(3,))
_ROWS, _FEATURES = 60, 4  # of the data that a regressor is fitted to


def check_policy(policy: Policy | ActorCritic, *, seed: int = 0) -> None:
    """Raise `InputError` with one sentence unless the policy keeps the contract of `metastep.policies.Policy`.

    Checked: declared fields; that it is hashable and equal to its copies; shapes and dtypes of mean and score; that the same
    input gives the same bits; that an episode depends on no other episode or learner; that the score is the derivative of log
    pi; and that a policy with `is_linear` is linear. Of an `ActorCritic`: first parameters, and shapes of values and samples.
    """
    subject = Subject(policy, f"policy {type(policy).__name__}")
    subject.declares(num_observations=1, num_actions=1, num_parameters=1)
    subject.is_hashable()
    keys = jax.random.split(jax.random.key(seed), 4)
    if isinstance(policy, ActorCritic):
        first = subject.call("initial", policy.initial, keys[0], 2)
        subject.is_array("what `initial` returns", first, (2, policy.num_parameters))
        right = same(policy.join(policy.split(first)), first)
        subject.require(right, "`join` must put together what `split` took apart")
        parts, seen = policy.split(first[0]), jax.random.normal(keys[1], (5, policy.num_observations), jnp.float32)
        subject.is_array("what `value` returns", subject.call("value", policy.value, parts, seen), (5,))
        distribution: Any = subject.call("act", policy.act, parts, seen)
        action = distribution.sample(jax.random.normal(keys[2], (5, policy.num_actions), jnp.float32))
        subject.is_array("a sample", action, (5, policy.num_actions), np.int32 if policy.is_discrete else np.float32)
        subject.is_array("`log_density`", distribution.log_density(action), (5,))
        return
    sigma: Any = getattr(policy, "sigma", None)
    is_positive = isinstance(sigma, (int, float)) and 0.0 < sigma < math.inf
    subject.require(is_positive, f"`sigma` must be a positive number, got {sigma!r}")
    subject.declares(is_linear=bool)
    subject.has_methods("mean", "score")
    theta = jax.random.normal(keys[0], (policy.num_parameters, _SHAPE[1]), jnp.float32)
    observation = tuple(jax.random.normal(keys[1], (policy.num_observations, *_SHAPE), jnp.float32))
    noise = tuple(jax.random.normal(keys[2], (policy.num_actions, *_SHAPE), jnp.float32))
    subject.is_tuple("mean", subject.trace("mean", policy.mean, theta, observation), "num_actions", _SHAPE)
    score = subject.trace("score", policy.score, theta, observation, noise)
    subject.is_tuple("score", score, "num_parameters", _SHAPE, pieces=True)

    def evaluate(theta: Array, observation: Arrays) -> tuple[Arrays, Arrays]:
        return policy.mean(theta, observation), policy.score(theta, observation, noise)

    # The first learner has another policy; it and the first episode of every learner see something else.
    others = theta.at[:, 0].add(1.0), tuple(each.at[0].add(1.0).at[:, 0].add(1.0) for each in observation)
    how: Any = {"rest": lambda piece: piece[..., 1:, 1:], "others": "other learners or episodes"}
    (mean, pieces), _ = subject.independent(("mean", "score"), evaluate, (theta, observation), others, **how)
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
    about = f"with respect to parameter {close.argmin()} of theta"
    subject.require(close.all(), f"`score` is not the derivative of log pi {about}")
    if policy.is_linear:
        linear = LinearGaussian(policy.num_observations, policy.num_actions, policy.sigma)
        right = linear.num_parameters == policy.num_parameters
        right = right and np.allclose(linear.mean(theta, observation), mean, 1e-3, 1e-3)
        subject.require(right, "`is_linear` is True, but the mean is not b + W s with theta = (b, W), W row by row")


def check_rule(rule: Rule | ActorCriticRule, *, seed: int = 0) -> None:
    """Raise `InputError` with one sentence unless the rule keeps the contract of `metastep.rules.Rule`.

    Checked: declared fields; that it is hashable and equal to its copies; shapes and dtypes of what it returns; that the same
    input gives the same bits; that learners do not depend on each other; that a direction that is zero or not finite (or such a
    batch) leaves theta and state, and is flagged; and that a rule with `is_along_a_line` moves along a line.
    """
    subject = named("rule", rule)
    subject.declares(hyperparameters=tuple, is_along_a_line=bool)
    subject.is_hashable()
    names, keys = rule.hyperparameters, jax.random.split(jax.random.key(seed))
    distinct = names and len(set(names)) == len(names) and all(name.isidentifier() for name in names)
    subject.require(distinct, f"`hyperparameters` must name one identifier or more, each once, got {names!r}")
    right = not rule.is_along_a_line or len(names) == 1
    subject.require(right, f"`is_along_a_line` is True, which needs one hyperparameter, but there are {len(names)}")
    given: Any
    if isinstance(rule, ActorCriticRule):
        subject.require("stepsize" in names, f"`hyperparameters` must have 'stepsize' among them, got {names!r}")
        theta, given, followed = _TINY.initial(keys[0], _LEARNERS), _batch(keys), ("advantage", "target")
        chosen: Values = {name: jnp.full(_LEARNERS, 0.01, jnp.float32) for name in names}
        what, kind, fields = "a batch that is", "metastep.rules.actor_critic.Trained", [*Trained._fields]
    else:
        theta, gradient, natural = jax.random.normal(keys[0], (3, _LEARNERS, _PARAMETERS), jnp.float32)
        mean_return, error, num_steps, drawn = jax.random.uniform(keys[1], (4, _LEARNERS), jnp.float32, 0.1, 0.9)
        dampings = rule.damping if isinstance(rule.damping, tuple) else (rule.damping,)
        more = tuple(natural * (2.0 + index) for index in range(len(dampings) - 1))
        given = Estimate(mean_return, error, gradient, natural, num_steps, more)
        followed = ("gradient", "natural_gradient")
        chosen = {name: jnp.zeros(_LEARNERS, jnp.int32) if name == "direction" else drawn for name in names}
        subject.is_array("what `direction` returns", subject.trace("direction", rule.direction, given), theta.shape)
        what, kind, fields = "a direction that is zero or", "metastep.rules.Update", [*Update._fields]

    def apply(theta: Array, state: Any, chosen: Values, given: Any) -> tuple[Any]:
        if isinstance(rule, ActorCriticRule):
            return (rule.apply(_TINY, theta, given, chosen, state, keys[0]),)
        return (rule.apply(theta, given, chosen, state),)

    state = subject.trace("init", rule.init, theta)
    for leaf in jax.tree.leaves(state):
        right = leaf.shape[:1] == theta.shape[:1]
        subject.require(right, f"an array of the state has shape {leaf.shape}, its first axis must be the learners'")
    (after,) = subject.trace("apply", apply, theta, state, chosen, given)
    subject.has_fields("apply", after, kind, fields)
    subject.is_array("the theta that `apply` returns", after.theta, theta.shape)
    subject.same_state("what `apply` returns", after.state, state)
    for field in fields[2:]:
        dtype = np.bool_ if field == "flagged" else np.float32
        subject.is_array(f"`{field}`", getattr(after, field), (_LEARNERS,), dtype)
    # A second update, whose state is not the first one; then the first learners are others, and follow something unusable.
    (begun,) = subject.call("apply", jax.jit(apply), theta, rule.init(theta), chosen, given)
    usual, is_other = (begun.theta, begun.state, chosen), np.arange(_LEARNERS) < len(_UNUSABLE)
    others = jax.tree.map(lambda array: array.at[is_other].add(jnp.asarray(0.5, array.dtype)), usual)
    unusable_rows = jnp.asarray(_UNUSABLE, jnp.float32)[:, None]
    broken = given._replace(**{name: getattr(given, name).at[is_other].set(unusable_rows) for name in followed})
    stuck = is_other & (np.arange(_LEARNERS) > 0)
    if not isinstance(rule, ActorCriticRule):
        stuck = np.asarray(unusable(rule.direction(broken)))
    inputs, changed = (*usual, given), (*others, broken)
    (last,), (beside,) = subject.independent(("apply",), apply, inputs, changed, lambda array: array[~is_other])
    stays = same(*(jax.tree.map(lambda array: array[stuck], each[:2]) for each in (others, beside)))
    must = "must leave theta and state, and be flagged; `metastep.rules.guard` helps"
    subject.require(stays and np.asarray(beside.flagged)[stuck].all(), f"{what} not finite {must}")
    subject.require(np.isfinite(beside.theta).all(), "theta must stay finite where a gradient is not")
    if not rule.is_along_a_line:
        return

    def moved(theta: Array, stepsize: float) -> Any:
        (after,) = apply(theta, last.state, {name: jnp.full(_LEARNERS, stepsize, jnp.float32) for name in names}, given)
        return np.asarray(after.theta - theta)

    origin = jnp.zeros_like(theta)
    unit = moved(origin, 1.0)
    for start, stepsize in ((last.theta, 0.0), (last.theta, 1.0), (origin, 0.25), (last.theta, 2.0)):
        wrong = "theta' - theta is not h times a vector that depends on neither h nor theta"
        along = np.allclose(moved(start, stepsize), stepsize * unit, 1e-4, 1e-4)
        subject.require(along, f"`is_along_a_line` is True, but {wrong}")


def _batch(keys: Array) -> Experience:
    """Return a random batch of steps of every learner."""
    shape, each, lane = (_LEARNERS, 256), jnp.zeros(_LEARNERS, jnp.float32), jnp.zeros((_LEARNERS, 1), jnp.float32)
    observation = jax.random.normal(keys[0], (*shape, _TINY.num_observations), jnp.float32)
    action, advantage, target = jax.random.normal(keys[1], (3, *shape), jnp.float32)
    density, lanes = jnp.full(shape, -1.0, jnp.float32), Lanes((), lane, lane, lane, lane > 0.0)
    value = target + 0.1
    return Experience(observation, action[..., None], density, value, advantage, target, each, each, each, each, lanes)


def check_controller(controller: Controller, mdp: MetaMDP, *, seed: int = 0, num_updates: int = 3) -> None:
    """Raise `InputError` with one sentence unless the controller keeps the contract that the shared loop relies on.

    Checked: declared fields; that proposals are finite float32 numbers of shape (learners, coordinates), also after an estimate
    that is not finite; that the same tasks give the same bits; that `propose` changes nothing; that learners do not depend on
    each other; that one with `is_memoryless` proposes the same after a new `init`; and that it reports one number for each
    learner and update. It must be trained (`prepared`) if it has to be; blocks of `mdp` need at least two learners.
    """
    subject = named("controller", controller)
    subject.declares(is_memoryless=bool, is_yardstick=bool)
    sources: Any = controller.shaped_by
    is_tuple = isinstance(sources, tuple) and all(isinstance(source, TaskSource) for source in sources)
    subject.require(is_tuple, f"`shaped_by` must be a tuple of metastep.mdp.controller.TaskSource, got {sources!r}")

    def propose(state: ControllerState, learners: Learners) -> Any:
        proposal = subject.call("propose", controller.propose, state, learners)
        subject.is_array("a proposal", proposal, (mdp.block_size, mdp.space.num_coordinates))
        subject.require(jnp.all(jnp.isfinite(proposal)), "proposals must be finite")
        return proposal

    def run(tasks: Tasks) -> NDArray[np.float32]:
        """Return proposals over some updates: (updates, learners, coordinates)."""
        learners, proposals = mdp.begin(tasks), []
        state = subject.call("init", controller.init, mdp, learners)
        for _ in range(num_updates):
            proposal = propose(state, learners)
            subject.require(same(proposal, controller.propose(state, learners)), "propose must change nothing")
            if controller.is_memoryless:
                again = same(proposal, controller.propose(controller.init(mdp, learners), learners))
                subject.require(again, "`is_memoryless` is True, but a new `init` changes its proposals")
            before, learners = learners, mdp.advance(learners, proposal)
            state = subject.call("observe", controller.observe, state, before, proposal, learners)
            proposals.append(np.asarray(proposal))
        report = subject.call("report", controller.report, state)
        subject.require(isinstance(report, dict), f"`report` must return a dict, got a {type(report).__name__}")
        for what, value in report.items():
            subject.is_array(f"{what!r} of `report`", value, (num_updates, mdp.block_size), np.number)
        return np.stack(proposals)

    tasks, others = _neighbours(subject, mdp, seed)
    first = run(tasks)
    subject.require(same(first, run(tasks)), "the same tasks must give the same bits")
    subject.require(same(first[:, 1:], run(others)[:, 1:]), "a proposal must not depend on other learners")
    # A learner without a usable estimate must get a finite proposal, now and later.
    learners = mdp.begin(tasks)
    estimate = jax.tree.map(lambda array: array.at[0].set(jnp.nan), learners.estimate)
    broken = learners._replace(estimate=estimate, flagged=learners.flagged.at[0].set(True))
    state = subject.call("init", controller.init, mdp, broken)
    propose(subject.call("observe", controller.observe, state, broken, propose(state, broken), broken), broken)


def check_feature(feature: Feature, mdp: MetaMDP, *, seed: int = 0) -> None:
    """Raise `InputError` with one sentence unless the feature keeps the contract of `metastep.features.Feature`.

    Checked: its name, size, columns and bounds; that it gives float32 numbers of shape (learners, size); that the same learners
    give the same bits; and that learners do not depend on each other. Blocks of `mdp` need at least two of them.
    """
    subject = named("feature", feature)
    size, columns, bounds = (subject.call(name, getattr(feature, name), mdp) for name in ("size", "columns", "bounds"))
    subject.require(isinstance(size, int) and size >= 1, f"`size` must be a whole number of at least 1, got {size!r}")
    is_right = isinstance(columns, tuple) and all(isinstance(word, str) and word for word in columns)
    is_right = is_right and len(columns) == len(set(columns)) == size
    subject.require(is_right, f"`columns` must be a tuple of {size} different names, got {columns!r}")
    is_pair = isinstance(bounds, tuple) and [np.shape(each) for each in bounds] == [(size,)] * 2
    is_right = is_pair and all(low <= high for low, high in zip(*bounds, strict=True))
    subject.require(is_right, f"`bounds` must be {size} lower and {size} upper ones, at least as high, got {bounds!r}")

    def evaluate(learners: Learners) -> tuple[Any]:
        return (features.evaluate(feature, mdp.diagnostics(learners), mdp.block_size),)

    learners, others = (mdp.begin(tasks) for tasks in _neighbours(subject, mdp, seed))
    (found,) = subject.trace("__call__", evaluate, learners)
    subject.is_array("what `__call__` returns", found, (mdp.block_size, size))
    subject.independent(("__call__",), evaluate, (learners,), (others,))


def _neighbours(subject: Subject, mdp: MetaMDP, seed: int) -> tuple[Tasks, Tasks]:
    """Return tasks, and the same tasks and policies for all learners but the first."""
    subject.require(mdp.block_size >= 2, f"the check needs blocks of at least 2 learners, got {mdp.block_size}")
    tasks = mdp.tasks(seed, Stream.VALIDATION, 0)
    return tasks, tasks._replace(theta=tasks.theta.at[0].add(0.5), context=tasks.context.at[0].set(tasks.context[1]))


def check_regressor(regressor: Regressor, *, seed: int = 0) -> None:
    """Raise `InputError` with one sentence unless the regressor keeps the contract of `metastep.fqi.regressors.Regressor`.

    Checked: that its options make an equal regressor; that `fit` returns a `Head` that predicts finite float64 numbers of shape
    (rows,), with one seed the same bits in any number of threads, and leaves the data as they are; that a loaded head predicts
    the same; and that `load` refuses other arrays with an `InputError`.
    """
    subject = named("regressor", regressor)
    subject.has_methods("fit", "load")
    inputs, fresh = np.random.default_rng(seed).normal(size=(2, _ROWS, _FEATURES)).astype(np.float32)
    given = read_only(inputs, (np.sin(inputs[:, 0]) - inputs[:, -1] ** 2).astype(np.float64))

    def predict(head: Any) -> Any:
        fields, num = ("num_features", "importances", "predict", "arrays"), getattr(head, "num_features", None)
        subject.has_fields("fit", head, "metastep.fqi.regressors.Head", fields)
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
    refusal = "but it takes them"
    try:
        regressor.load({"nothing": np.zeros(0)})
    except InputError:
        return
    except Exception as error:
        refusal = f"not a {type(error).__name__}"
    subject.require(False, f"`load` must refuse arrays of others with an InputError, {refusal}")
