"""The contracts of rules and policies with an actor and a critic; `check_rule` and `check_policy` come here by themselves."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from metastep.policies import ActorCritic
from metastep.rules.actor_critic import ActorCriticRule, Experience, Lanes, Trained
from metastep.rules.spaces import Values
from metastep.testing.subject import Subject, named, same

_LEARNERS, _BATCH = 3, 256
_TINY = ActorCritic(num_observations=2, num_actions=1, hidden=(3,))


def check_actor_critic_rule(rule: ActorCriticRule, seed: int = 0) -> None:
    """What `check_rule` does for a rule that learns from steps.

    Checked are: the declared fields; that it can select a compiled program; shapes and dtypes of state and update; that the
    same input gives the same bits; that learners do not depend on each other; and that a batch which is not finite leaves theta
    and state, and is flagged.
    """
    subject = named("rule", rule)
    names: Any = getattr(rule, "hyperparameters", None)
    subject.words("hyperparameters", names)
    subject.require("stepsize" in names, f"`hyperparameters` must have 'stepsize' among them, got {names!r}")
    subject.methods("init", "apply", "require_batch")
    subject.hashable()
    key = jax.random.key(seed)
    theta, batch = _TINY.initial(key, _LEARNERS), _batch(key)
    chosen = {name: jnp.full(_LEARNERS, 0.01, jnp.float32) for name in names}
    state = subject.trace("init", rule.init, theta)
    for leaf in jax.tree.leaves(state):
        first = leaf.shape[:1] == theta.shape[:1]
        subject.require(first, f"an array of the state has shape {leaf.shape}, its first axis must be the learners'")

    def evaluate(theta: Array, batch: Experience, chosen: Values) -> tuple[Any, ...]:
        start = rule.init(theta)
        return start, rule.apply(_TINY, theta, batch, chosen, start, key)

    after = subject.trace("apply", evaluate, theta, batch, chosen)[1]
    subject.returns("apply", after, "metastep.rules.actor_critic.Trained", *Trained._fields)
    subject.array("the theta that `apply` returns", after.theta, theta.shape)
    subject.array("`flagged`", after.flagged, theta.shape[:1], np.bool_)
    for field in ("divergence", "clip_fraction"):
        subject.array(f"`{field}`", getattr(after, field), theta.shape[:1])
    subject.alike("what `apply` returns", after.state, state)
    broken = batch._replace(advantage=batch.advantage.at[0].set(jnp.nan), target=batch.target.at[0].set(jnp.inf))
    changed = theta.at[0].add(0.5), broken, chosen
    subject.apart(("init", "apply"), evaluate, (theta, batch, chosen), changed)
    start, stuck = jax.jit(evaluate)(*changed)
    stays = same(*(jax.tree.map(lambda array: array[0], each) for each in ((changed[0], start), stuck[:2])))
    subject.require(
        stays and bool(stuck.flagged[0]),
        "a batch that is not finite must leave theta and state, and be flagged; `rules.actor_critic.rule.kept_finite` helps",
    )


def _batch(key: Array) -> Experience:
    """Numbers of the right form."""
    keys = jax.random.split(key, 4)
    shape = (_LEARNERS, _BATCH)
    observation = jax.random.normal(keys[0], (*shape, _TINY.num_observations), jnp.float32)
    action, advantage, target = (jax.random.normal(one, shape, jnp.float32) for one in keys[1:])
    each = jnp.zeros(_LEARNERS, jnp.float32)
    lane = jnp.zeros((_LEARNERS, 1), jnp.float32)
    lanes = Lanes((), lane, lane, lane, lane > 0.0)
    density = jnp.full(shape, -1.0, jnp.float32)
    return Experience(
        observation, action[..., None], density, target + 0.1, advantage, target, each, each, each, each, lanes
    )


def check_actor_critic_policy(policy: ActorCritic, seed: int = 0) -> None:
    """What `check_policy` does for a policy with a critic: sizes, first parameters, and that densities are those of its draws."""
    subject = Subject(policy, f"policy {type(policy).__name__}")
    for field in ("num_observations", "num_actions", "num_parameters"):
        subject.count(field, getattr(policy, field, None))
    subject.methods("split", "join", "initial", "act", "value")
    subject.hashable()
    key = jax.random.key(seed)
    first = subject.call("initial", policy.initial, key, 2)
    subject.array("what `initial` returns", first, (2, policy.num_parameters))
    subject.require(same(policy.join(policy.split(first)), first), "`join` must put together what `split` took apart")
    parts = policy.split(first[0])
    seen = jax.random.normal(key, (5, policy.num_observations), jnp.float32)
    subject.array("what `value` returns", subject.call("value", policy.value, parts, seen), (5,))
    distribution: Any = subject.call("act", policy.act, parts, seen)
    action = distribution.sample(jax.random.normal(key, (5, policy.num_actions), jnp.float32))
    subject.array("a sample", action, (5, policy.num_actions), np.int32 if policy.is_discrete else np.float32)
    subject.array("`log_density`", distribution.log_density(action), (5,))
    subject.array("`entropy`", distribution.entropy(), (5,))
    zero = np.abs(np.asarray(distribution.divergence(distribution))).max()
    subject.require(bool(zero < 1e-5), "the divergence of a distribution from itself must be 0")
