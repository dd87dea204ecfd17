"""The same batch gives the advantages, losses, gradients and updates of Stable-Baselines3."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from metastep import envs
from metastep.envs.base import choices_of
from metastep.policies.actor_critic import ActorCritic
from metastep.rules.actor_critic import A2C, PPO, TRPO, Experience, Sampler
from metastep.rules.actor_critic.ppo import Minibatch
from metastep.rules.actor_critic.sampler import Steps, temporal_differences

pytest.importorskip("sb3_contrib")  # brings stable_baselines3
import sb3_contrib
import stable_baselines3
import torch
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure

NUM_ENVS, NUM_STEPS, HORIZON = 3, 20, 12
GYMNASIUM = {"cartpole-v1": "CartPole-v1", "pendulum": "Pendulum-v1"}
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


class Batch(NamedTuple):
    """One learner's batch, as we have it."""

    policy: ActorCritic
    theta: Array  # (1, parameters)
    steps: Steps
    experience: Experience


@cache
def batch_of(name: str, gae_lambda: float) -> Batch:
    """A batch in which episodes end, are cut off and go on; the second policy has learned a little, so that ratios are not 1."""
    env = envs.make(name)
    policy = ActorCritic(env.num_observations, env.num_actions, choices_of(env), hidden=(8, 8))
    sampler = Sampler(env, policy, NUM_ENVS, NUM_STEPS, HORIZON)
    key = jax.random.key(3)
    theta = policy.initial(key, 1) + 0.3 * jax.random.normal(key, (1, policy.num_parameters))
    context = env.context_space.sample(key, 1)

    @jax.jit
    def simulated() -> tuple[Steps, Experience]:
        lanes = sampler.start(context, key)
        return sampler.simulate(theta, context, lanes, key)[1], sampler(theta, context, lanes, key, gae_lambda)

    return Batch(policy, theta, *simulated())


def to_torch(policy: ActorCritic, theta: Array, model: Any) -> list[tuple[Any, str]]:
    """Copy our parameters into a model; its parameters with our names for them."""
    net, parts = model.policy, policy.split(theta)
    layers = {
        "actor": [net.mlp_extractor.policy_net[0], net.mlp_extractor.policy_net[2], net.action_net],
        "critic": [net.mlp_extractor.value_net[0], net.mlp_extractor.value_net[2], net.value_net],
    }
    named = [
        (getattr(layer, kind), f"{network}.{index}.{kind}")
        for network, modules in layers.items()
        for index, layer in enumerate(modules)
        for kind in ("weight", "bias")
    ]
    named += [] if policy.is_discrete else [(net.log_std, "log_std")]
    for parameter, name in named:
        parameter.data = torch.tensor(np.asarray(parts[name]).T.copy())
    return named


def of_torch(policy: ActorCritic, values: dict[str, Any]) -> Array:
    """A flat vector from tensors by our names."""
    return policy.join({name: jnp.asarray(values[name].detach().numpy().T) for name in policy.shapes})


def model_of(kind: Any, name: str, batch: Batch, **options: Any) -> Any:
    """A model of Stable-Baselines3 with our batch in its buffer, its advantages its own."""
    env = make_vec_env(GYMNASIUM[name], n_envs=NUM_ENVS)
    layers = {"pi": [8, 8], "vf": [8, 8]}
    model = kind("MlpPolicy", env, n_steps=NUM_STEPS, policy_kwargs={"net_arch": layers}, device="cpu", **options)
    model.set_logger(configure(None, []))
    model._current_progress_remaining = 1.0
    steps: Any = jax.tree.map(lambda array: np.asarray(array[0]), batch.steps)
    buffer, starts = model.rollout_buffer, np.ones(NUM_ENVS)
    for t in range(NUM_STEPS):
        cut_off = steps.ended[t] & ~steps.terminated[t]
        reward = steps.reward[t] + np.where(cut_off, model.gamma * steps.next_value[t], 0.0)
        tensors = (torch.tensor(values[t]) for values in (steps.value, steps.log_density))
        buffer.add(steps.observation[t], steps.action[t], reward, starts, *tensors)
        starts = steps.ended[t].astype(np.float32)
    buffer.compute_returns_and_advantage(torch.tensor(steps.next_value[-1]), steps.ended[-1])
    return model


def set_critic_rate(model: Any, named: list[tuple[Any, str]], ratio: float) -> None:
    """Have the optimiser of a model learn the critic at another rate, relative to the actor's."""
    (group,) = model.policy.optimizer.param_groups
    group["params"] = [parameter for parameter, own in named if not own.startswith("critic")]
    critic = [parameter for parameter, own in named if own.startswith("critic")]
    model.policy.optimizer.add_param_group({"params": critic, "lr": ratio * group["lr"]})
    model._update_learning_rate = lambda _: None


@pytest.mark.parametrize("name", GYMNASIUM)
def test_ppo(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of(name, 0.95)
    assert batch.steps.ended.sum() > batch.steps.terminated.sum() > (-1 if name == "pendulum" else 0)
    size = NUM_ENVS * NUM_STEPS
    options = {"ent_coef": 0.01, "clip_range": 0.1, "learning_rate": 1e-3, "n_epochs": 3, "batch_size": size}
    model = model_of(stable_baselines3.PPO, name, batch, **options)
    buffer, policy, experience = model.rollout_buffer, batch.policy, batch.experience
    for ours, theirs in ((experience.advantage, buffer.advantages), (experience.target, buffer.returns)):
        np.testing.assert_allclose(ours[0].reshape(NUM_STEPS, NUM_ENVS), theirs, **TOLERANCE)

    # Losses and gradients of one minibatch, away from the policy that sampled it.
    away = batch.theta + 0.05 * jax.random.normal(jax.random.key(5), batch.theta.shape)
    named = to_torch(policy, away[0], model)
    rule = PPO(epochs=3, minibatch_size=size, clip_range=(0.1,), entropy_weight=0.01)
    minibatch = Minibatch(*(getattr(experience, field)[0] for field in Minibatch._fields))
    grad = jax.value_and_grad(rule.loss, argnums=1, has_aux=True)
    (loss, losses), slopes = grad(policy, policy.split(away[0]), minibatch, jnp.float32(0.1), rule.entropy_weight)
    model.n_epochs, model.max_grad_norm, step = 1, 1e9, model.policy.optimizer.step
    model.policy.optimizer.step = lambda: None
    model.train()
    logged = model.logger.name_to_value
    names = ("loss", "policy_gradient_loss", "value_loss", "entropy_loss", "approx_kl", "clip_fraction")
    for ours, theirs in zip((loss, *losses), names, strict=True):
        np.testing.assert_allclose(ours, logged[f"train/{theirs}"], err_msg=theirs, **TOLERANCE)
    assert 0.1 < logged["train/clip_fraction"] < 0.9
    gradient = of_torch(policy, {own: parameter.grad for parameter, own in named})
    np.testing.assert_allclose(policy.join(slopes), gradient, **TOLERANCE)

    # A whole update: three epochs of Adam with gradients that are cut.
    named = to_torch(policy, batch.theta[0], model)
    model.n_epochs, model.max_grad_norm, model.policy.optimizer.step = 3, 0.5, step
    cut, lengths = torch.nn.utils.clip_grad_norm_, []

    def cut_and_keep(*arguments: Any) -> Any:
        squares = {own: float((parameter.grad**2).sum()) for parameter, own in named}
        actors = (square for own, square in squares.items() if not own.startswith("critic"))
        lengths.append(np.sqrt([sum(squares.values()), sum(actors)]))
        return cut(*arguments)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", cut_and_keep)
    model.train()
    rate = {"stepsize": jnp.full(1, 1e-3, jnp.float32)}
    trained = rule.apply(policy, batch.theta, experience, rate, rule.init(batch.theta), jax.random.key(0))
    np.testing.assert_allclose(trained.theta[0], of_torch(policy, {own: p for p, own in named}), **TOLERANCE)
    np.testing.assert_allclose(trained.divergence[0], logged["train/approx_kl"], **TOLERANCE)
    np.testing.assert_allclose(trained.clip_fraction[0], logged["train/clip_fraction"], **TOLERANCE)
    found = trained.gradient_norm[0], trained.actor_gradient_norm[0]
    np.testing.assert_allclose(found, np.mean(lengths, axis=0), **TOLERANCE)
    assert trained.gradient_steps[0] == len(lengths) == 3
    assert not trained.flagged[0]
    assert np.abs(trained.theta - batch.theta).max() > 1e-3


VALUES = {"stepsize": (1e-2, 3e-3), "gradient_steps": (4, 6), "clip_range": (0.1, 0.4)}
VALUES |= {"gae_lambda": (0.8, 1.0), "entropy_weight": (0.05, 1e-4), "critic_rate": (5, 0.3)}
CHOSEN: list[dict[str, float]] = [{own: values[index] for own, values in VALUES.items()} for index in range(2)]


@pytest.mark.parametrize("name", GYMNASIUM)
def test_every_hyperparameter_of_ppo_can_be_chosen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two learners of one block with different hyperparameters: each as in Stable-Baselines3, by one compiled program.

    In minibatches of the same orders, and with a bound on how far the critic moves.
    """
    size, epochs, key = NUM_ENVS * NUM_STEPS, 2, jax.random.key(4)
    batch = batch_of(name, 0.95)
    policy, rule = batch.policy, PPO(epochs=epochs, minibatch_size=size // 3, value_clip_range=0.05)
    orders = [np.asarray(jax.random.permutation(one, size)) for one in jax.random.split(key, epochs)]
    differences = temporal_differences(batch.steps, 0.99)
    both = jax.tree.map(lambda array: jnp.repeat(array, 2, axis=0), batch.experience._replace(differences=differences))
    theta = jnp.repeat(batch.theta, 2, axis=0)
    apply = jax.jit(lambda values: rule.apply(policy, theta, both, values, rule.init(theta), key))

    def ours(chosen: Sequence[Mapping[str, float]]) -> Any:
        return apply({own: jnp.asarray([each[own] for each in chosen], jnp.float32) for own in chosen[0]})

    trained = ours(CHOSEN)
    for index, chosen in enumerate(CHOSEN):
        options = {"clip_range": chosen["clip_range"], "gae_lambda": chosen["gae_lambda"], "clip_range_vf": 0.05}
        options |= {"ent_coef": chosen["entropy_weight"], "n_epochs": epochs, "batch_size": size // 3}
        model = model_of(stable_baselines3.PPO, name, batch, learning_rate=chosen["stepsize"], **options)
        named = to_torch(policy, batch.theta[0], model)
        set_critic_rate(model, named, chosen["critic_rate"])
        # Our steps go by time and then by environment, theirs the other way round.
        left = iter([order % NUM_ENVS * NUM_STEPS + order // NUM_ENVS for order in orders])
        monkeypatch.setattr(np.random, "permutation", lambda _, left=left: next(left))
        made, get = 0, model.rollout_buffer.get

        def some(batch_size: int, get: Any = get, most: float = chosen["gradient_steps"]) -> Any:
            nonlocal made
            for minibatch in get(batch_size):
                if made < most:
                    made += 1
                    yield minibatch

        model.rollout_buffer.get = some
        model.train()
        found = of_torch(policy, {own: parameter for parameter, own in named})
        np.testing.assert_allclose(trained.theta[index], found, rtol=1e-4, atol=1e-5)
        logged = (model.logger.name_to_value[f"train/{own}"] for own in ("approx_kl", "clip_fraction"))
        np.testing.assert_allclose((trained.divergence[index], trained.clip_fraction[index]), [*logged], rtol=1e-3)
    # Each of them matters, and other values are no other program.
    for own, values in VALUES.items():
        other = [each | {own: value} for each, value in zip(CHOSEN, values[::-1], strict=True)]
        assert np.abs(ours(other).theta - trained.theta).max(axis=1).min() > 1e-6, own
    assert apply._cache_size() == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("chosen", [{}, {"gae_lambda": 0.9, "entropy_weight": 0.5, "critic_rate": 3.0}])
@pytest.mark.parametrize("name", GYMNASIUM)
def test_a2c(name: str, chosen: dict[str, float]) -> None:
    """With the defaults, and with all that can be chosen: as fields, and for every learner."""
    # The first step of RMSprop is the sign of the gradient and would hide the choices, except where epsilon is large.
    batch, (usual, rate) = batch_of(name, 1.0), (A2C(epsilon=1.0), 1.0) if chosen else (A2C(), 1e-3)
    rule = replace(usual, **chosen)
    options = {"gae_lambda": rule.gae_lambda, "ent_coef": rule.entropy_weight, "rms_prop_eps": 1.0} if chosen else {}
    model = model_of(stable_baselines3.A2C, name, batch, learning_rate=rate, **options)
    named = to_torch(batch.policy, batch.theta[0], model)
    if chosen:
        set_critic_rate(model, named, rule.critic_rate)
    model.train()
    found = of_torch(batch.policy, {own: parameter for parameter, own in named})

    def ours(rule: A2C, experience: Experience, values: dict[str, float]) -> Array:
        given = {own: jnp.full(1, value, jnp.float32) for own, value in ({"stepsize": rate} | values).items()}
        return rule.apply(batch.policy, batch.theta, experience, given, rule.init(batch.theta), jax.random.key(0)).theta

    np.testing.assert_allclose(ours(rule, batch_of(name, rule.gae_lambda).experience, {})[0], found, **TOLERANCE)
    kept = batch.experience._replace(differences=temporal_differences(batch.steps, 0.99))
    np.testing.assert_allclose(ours(usual, kept, chosen)[0], found, **TOLERANCE)
    for own in chosen:  # each of them matters
        assert np.abs(ours(usual, kept, chosen | {own: getattr(usual, own)}) - found).max() > 1e-3, own


@pytest.mark.parametrize("name", GYMNASIUM)
def test_trpo(name: str) -> None:
    """With lambda, the critic's rate and the bound chosen; two learners of one block, each as in sb3-contrib."""
    batch, size = batch_of(name, 1.0), NUM_ENVS * NUM_STEPS
    chosen = {"gae_lambda": (0.9, 1.0), "critic_rate": (3e-3, 0.03)}
    kept = batch.experience._replace(differences=temporal_differences(batch.steps, 0.99))
    both, theta = jax.tree.map(lambda array: jnp.repeat(array, 2, axis=0), (kept, batch.theta))
    values = {own: jnp.asarray(pair, jnp.float32) for own, pair in (chosen | {"stepsize": (0.01, 0.001)}).items()}
    rule = TRPO(minibatch_size=size)
    trained = rule.apply(batch.policy, theta, both, values, rule.init(theta), jax.random.key(0))
    for index, (gae_lambda, rate) in enumerate(zip(*chosen.values(), strict=True)):
        options = {"gae_lambda": gae_lambda, "learning_rate": rate, "target_kl": float(values["stepsize"][index])}
        model = model_of(sb3_contrib.TRPO, name, batch, batch_size=size, **options)
        named = to_torch(batch.policy, batch.theta[0], model)
        model.train()
        found = of_torch(batch.policy, {own: parameter for parameter, own in named})
        np.testing.assert_allclose(trained.theta[index], found, rtol=1e-3, atol=1e-4)
        assert trained.divergence[index] > 1e-5
