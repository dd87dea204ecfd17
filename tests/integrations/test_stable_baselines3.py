"""The rate that is proposed is the one that Stable-Baselines3 uses, before and after saving."""

import copy
import csv
import dataclasses
import json
import pickle
import warnings
import zipfile
from functools import partial

import gymnasium
import numpy as np
import pytest
import stable_baselines3 as sb3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from metastep._core.errors import InputError
from metastep.features import SETS
from metastep.integrations.stable_baselines3 import LearnedRate as Guarded
from metastep.integrations.stable_baselines3 import LearnedUpdate as GuardedUpdate
from tests.steppers import TRAINING, WHOLE, clip_model, tiny_model, whole_model

LearnedRate, LearnedUpdate = (partial(each, outside="trust") for each in (Guarded, GuardedUpdate))
ENVS, STEPS = 2, 12
FIELDS = ("learning_rate", "clip_range", "ent_coef", "n_epochs", "gae_lambda", "lr_schedule", "target_kl")
SETTINGS = {"PPO": {"n_epochs": 2, "batch_size": 8}, "A2C": {}}


def make(name: str, env: str = "Pendulum-v1"):
    torch.set_num_threads(1)
    envs = make_vec_env(env, ENVS, seed=1, env_kwargs={"max_episode_steps": 7})
    kwargs = SETTINGS[name] | {"policy_kwargs": {"net_arch": [4]}, "seed": 3, "device": "cpu"}
    return getattr(sb3, name)("MlpPolicy", envs, n_steps=STEPS, **kwargs)


def watch_steps(algorithm) -> list[float]:
    rates, optimizer = [], algorithm.policy.optimizer
    step = optimizer.step

    def watched(*args, **kwargs):
        rates.append(optimizer.param_groups[0]["lr"])
        return step(*args, **kwargs)

    optimizer.step = watched
    return rates


@pytest.mark.parametrize(("name", "env"), [("PPO", "Pendulum-v1"), ("A2C", "CartPole-v1")])
def test_the_rate_that_is_proposed_is_the_rate_of_every_step(name, env):
    algorithm, callback = make(name, env), LearnedRate(tiny_model())
    rates = watch_steps(algorithm)
    algorithm.learn(4 * ENVS * STEPS, callback=callback)
    each = len(rates) // 4
    assert rates == [rate for rate in callback.proposed for _ in range(each)]
    assert len(callback.proposed) == 4
    assert make(name).learning_rate not in rates
    last = {feature: float(callback.stepper.last[feature][0]) for feature in TRAINING}
    assert last["budget"] == 0.75
    assert last["last_rate"] == pytest.approx(np.log10(callback.proposed[-2]), rel=1e-5)
    assert -6.0 < last["last_divergence"] < 0.0
    assert last["step_ratio"] != 0.0
    assert -1.0 < last["step_cosine"] < 1.0


@pytest.mark.parametrize(("name", "model"), [("PPO", whole_model(TRAINING)), ("A2C", tiny_model())])
def test_a_saved_algorithm_continues_identically_and_an_interrupted_update_is_undone(name, model, tmp_path):
    half, whole = 2 * ENVS * STEPS, make(name)
    before = {field: getattr(whole, field) for field in FIELDS if hasattr(whole, field)}

    def second_half(algorithm):
        algorithm.get_env().seed(5)
        algorithm.set_random_seed(7)
        algorithm._last_obs = None  # what loading does: begin new episodes
        callback = LearnedRate(model)
        algorithm.learn(half, callback=callback, reset_num_timesteps=False)
        return callback.proposed, callback.values, json.loads(json.dumps(algorithm.learned_rate))

    step, whole.policy.optimizer.step = whole.policy.optimizer.step, lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        whole.learn(half, callback=LearnedRate(model))
    whole.policy.optimizer.step = step
    whole.learn(half, callback=LearnedRate(model))
    assert before == {field: getattr(whole, field) for field in before}
    whole.save(tmp_path / "saved.zip")
    wanted = second_half(whole)
    loaded = getattr(sb3, name).load(tmp_path / "saved.zip", env=make(name).get_env(), device="cpu")
    assert second_half(loaded) == wanted
    assert len(set(wanted[0])) == 2
    with zipfile.ZipFile(tmp_path / "saved.zip") as archive:  # as JSON, not pickled
        assert json.loads(archive.read("data"))["learned_rate"]["stepper"]["memory"]["updates"] == 2


def test_a_checkpoint_without_a_stepper_says_so_and_a_damaged_one_is_refused():
    algorithm = make("PPO")
    algorithm.learn(ENVS * STEPS, callback=LearnedRate(tiny_model()))
    kept = copy.deepcopy(algorithm.learned_rate)

    def go_on(state):
        algorithm.learned_rate, callback = state, LearnedRate(tiny_model())
        algorithm.learn(ENVS * STEPS, callback=callback, reset_num_timesteps=False)
        return callback.stepper.memory.updates

    with pytest.warns(UserWarning, match="has no record of a stepper, which starts with an empty memory") as warned:
        assert go_on(kept | {"stepper": None}) == 1
    assert len(warned) == 1
    for state, sentence in (
        (5, "checkpoint: learned_rate is 5, it must be"),
        (kept | {"stepper": 5}, "checkpoint: learned_rate: stepper is 5, it must be"),
        (kept | {"stepper": {}}, "not a metastep stepper"),
        (kept | {"measured": {"approx_kl": "much"}}, "measured.approx_kl is 'much', it must be a number"),
        (kept | {"measured": {"entropy": 1.0}}, "measured.entropy.* is 'entropy', it must be"),
        (kept | {"returns": {"ended": [1.0], "paid": []}}, "returns.ended.0 is 1.0, it must be"),
    ):
        with pytest.raises(InputError, match=sentence):
            go_on(state)


class Paying(gymnasium.Env):
    """Pays its number for every step; an episode of number n has n steps."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, number):
        self.number, self.elapsed = number, 0

    def reset(self, *, seed=None, options=None):
        self.elapsed = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.elapsed += 1
        return np.zeros(2, np.float32), float(self.number), self.elapsed == self.number, False, {}


@pytest.mark.parametrize("kind", ["monitor", "plain", "scaled"])
def test_returns_are_of_ended_episodes_and_else_what_was_paid_so_far(kind):
    """As simulated learners have them, with a monitor or without, and before they are scaled.

    In 12 steps, the environments 5 and 7 finish episodes and 99 does not.
    """
    wrap, callback = Monitor if kind == "monitor" else lambda env: env, LearnedRate(tiny_model())
    envs = DummyVecEnv([lambda number=number: wrap(Paying(number)) for number in (5, 7, 99)])
    envs = VecNormalize(envs) if kind == "scaled" else envs
    algorithm = sb3.PPO("MlpPolicy", envs, n_steps=STEPS, batch_size=12, n_epochs=1, seed=3, device="cpu")
    with warnings.catch_warnings(record=True, action="always") as warned:
        algorithm.learn(3 * STEPS, callback=callback)
    sentence = "an episode ended without info['episode'], so its return"
    assert len([each for each in warned if sentence in str(each.message)]) == (kind != "monitor")
    assert callback._returns() == [25.0, 49.0, 12 * 99.0]
    assert callback.stepper.memory.mean_return == pytest.approx((25.0 + 49.0 + 12 * 99.0) / 3)
    assert callback._returns.paid == [10.0, 35.0, 12 * 99.0]


def test_the_saved_state_is_plain_and_up_to_date_at_any_time():
    algorithm, callback, seen = make("PPO"), LearnedRate(tiny_model()), []

    class Look(BaseCallback):
        def _on_step(self):
            kept = self.model.learned_rate
            assert json.loads(json.dumps(kept)) == kept == copy.deepcopy(kept) == pickle.loads(pickle.dumps(kept))
            assert kept["stepper"] == callback.stepper.record()
            seen.append((kept["stepper"]["memory"]["updates"], kept["returns"]["paid"][0]))
            return True

    algorithm.learn(2 * ENVS * STEPS, callback=[callback, Look()])
    assert [updates for updates, _ in seen] == [0] * STEPS + [1] * STEPS
    assert len({paid for _, paid in seen}) > STEPS  # in the middle of a rollout, too
    assert algorithm.learned_rate["stepper"]["memory"]["updates"] == 2


def test_a_fresh_start_forgets_and_other_loops_and_algorithms_are_named():
    algorithm, callback, record = make("PPO"), LearnedRate(tiny_model()), tiny_model().record
    unlike = dataclasses.replace(record, setting=record.setting | {"discount": 0.5})
    with pytest.warns(UserWarning, match=r"discount is 0.99, trained on 0.5.*: your own values are used"):
        algorithm.learn(ENVS * STEPS, callback=Guarded(dataclasses.replace(tiny_model(), record=unlike)))
    algorithm.learn(ENVS * STEPS, callback=callback)
    assert callback.stepper.memory.updates == 1
    with pytest.raises(InputError, match="DQN is not supported, allowed are PPO, A2C"):
        sb3.DQN("MlpPolicy", "CartPole-v1", buffer_size=10, device="cpu").learn(10, callback=LearnedRate(tiny_model()))


def test_a_model_of_two_choices_sets_both(tmp_path):
    algorithm, callback, seen = make("PPO"), LearnedRate(clip_model(), log=tmp_path / "log.csv"), []
    train = algorithm.train

    def watched():
        train()
        seen.append((algorithm.logger.name_to_value["train/clip_range"], algorithm.learning_rate))

    algorithm.train = watched
    algorithm.learn(8 * ENVS * STEPS, callback=callback)
    assert [rate for _, rate in seen] == callback.proposed
    assert {clip for clip, _ in seen} == {0.1, 0.3}
    assert f"clip {seen[-1][0]:g}" == callback.stepper.record()["gathered"]["direction"]
    rows = list(csv.DictReader((tmp_path / "log.csv").read_text().splitlines()))
    assert [float(row["clip_range"]) for row in rows] == [clip for clip, _ in seen]
    for model, others in ((clip_model(), "clip_range"), (whole_model(), "gradient_steps, clip_range")):
        with pytest.raises(InputError, match=f"LearnedRate with A2C: the model chooses {others} as well, for which"):
            make("A2C").learn(ENVS * STEPS, callback=LearnedRate(model))


@pytest.mark.parametrize("name", ["PPO", "A2C"])
def test_constant_hyperparameters_train_as_the_algorithm_itself_with_them(name):
    """The critic's rate against parameter groups of PyTorch."""
    names = tuple(each for each in WHOLE if name == "PPO" or each not in ("clip_range", "gradient_steps"))
    model = next(
        found
        for seed in range(99)  # whole epochs, which the algorithm itself can make
        if (found := whole_model((), names, seed)).propose().values.get("gradient_steps", 3) % 3 == 0
    )
    ours, values = make(name), model.propose().values
    ours.learn(3 * ENVS * STEPS, callback=LearnedUpdate(model))
    plain = make(name)
    critic = [each for key, each in plain.policy.named_parameters() if "value_net" in key]
    actor = [each for key, each in plain.policy.named_parameters() if "value_net" not in key]
    kind, options = type(plain.policy.optimizer), plain.policy.optimizer.defaults
    rates = {"lr": values["stepsize"]}, {"lr": values["stepsize"] * values["critic_rate"]}
    groups = [{"params": each, **rate} for each, rate in zip((actor, critic), rates, strict=True)]
    plain.policy.optimizer = kind(groups, **options)
    plain._update_learning_rate = lambda optimizers: None
    plain.ent_coef, plain.rollout_buffer.gae_lambda = values["entropy_weight"], values["gae_lambda"]
    if name == "PPO":
        plain.n_epochs = values["gradient_steps"] // 3
        plain.clip_range = lambda _: values["clip_range"]
    plain.learn(3 * ENVS * STEPS)
    for mine, theirs in zip(ours.policy.parameters(), plain.policy.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.0, atol=0.0)
    assert len(ours.policy.optimizer.param_groups) == 1


def test_gradient_steps_are_exact_and_the_users_settings_come_back(monkeypatch):
    model, algorithm = whole_model((*SETS["training"], *SETS["progress"]), seed=2), make("PPO")
    rates, norms, cut = watch_steps(algorithm), [], torch.nn.utils.clip_grad_norm_
    before, callback, made = {name: getattr(algorithm, name) for name in FIELDS}, LearnedUpdate(model), []

    def watched(*given, **more):
        norms.append(float(cut(*given, **more)))
        return norms[-1]

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", watched)

    class Other(BaseCallback):
        def _on_step(self):
            assert before == {name: getattr(algorithm, name) for name in FIELDS}
            return True

        def _on_rollout_end(self):
            made.append((len(rates), callback.values["gradient_steps"]))

    algorithm.learn(5 * ENVS * STEPS, callback=[callback, Other()])
    ends = [first for first, _ in made[1:]] + [len(rates)]
    assert [wanted for _, wanted in made] == [end - first for (first, _), end in zip(made, ends, strict=True)]
    assert len({wanted for _, wanted in made}) > 1
    assert before == {name: getattr(algorithm, name) for name in FIELDS}
    assert "get" not in vars(algorithm.rollout_buffer)
    assert "evaluate_actions" not in vars(algorithm.policy)
    last = callback.measured
    assert last["gradient_steps"] == made[-1][1]
    assert last["gradient_norm"] == pytest.approx(np.mean(norms[made[-1][0] :]), rel=1e-5)
    assert 0.0 < last["actor_gradient_norm"] < last["gradient_norm"]


def test_the_last_epochs_clip_fraction_is_that_of_the_only_epoch():
    algorithm, model = make("PPO"), whole_model(("last_clip_fraction",), ("stepsize", "clip_range"), 3)
    algorithm.n_epochs, callback = 1, LearnedRate(model)
    algorithm.learn(ENVS * STEPS, callback=callback)
    assert callback.measured["last_clip_fraction"] == pytest.approx(callback.measured["clip_fraction"])
    assert callback.measured["clip_fraction"] > 0.0


def test_an_update_that_goes_too_far_is_stopped_unless_the_user_has_a_limit_or_trusts_the_model(monkeypatch):
    monkeypatch.setattr("metastep.integrations.stable_baselines3._TARGET_KL", 1e-9)
    made = []
    for outside, own in (("fallback", None), ("fallback", 10.0), ("trust", None)):
        algorithm = make("PPO")
        algorithm.target_kl, steps = own, watch_steps(algorithm)
        algorithm.learn(20 * ENVS * STEPS, callback=(callback := Guarded(whole_model(()), outside=outside)))
        assert algorithm.target_kl == own
        assert (callback.measured["approx_kl"] > algorithm.logger.name_to_value["train/approx_kl"]) == (not made)
        made.append(len(steps))
    assert made[0] < min(made[1:])
