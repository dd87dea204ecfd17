"""Batches of steps from simulators that are not JAX: the same as in JAX, as Gymnasium itself has them, and as by hand."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metastep import envs
from metastep._core.errors import InputError
from metastep.envs.contexts import ContextSpace
from metastep.envs.host import GymnasiumEnv, HostStep
from metastep.experiments.checking import check_folder
from metastep.experiments.config import load
from metastep.experiments.learn import mean_return
from metastep.experiments.run import Run
from metastep.mdp import ActorCriticMDP
from metastep.mdp.blocks import Stream
from metastep.policies import ActorCritic
from metastep.rules.actor_critic import ActorCriticRule, Sampler
from metastep.rules.spaces import HyperparameterSpace
from tests.controllers.problems import TRAINING
from tests.envs.host.twins import Twin
from tests.rules.test_learning import FEW
from tests.run_page import BLOCK, SAVED

KEY = jax.random.key(3)
LEARNERS = 2
SMALL = ["rollout.num_envs=2", "rollout.num_steps=8", "rollout.horizon=6", *FEW]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cartpole-v1", {"horizon": 12}),  # discrete actions, early ends
        ("mountaincar", {"horizon": 10, "hold": 4}),  # a range of actions; the horizon ends a hold
        ("lqr", {"horizon": 5, "hold": 2}),  # normals of every step
    ],
)
def test_the_first_batch_is_that_of_the_same_environment_in_jax(name: str, options: dict[str, int]) -> None:
    env: Any = envs.make(name)
    policy = ActorCritic(env.num_observations, env.num_actions, envs.choices_of(env), hidden=(4,), log_std=0.5)
    theta, context = policy.initial(KEY, LEARNERS), env.context_space.sample(KEY, LEARNERS)
    sampler = Sampler(env, policy, 3, 24, **options)
    start = sampler.start(context, jax.random.fold_in(KEY, 2**32 - 1))
    _, expected = jax.jit(sampler.simulate)(theta, context, start, KEY)
    hosted = dataclasses.replace(sampler, env=Twin(env))
    _, steps = hosted.simulate(theta, context, hosted.start(context, KEY), KEY)
    for field in ("action", "ended", "terminated") if policy.is_discrete else ("ended", "terminated"):
        np.testing.assert_array_equal(getattr(steps, field), getattr(expected, field), err_msg=field)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4), steps, expected)
    assert np.any(steps.ended)


def gym_env(name: str, setting: str, low: float, high: float) -> GymnasiumEnv:
    def make(context: Any) -> Any:
        env = gymnasium.make(name)
        setattr(env.unwrapped, setting, context[0])
        return env

    return GymnasiumEnv(make, ContextSpace((setting,), (low,), (high,)), name=f"gym_{setting}")


PENDULUM, CARTPOLE = gym_env("Pendulum-v1", "m", 0.5, 2.0), gym_env("CartPole-v1", "force_mag", 5.0, 15.0)


@pytest.mark.parametrize(("env", "horizon"), [(PENDULUM, 9), (CARTPOLE, 12)])
def test_steps_are_those_of_gymnasium_with_the_same_seeds_and_actions(env: GymnasiumEnv, horizon: int) -> None:
    num_envs, num_steps = 2, 24
    policy = ActorCritic(env.num_observations, 1, env.num_choices, hidden=(4,), log_std=1.0)
    sampler = Sampler(env, policy, num_envs, num_steps, horizon)
    theta, context = policy.initial(KEY, LEARNERS), env.context_space.sample(KEY, LEARNERS)
    _, steps = sampler.simulate(theta, context, sampler.start(context, KEY), KEY)
    bits = jax.random.bits(jax.random.fold_in(KEY, 2**32 - 2), (num_steps, LEARNERS, num_envs), jnp.uint32)
    seeds = np.asarray(bits) >> 1
    for learner in range(LEARNERS):
        for lane in range(num_envs):
            one, begun = env.build(np.asarray(context[learner])), 0
            seen, _ = one.reset(seed=int(seeds[0, learner, lane]))
            for t in range(num_steps):
                np.testing.assert_array_equal(steps.observation[learner, t, lane], np.asarray(seen, np.float32))
                action = np.asarray(steps.action[learner, t, lane])
                move = int(action[0]) if env.num_choices else np.clip(action, -2.0, 2.0)
                seen, reward, terminated, _, _ = one.step(move)
                assert steps.reward[learner, t, lane] == np.float32(reward)
                assert bool(steps.terminated[learner, t, lane]) == terminated
                over = terminated or t + 1 - begun == horizon
                assert bool(steps.ended[learner, t, lane]) == over
                if over and t + 1 < num_steps:
                    begun, (seen, _) = t + 1, one.reset(seed=int(seeds[t + 1, learner, lane]))
            one.close()
    assert (np.asarray(steps.ended).sum(axis=1) > 1).all()
    if env.num_choices:
        assert np.any(steps.terminated)
        assert np.any(steps.ended & ~steps.terminated)
        assert set(np.unique(steps.action)) == {0, 1}


class Counts:
    """Shows how many steps were made and pays as much, from 1 on; ends after as many as the task says."""

    def __init__(self, context: Any, shape: tuple[int, ...]) -> None:
        self.context, self.made = context, np.zeros(shape)

    def observe(self) -> Any:
        return self.made[..., None]

    def step(self, action: Any, noise: Any, alive: Any) -> HostStep:
        self.made = self.made + alive
        return HostStep(self.made, self.made == self.context[:, 0])


class RestartableCounts(Counts):
    def restart(self, which: Any, noise: Any, seeds: Any) -> None:
        self.made = np.where(which, 0.0, self.made)


class ImpatientCounts(RestartableCounts):
    """Cuts itself off after three steps, and refuses to go on."""

    def step(self, action: Any, noise: Any, alive: Any) -> HostStep:
        assert not (alive & (self.made >= 3)).any()
        return super().step(action, noise, alive)._replace(truncated=self.made == 3)


@dataclasses.dataclass(frozen=True)
class Counter:
    episodes: Any = RestartableCounts
    context_space: ClassVar[Any] = ContextSpace(("length",), (2.0,), (9.0,))
    name: ClassVar[str] = "counter"
    num_observations, num_actions, packages, reset_noise, step_noise = 1, 1, (), 0, 0

    def start_episodes(self, context: Any, noise: Any, seeds: Any) -> Any:
        return self.episodes(context, noise.shape[:2])


def test_what_has_ended_is_worth_nothing_and_what_is_cut_off_what_the_critic_says() -> None:
    """Steps pay 1, 2, 3, ...; the critic says 10 everywhere; discount and lambda are one half."""
    policy = ActorCritic(1, 1, hidden=(1,))
    parts = policy.split(jnp.zeros((2, policy.num_parameters), jnp.float32))
    theta = policy.join(parts | {"critic.1.bias": jnp.full((2, 1), 10.0)})
    sampler = Sampler(Counter(), policy, 1, 5, horizon=3, discount=0.5)
    context = jnp.asarray([[2.0], [9.0]])
    batch = sampler(theta, context, sampler.start(context, KEY), KEY, 0.5)
    # The first learner's episodes end after two steps, the second's are cut off after three; the batch cuts off both.
    first = [1 + 5 - 10 + 0.25 * (2 - 10), 2 - 10, 1 + 5 - 10 + 0.25 * (2 - 10), 2 - 10, 1 + 5 - 10]
    second = [-4 + 0.25 * (-3 + 0.25 * -2), -3 + 0.25 * -2, -2, -4 + 0.25 * -3, -3]  # d_t = t + 5 - 10
    np.testing.assert_allclose(batch.advantage, [first, second], rtol=1e-6)
    np.testing.assert_allclose(batch.target, np.asarray([first, second]) + 10.0, rtol=1e-6)
    np.testing.assert_array_equal(batch.mean_return, [1 + 2, 1 + 2 + 3])  # of the first episodes
    np.testing.assert_array_equal(batch.num_steps, 5.0)
    held = dataclasses.replace(sampler, hold=2)(theta, context, sampler.start(context, KEY), KEY, 0.5)
    # The second one's second hold has one step: the horizon is three.
    np.testing.assert_allclose(held.observation[..., 0], [[0, 0, 0, 0, 0], [0, 2, 0, 2, 0]])
    np.testing.assert_allclose(held.target - held.advantage, 10.0)
    np.testing.assert_array_equal(held.mean_return, [3.0, 6.0])
    np.testing.assert_array_equal(held.num_steps, 10.0)


@pytest.mark.parametrize("hold", [1, 2])
def test_where_a_simulator_cuts_itself_off_is_as_where_the_horizon_does(hold: int) -> None:
    policy = ActorCritic(1, 1, hidden=(1,))
    theta, context = policy.initial(KEY, 2), jnp.asarray([[2.0], [9.0]])
    cuts = (RestartableCounts, 3), (ImpatientCounts, 5)
    samplers = (Sampler(Counter(made), policy, 1, 5, horizon=horizon, hold=hold) for made, horizon in cuts)
    expected, found = (each(theta, context, each.start(context, KEY), KEY, 0.9) for each in samplers)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_what_remains_impossible_is_one_sentence() -> None:
    policy = ActorCritic(1, 1, hidden=(1,))
    theta, context = policy.initial(KEY, 1), jnp.asarray([[3.0]])
    sampler = Sampler(Counter(Counts), policy, 1, 2, horizon=2)
    with pytest.raises(InputError, match="'counter' is simulated on the host and cannot be called inside a compiled"):
        jax.jit(lambda theta: sampler.simulate(theta, context, sampler.start(context, KEY), KEY))(theta)
    with pytest.raises(InputError, match=r"^rollout\.horizon: 7 must not exceed the 6 steps .* 'counter' is not JAX"):
        Sampler(Counter(), policy, 1, 2, horizon=7, hold=3)


def make_mdp(env: Any, rule: ActorCriticRule = TRAINING) -> ActorCriticMDP:
    policy = ActorCritic(env.num_observations, env.num_actions, envs.choices_of(env), hidden=(4,))
    space = HyperparameterSpace((1e-4,), (1e-1,), ("log",), names=rule.hyperparameters)
    return ActorCriticMDP(Sampler(env, policy, 2, 8, horizon=6), space, rule, block_size=3, budget=4)


def test_a_policy_is_judged_by_whole_episodes() -> None:
    mdp = make_mdp(Counter())
    tasks = mdp.tasks(0, Stream.TRAIN, 0, np.asarray([[4.0]], np.float32))
    assert mean_return(mdp, tasks._replace(context=tasks.context[:1], theta=tasks.theta[:1]), 3) == (10.0, 0.0)


def test_the_settings_of_the_guide_learn_a_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "bring-your-own-environment.md").read_text()
    for block in BLOCK.finditer(guide):
        if saved := SAVED.search(guide[: block.start()].rstrip().rpartition("\n\n")[2]):
            (tmp_path / saved[1]).write_text(block[2])
    monkeypatch.syspath_prepend(tmp_path)
    methods = 'compare.methods=["metafqi"]'
    config = load(str(tmp_path / "gym-pendulum-ppo.toml"), "quick", [*SMALL, methods])
    folder = Run.create(tmp_path / "run", config)
    folder.run_all()
    assert not [finding for finding in check_folder(folder.path) if finding.problem]
    found = folder.comparison
    assert found.names == ("metafqi",)
    assert not found.flagged.any()
    assert (np.ptp(found.returns, axis=2) > 0.0).all()
    assert folder.model.record.setting["returns"] == "first episodes"
    assert "returns" not in make_mdp(envs.make("pendulum")).facts  # where older models still fit
    report = (folder.path / "report.md").read_text()
    assert "every batch begins with new ones, and returns are those of the first" in report
