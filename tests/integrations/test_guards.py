"""Guards act alike in all integrations: a model that always proposes the largest rate does no harm where they are on."""

import csv
import warnings
from dataclasses import replace
from itertools import pairwise

import gymnasium
import numpy as np
import pytest
import stable_baselines3 as sb3
import torch

from metastep._core.errors import InputError
from metastep.fqi.guard import loop_of, unlike
from metastep.fqi.model import model_of_heads
from metastep.integrations.stable_baselines3 import LearnedRate
from metastep.pretrained import load
from metastep.search import SearchedModel, Weights
from tests.campaigns.steppers import Loop
from tests.integrations.test_contract import OptaxLoop, PlainLoop, PyTorchLoop
from tests.steppers import HIGH, LOW, TRAINING, clip_model, diagnostics, whole_model

OWN = 1e-3  # the loop's rate


def eager(**changes) -> SearchedModel:
    """A model that proposes the largest rate whatever it sees."""
    model = whole_model(("entropy_change", "last_divergence", "change_in_errors"), ("stepsize",))
    weights = Weights(np.full_like(model.weights.curves, 15.0), *(np.zeros_like(each) for each in model.weights[1:]))
    ranges = {"feature_low": (-6.0, -6.0, -9e9), "feature_high": (6.0, 6.0, 9e9)}
    setting = model.record.setting | {"rule": {"name": "ppo"}} | changes
    return replace(model, record=replace(model.record, **ranges, setting=setting, configuration={}), weights=weights)


class SB3Loop(PlainLoop):
    """The callback, with an algorithm that says what it is to measure."""

    def __init__(self, model, loop=None, fallback=OWN, state=None, **options):
        self.model, self.options, self.algorithm = model, options | {"loop": loop}, Loop(state or {})
        self.algorithm.gamma = (loop or {}).get("discount", 0.99)
        if "actions" in (loop or {}):
            self.algorithm.action_space = gymnasium.spaces.Discrete(2)
        self.algorithm.num_timesteps = 0 if state is None else 8
        self.callback = LearnedRate(model, **options)
        self.callback.model, self.callback.locals = self.algorithm, {"total_timesteps": 5 * 24}
        self.callback._on_training_start()

    def step(self, numbers):
        self.callback.measured = {name: float(numbers[name]) for name in ("approx_kl", "clip_fraction")}
        self.callback._entropy = lambda: float(numbers["entropy"])
        self.callback._returns = lambda: numbers["returns"]
        self.callback._on_rollout_end()
        self.callback._update.end()
        return self.callback.values["stepsize"]

    def restarted(self):
        return type(self)(self.model, state=self.algorithm.learned_rate, **self.options)


def better(update, approx_kl=0.01, entropy=1.0, spread=1.0):
    """Report returns that rise by far more than their standard error."""
    returns = 100.0 * update + spread * np.arange(2.0)
    approx_kl *= 1.0 + 1e-5 * update  # a number that stays the same is not measured
    named = {"returns": returns, "entropy": entropy, "approx_kl": approx_kl, "clip_fraction": 0.1}
    return {name: np.float32(value) for name, value in named.items()}


SOLVED = [better(10, 0.01 + 0.001 * update, spread=0.0) for update in range(6)]
RISING = [*map(better, range(5))]
FAR = [better(0), better(1, entropy=-49.0), better(2, entropy=-49.0), better(3)]
LARGE = [better(0), better(1, approx_kl=77.0), better(2, approx_kl=77.0), better(3), better(4)]
BROKEN = [better(0), better(1, entropy=np.nan), better(2, entropy=np.nan), better(3), better(4)]
ENDLESS = [better(update, approx_kl=77.0 * (update > 0)) for update in range(6)]
CASES = {  # what is said of the loop, what it reports, rates over its own, the warning
    "an unseen action space": ({"actions": "discrete"}, RISING, [1] * 5, "actions is discrete, trained on continuous"),
    "a loop that is nearly the same": ({"discount": 0.985}, RISING[:1], [10], ""),
    "a feature far outside": ({}, FAR, [10, 1, 1, 3], "entropy_change is -50, outside of the -6 to 6 of the training"),
    "large divergences": ({}, LARGE, [10, 5, 2.5, 3.125, 3.90625], "more than 0.5: the rate is halved"),
    "divergences without end": ({}, ENDLESS, [10, 5, 2.5, 1.25, 1, 1], "more than 0.5: the rate is halved"),
    "numbers that are not finite": ({}, BROKEN, [10, 1, 1, 3, 9], "entropy is nan, allowed is a finite number of"),
    "a solved policy": ({}, SOLVED, [1] * 6, ""),
    "a policy that is solved later": ({}, [better(0), better(9), *SOLVED], [10, *[30] * 5, 1, 1], ""),
    "jumps of the rate": ({}, RISING, [10, 30, 90, 100, 100], ""),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", [PlainLoop, OptaxLoop, PyTorchLoop, SB3Loop], ids=lambda kind: kind.__name__)
def test_all_loops_are_guarded_alike_also_after_a_restart(kind, case):
    own, steps, rates, sentence = CASES[case]
    with warnings.catch_warnings(record=True, action="always") as warned:
        loop, found = kind(eager(), loop=own, fallback=OWN), []
        for index, numbers in enumerate(steps):
            found.append(loop.step(numbers))
            loop = loop.restarted() if index == 1 and (case == "large divergences" or "solved" in case) else loop
    assert np.array(found) / OWN == pytest.approx(rates, rel=1e-5)
    assert bool(sentence) <= len(warned) <= bool(sentence) + ("divergences" in case)  # again only after a restart
    assert all(sentence in str(each.message) for each in warned)


@pytest.mark.parametrize("kind", [PlainLoop, OptaxLoop, PyTorchLoop, SB3Loop], ids=lambda kind: kind.__name__)
def test_trust_follows_the_model_and_what_is_unlike_may_be_refused(kind):
    loop = kind(eager(), outside="trust", fallback=OWN, loop={"discount": 0.5})
    steps = [*SOLVED[:1], better(1, entropy=-49.0), better(2, approx_kl=77.0)]
    assert [loop.step(numbers) for numbers in steps] == pytest.approx([HIGH] * 3, rel=1e-5)
    with pytest.raises(InputError, match=r"^loop: discount is 0\.5, trained on 0\.99\.$"):
        kind(eager(), outside="refuse", loop={"discount": 0.5})


def test_a_record_a_log_and_a_schedule_of_the_loops_own(tmp_path):
    """The fallback falls over the updates; the log says which guard acted; a value of the loop may leave the model's range."""
    model, log = eager(), tmp_path / "log.csv"
    stepper = model.stepper(4, log=log, fallback={"stepsize": lambda made: 0.4 * (1.0 - made)})
    assert stepper(better(0)).stepsize == pytest.approx(HIGH, rel=1e-5)
    with pytest.warns(UserWarning, match="entropy_change is -50"):
        assert [stepper(better(k, entropy=-49.0)).stepsize for k in (1, 2)] == pytest.approx([0.3, 0.2])
    again = model.stepper(record=stepper.record(), log=log, fallback=OWN)
    assert again(begins=False) == stepper(begins=False)
    with pytest.warns(UserWarning, match="approx_kl is 9"):
        assert again(better(3, approx_kl=9.0)).stepsize == pytest.approx(HIGH / 2)
    rows = list(csv.DictReader(log.read_text().splitlines()))
    assert [row["guard"] for row in rows] == ["", "fallback", "fallback", "divergence"]


def test_a_rate_that_was_halved_stays_within_the_range_of_its_branch():
    record, functions = (model := clip_model()).record, model.q_functions
    branches = [replace(each, low=low) for each, low in zip(record.branches, (LOW, 30 * LOW), strict=True)]
    model = model_of_heads(replace(record, branches=tuple(branches)), [function.heads for function in functions])
    stepper = model.stepper(8)
    with pytest.warns(UserWarning, match="approx_kl is 9"):
        proposals = [stepper(diagnostics(update) | {"approx_kl": 9.0 * (update > 0)}) for update in range(12)]
    for each in proposals:
        assert each.stepsize >= np.float32(model.record.bounds(each.direction)["stepsize"][0])
    assert model.stepper(record=stepper.record())(begins=False) == proposals[-1]


def test_models_of_several_families_know_all_their_loops():
    """And a share of the budget of 0.9833, where training had 0.98, is not worth a word."""
    model = load("cartpole-ppo")
    lows, names = np.array(model.record.feature_low), model.record.feature_names
    rows = [np.where(np.array(names) == "budget", share, lows).astype(np.float32) for share in (0.9833, 1.5)]
    assert [[*model.stepper(60).limits.far(row)] for row in rows] == [[], ["budget"]]
    default = {"num_envs": 1.0, "batch_steps": 2048.0, "epochs": 10.0, "gradient_steps": 320.0, "discount": 0.98}
    assert [*unlike(model.record.trained_on, default)] == ["num_envs", "gradient_steps"]
    assert not unlike(load("ppo").record.trained_on, default | {"actions": "discrete"})
    stepper = load("ppo").stepper(40, "trust", loop={"batch_steps": 2048, "minibatch_size": 64, "epochs": 10})
    first, again = stepper(), load("ppo").stepper(outside="trust", record=stepper.record())
    assert (again(begins=False), again(), first.values["gradient_steps"]) == (first, stepper(), 330)
    families = {"one": {"actions": "discrete", "discount": 0.9}, "two": {"actions": "continuous", "discount": 0.99}}
    listed = [{"num_envs": 8, "num_steps": 16, "minibatch_size": 32, "epochs": 2, "num_updates": 400, "discount": None}]
    known = eager(loops=listed, families=families, policy=None).record
    own = {"actions": "multidiscrete", "num_updates": 6250.0, "discount": 0.95, "num_envs": 64.0, "gradient_steps": 4.0}
    assert unlike(known.trained_on, own) == {
        "actions": "actions is multidiscrete, trained on discrete and continuous",
        "num_envs": "num_envs is 64, trained on 2 to 8",
        "num_updates": "num_updates is 6250, trained on 400",
    }
    assert [*unlike(known.trained_on, {"num_updates": 5.0})] == ["num_updates"]
    assert loop_of({"rule": 5, "policy": [], "num_envs": "many", "num_steps": -3, "discount": float("nan")}) == {}
    assert len(eager(rule=[], families=3, loops={"x": 1}, policy=0, num_envs="", discount=None).record.trained_on) == 2


def balance(model, updates=5, **options):
    """Return the returns of a policy that has solved InvertedPendulum, trained in the default loop, and the algorithm."""
    torch.set_num_threads(1)
    env, how = gymnasium.make("InvertedPendulum-v5"), {"policy_kwargs": {"log_std_init": -2.0, "net_arch": []}}
    algorithm = sb3.PPO("MlpPolicy", env, seed=1, device="cpu", **how)  # 1 x 2,048 steps
    algorithm.policy.action_net.weight.data[:] = torch.tensor([0.3, 6.0, 0.6, 1.2])
    algorithm.learn(updates * 2048, callback=None if model is None else LearnedRate(model, **options))
    return [episode["r"] for episode in algorithm.ep_info_buffer], algorithm


def test_a_harmful_model_cannot_destroy_a_solved_policy_unless_it_is_trusted():
    model = eager(num_envs=1, num_steps=2048)
    assert set(balance(model)[0]) == {1000.0}
    assert min(balance(model, outside="trust")[0]) < 100.0


def test_ppo_leaves_a_solved_policy_alone():
    """Once all returns are the same, no rate is above the loop's own."""
    rates = []
    assert set(balance("ppo", updates=20, log=lambda _, entry: rates.append(entry["rate"]))[0]) == {1000.0}
    assert rates[0] > rates[5] == pytest.approx(3e-4)
    assert max(rates[5:]) == rates[5]


def test_an_algorithm_in_another_loop_trains_as_if_there_were_no_model():
    sentence = r"batch_steps is 2048, trained on 24.*: your own values are used; outside='tr"
    with pytest.warns(UserWarning, match=sentence):
        ours = balance(whole_model(TRAINING), updates=1)[1]
    for mine, theirs in zip(ours.policy.parameters(), balance(None, updates=1)[1].policy.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.0, atol=0.0)


def test_few_returns_are_judged_by_those_of_the_last_updates():
    """One return per update, around the best one: nothing grows. Where they rise, it does, also gradient steps and others."""
    whole = whole_model(("last_divergence",))
    weights = Weights(np.full_like(whole.weights.curves, 15.0), *(np.zeros_like(each) for each in whole.weights[1:]))
    own = {"stepsize": 1e-4, "gradient_steps": 1, "clip_range": 0.05, "critic_rate": 0.5}
    noise = np.random.default_rng(0).normal(0.0, 5.0, 20)
    for rise, least, most in ((0.0, 16, 20), (30.0, 0, 10)):
        stepper, found, held = replace(whole, weights=weights).stepper(fallback=own), [], 0
        for update in range(20):
            returns = 100.0 + rise * update + noise[update : update + 1]
            found.append(stepper(returns=returns, approx_kl=0.01 + 1e-4 * update).values)
            held += "best" in stepper.guard.names
        assert least <= held <= most
        for name in own:
            values = [each[name] for each in found]
            assert values[0] <= 10.0 * own[name]
            assert max(after / before for before, after in pairwise(values)) <= 3.0001
            assert rise == 0.0 or values[-1] == pytest.approx(stepper.limits.ends[name][1], rel=1e-4)
