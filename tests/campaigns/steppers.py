"""Hostile calls, records and states of steppers: a proposal within its ranges or one sentence, nothing else."""

import json
import random
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import torch
from stable_baselines3 import PPO

from metastep import pretrained
from metastep._core.errors import InputError
from metastep.features.diagnostics import DIAGNOSTICS
from metastep.fqi import Model, Proposal
from metastep.integrations.optax import learned_rate
from metastep.integrations.pytorch import LearnedLR
from metastep.integrations.stable_baselines3 import LearnedRate
from tests.campaigns import Tally, damaged, main
from tests.steppers import TRAINING, clip_model, diagnostics, tiny_model, whole_model

NUMBERS: list[Any] = [0, -1, 1, 2.5, 1e-46, 1e30, 1e38, 1e39, 1e300, -1e300, 2**31, 2**64, 10**400, 10**5000]
NUMBERS += [float("nan"), float("inf"), -float("inf"), np.float16(7), np.float64(1e300), np.int8(3)]
NUMBERS += [np.uint64(2**64 - 1)]
WRONG: list[Any] = [None, True, "", "1.0", "much", b"x", 1j, object(), [], {}, (), [[]], [1, [2, 3]], set(), len]
WRONG += [[[1, [2]], [3]], {"a": 1}, [None], range(8), Path("x"), Ellipsis, lambda: 1]
WRONG += [np.bool_(True), np.array([]), np.ones((2, 0)), np.array([1, None]), np.array(["a"]), np.ones(3) * 1j]
WRONG += [np.array([np.datetime64(0, "s")]), np.ones(2, [("a", "f4")]), np.ma.masked, np.ones(7), np.ones((2, 4))]
WRONG += [jnp.ones(3), jnp.bool_(True), jnp.complex64(1), jnp.bfloat16(2), jax.random.key(0)]
WRONG += [torch.ones(3, device="meta"), torch.tensor(1j), torch.tensor(True), torch.ones(0), torch.ones(2).to_sparse()]
WRONG += [torch.ones(8, requires_grad=True), torch.ones((), dtype=torch.bfloat16), [torch.ones(2), torch.ones(())]]
TEXTS = ["AAAA", "?", "west", "clip 0.1", "clip 7", "AACAfw==", "x" * 1000]
loop: list[Any] = []
loop.append(loop)
WRONG.append(loop)


def value(draw: random.Random) -> Any:
    return draw.choice(draw.choice([NUMBERS, WRONG, WRONG, TEXTS]))


def sound(model: Model, update: int) -> dict[Any, Any]:
    """Return diagnostics that a model takes: those of a loop, or the features of whole episodes."""
    known, sizes = diagnostics(update), model.record.keywords
    is_loop = {*model.stepper(5).needs} <= {*known}
    return known if is_loop else {name: np.full(size, 0.1 * update) for name, size in sizes.items()}


def given(draw: random.Random, model: Model, update: int) -> dict[Any, Any]:
    """Return diagnostics, most of them with something wrong."""
    known = sound(model, update)
    for _ in range(draw.choice([0, 1, 1, 2])):
        name = draw.choice([*known, *known, *DIAGNOSTICS, *model.record.keywords, "nothing", 5])
        if draw.random() < 0.15:
            known.pop(name, None)
        else:
            known[name] = value(draw)
    return known


def require(model: Model, proposal: Proposal) -> None:
    """Every value by name lies within the bounds of the branch that was chosen."""
    bounds = model.record.bounds(proposal.direction)
    assert {*proposal.values} == {*bounds} == {*model.record.hyperparameters}
    for name, (low, high) in bounds.items():
        assert np.float32(low) <= np.float32(proposal.values[name]) <= np.float32(high), (name, proposal)


def call_stepper(draw: random.Random, model: Model) -> None:
    """Call a stepper a few times; what is refused changes nothing, what is accepted can be recorded and continued."""
    options: dict[str, Any] = {"num_updates": 9, "minibatches": draw.choice([None, None, 2])}
    if draw.random() < 0.2:
        options[draw.choice(["num_updates", "minibatches", "outside", "log", "fallback", "loop"])] = draw.choice(
            [*NUMBERS, *(each for each in WRONG if not callable(each))]
        )
    stepper = model.stepper(**options)
    for update in range(draw.randint(1, 4)):
        before = stepper.record()
        try:
            begins = draw.choice([True, True, True, False, value(draw)])
            proposal = stepper(given(draw, model, update), begins=begins)
            if "fallback" not in options:  # the loop's own values know no range
                require(model, proposal)
        except InputError:
            assert stepper.record() == before
        json.dumps(stepper.record(), allow_nan=False)
    assert model.stepper(record=stepper.record()).record() == stepper.record()


def restore_stepper(draw: random.Random, model: Model) -> None:
    stepper = model.stepper(num_updates=9, minibatches=2)
    for update in range(draw.randint(0, 2)):
        stepper(sound(model, update))
    again = model.stepper(record=damaged(draw, stepper.record(), partial(value, draw)), minibatches=2)
    if again._proposal is not None:
        require(model, again({}, begins=False))
    for update in range(3):
        require(model, again(sound(model, update)))


def pytorch(draw: random.Random, model: Model) -> None:
    parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": [each], "lr": 0.1} for each in parameters], lr=0.1)
    scheduler, (low, high) = LearnedLR(optimizer, model, 9), model.record.bounds()["stepsize"]
    if draw.random() < 0.6:
        scheduler.load_state_dict(damaged(draw, scheduler.state_dict(), partial(value, draw)))
    numbers = given(draw, model, 0) if draw.random() < 0.5 else sound(model, 0)
    scheduler.step(**{name: each for name, each in numbers.items() if isinstance(name, str) and name != "parameters"})
    assert np.float32(low) <= np.float32(optimizer.param_groups[0]["lr"]) <= np.float32(high)
    assert 0.0 <= optimizer.param_groups[1]["lr"] <= 1e4 * high


def optax(draw: random.Random, model: Model) -> None:
    params, (low, high) = {"w": jnp.ones(3)}, model.record.bounds()["stepsize"]
    optimizer = learned_rate(model, 9, minibatches=2)
    state: Any = optimizer.init(params)
    numbers, begins = given(draw, model, 0), draw.choice([True, True, False, value(draw)])
    numbers.pop("parameters", None)
    if draw.random() < 0.6:
        part = draw.choice(state._fields)
        inner = getattr(state, part)
        if isinstance(inner, dict):
            state = state._replace(**{part: damaged(draw, inner, partial(value, draw))})
        elif draw.random() < 0.2:
            state = state._replace(**{part: value(draw)})
        else:
            state = state._replace(**{part: inner._replace(**{draw.choice(inner._fields): value(draw)})})
    updates, state = optimizer.update(params, state, params, diagnostics=numbers, begins=begins)
    assert np.float32(low) <= np.float32(state.hyperparams["learning_rate"]) <= np.float32(high)
    assert np.isfinite(updates["w"]).all()


class Loop(PPO):
    """What a callback of Stable-Baselines3 asks an algorithm and its environments."""

    n_steps, n_envs, num_envs, num_timesteps, _total_timesteps, batch_size, n_epochs = 12, 2, 2, 8, 80, 8, 1
    gamma, gae_lambda, ent_coef, target_kl, _last_episode_starts = 0.99, 0.95, 0.0, None, np.ones(2, bool)
    lr_schedule = clip_range = get = staticmethod(lambda progress: 1e-3)
    action_space = gymnasium.spaces.Box(-1.0, 1.0)

    def __init__(self, learned_rate: Any) -> None:
        self.learned_rate, self.env, self.rollout_buffer = learned_rate, self, self
        self.values, self.returns, self.policy = np.ones(8), np.ones(8), torch.nn.Linear(2, 2)
        self.policy.optimizer, self.policy.evaluate_actions = torch.optim.SGD(self.policy.parameters(), 0.1), None
        self.observations = self.actions = self.log_probs = np.zeros((4, 2))

    def env_is_wrapped(self, _: Any) -> list[bool]:
        return [True, True]

    def _setup_lr_schedule(self) -> None:
        pass


def baselines3(draw: random.Random, model: Model) -> None:
    returns = {"ended": [[1.0], [2.0]], "paid": [0.0, 1.0]}
    stepper = model.stepper(9)
    stepper(diagnostics(0))
    kept = {"stepper": stepper.record(), "measured": {"approx_kl": 0.1, "clip_fraction": 0.1}, "returns": returns}
    callback = LearnedRate(model)
    algorithm: Any = Loop(damaged(draw, kept, partial(value, draw)))
    callback.model, callback.locals = algorithm, {"total_timesteps": 80}
    callback._entropy = lambda: 1.0  # type: ignore[method-assign]
    callback._on_training_start()
    callback._on_rollout_end()
    require(model, Proposal(callback.values, callback.stepper.record()["gathered"]["direction"]))
    assert algorithm.learning_rate == callback.values["stepsize"]


def campaign(number: int, seed: int, sandbox: Path) -> dict[str, Any]:
    draw, tally = random.Random(seed), Tally()
    models: dict[str, Any] = {name: pretrained.load(name) for name in pretrained.names()}
    models |= {"tiny": tiny_model(), "clip": clip_model(), "whole": whole_model(TRAINING[:5])}
    rates = [name for name in models if name.endswith("ppo") or name == "tiny"]
    kinds: list[Callable[[random.Random, Model], None]] = [call_stepper, restore_stepper, pytorch, baselines3, optax]
    for _ in range(number):
        # A call of optax that is not compiled takes 50 times as long as others.
        kind = draw.choices(kinds, (4, 4, 2, 2, 0.5))[0]
        model = draw.choice([*models] if kinds.index(kind) < 2 else rates)
        outcome = "proposed"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                kind(draw, models[model])
        except InputError as error:
            outcome = "refused"
            text = str(error).partition("\n---")[0]  # JAX adds a note
            if "\n" in text or not text.endswith("."):
                tally.failures.append(f"{kind.__name__} {model}: {text!r:.300}")
        except Exception as error:
            outcome = "outside of its range" if isinstance(error, AssertionError) else "traceback"
            tally.failures.append(f"{kind.__name__} {model}: {traceback.format_exc()[-700:]}")
        tally.add(f"{kind.__name__} {outcome}")
    return tally.found()


if __name__ == "__main__":
    main(campaign)
