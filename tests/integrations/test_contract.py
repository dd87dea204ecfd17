"""All integrations keep one contract: with the same model and diagnostics, they use the rates that a plain stepper proposes."""

import json
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from metastep._core.errors import InputError
from metastep.fqi import Model
from metastep.integrations.optax import learned_rate
from metastep.integrations.pytorch import LearnedLR
from metastep.integrations.stable_baselines3 import LearnedRate
from tests.steppers import LOW, clip_model, diagnostics, tiny_model

START = np.linspace(0.1, 1.0, 6, dtype=np.float32)
GRADIENT = np.linspace(-1.0, 1.0, 6, dtype=np.float32)


def given(update: int, seed: int = 0) -> dict[str, Any]:
    """Diagnostics without the parameters, which a loop knows."""
    return {name: np.float32(value) for name, value in diagnostics(update, seed).items() if name != "parameters"}


class PlainLoop:
    """A loop of one's own around a stepper: the reference."""

    def __init__(self, model: Model, **options: Any) -> None:
        self.theta, self.model, self.options = START.copy(), model, options
        self.stepper = model.stepper(8, **options)

    def step(self, numbers: dict[str, Any], begins: bool = True) -> float:
        """Make one gradient step; return its length over that of the gradient."""
        rate = np.float32(self.stepper(numbers, parameters=self.theta, begins=begins).stepsize)
        self.theta = self.theta - rate * GRADIENT
        return float(rate)

    def restarted(self) -> "PlainLoop":
        """Return the same loop after saving, ending the process and loading."""
        again = type(self)(self.model, **self.options)
        again.theta = self.theta.copy()
        again.stepper = self.model.stepper(record=json.loads(json.dumps(self.stepper.record())), **self.options)
        return again


class OptaxLoop(PlainLoop):
    def __init__(self, model: Model, **options: Any) -> None:
        self.theta, self.model, self.options = START.copy(), model, options
        self.optimizer = optax.chain(optax.clip_by_global_norm(100.0), learned_rate(model, 8, **options))
        self.state = self.optimizer.init(jnp.asarray(self.theta))
        self._update = jax.jit(lambda state, theta, numbers, begins: self.optimizer.update(
            jnp.asarray(GRADIENT), state, theta, diagnostics=numbers, begins=begins
        ))  # fmt: skip

    def step(self, numbers, begins=True):
        update, self.state = self._update(self.state, jnp.asarray(self.theta), numbers, begins)
        self.theta = np.asarray(self.theta + update)
        rate = float(optax.tree_utils.tree_get(self.state, "learning_rate"))
        np.testing.assert_allclose(update, -rate * GRADIENT, rtol=1e-5)
        return rate

    def restarted(self):
        again = type(self)(self.model, **self.options)
        again.theta, again._update = self.theta.copy(), self._update
        leaves, form = jax.tree.flatten(self.state)
        again.state = jax.tree.unflatten(form, [jnp.asarray(np.array(leaf)) for leaf in leaves])
        return again


class PyTorchLoop(PlainLoop):
    def __init__(self, model: Model, **options: Any) -> None:
        self.model, self.options = model, options
        self.parameter = torch.nn.Parameter(torch.tensor(START))
        self.optimizer = torch.optim.SGD([self.parameter], lr=0.5)
        self.scheduler = LearnedLR(self.optimizer, model, 8, **options)

    def step(self, numbers, begins=True):
        self.scheduler.step(begins=begins, **numbers)
        before, self.parameter.grad = self.parameter.detach().numpy().copy(), torch.tensor(GRADIENT)
        self.optimizer.step()
        rate = self.scheduler.get_last_lr()[0]
        np.testing.assert_allclose(self.parameter.detach().numpy() - before, -rate * GRADIENT, rtol=1e-3, atol=1e-7)
        return rate

    def restarted(self):
        again = type(self)(self.model, **self.options)
        again.parameter.data = self.parameter.data.clone()
        again.optimizer.load_state_dict(self.optimizer.state_dict())
        again.scheduler.load_state_dict(json.loads(json.dumps(self.scheduler.state_dict())))
        return again


LOOPS = [OptaxLoop, PyTorchLoop]
every_loop = pytest.mark.parametrize("kind", LOOPS, ids=lambda kind: kind.__name__)


@pytest.mark.parametrize("minibatches", [None, 2])
@pytest.mark.parametrize("kind", [PlainLoop, *LOOPS], ids=lambda kind: kind.__name__)
def test_rates_are_those_of_a_plain_stepper_also_after_a_restart(kind, minibatches):
    loop, reference = (each(tiny_model(), minibatches=minibatches) for each in (kind, PlainLoop))
    rates = []
    for index in range(16):
        begins = index % 4 == 0
        wanted = reference.step(given(index), begins)
        rates.append(loop.step(given(index), begins))
        assert rates[-1] == pytest.approx(wanted, rel=1e-6)
        if index in (5, 8):
            loop = loop.restarted()
    assert len(set(rates)) > 2
    assert all(len({*rates[first : first + 4]}) == 1 for first in range(0, 16, 4))


@every_loop
@pytest.mark.parametrize("name", given(0))
def test_numbers_that_are_not_finite_give_the_smallest_step_and_spoil_nothing_after_it(kind, name):
    loop = kind(tiny_model())
    loop.step(given(0))
    spoilt = given(1)
    spoilt[name] = np.where(np.arange(np.size(spoilt[name])) == 0, np.nan, spoilt[name]).astype(np.float32)
    spoilt[name] = spoilt[name].reshape(given(1)[name].shape)
    assert loop.step(spoilt) == pytest.approx(LOW)
    loop.step(given(2))
    assert loop.step(given(3)) > 1.01 * LOW


@every_loop
def test_numbers_outside_the_training_data_may_be_refused(kind):
    loop = kind(tiny_model(reach=1e-3), outside="refuse")
    with pytest.raises((InputError, jax.errors.JaxRuntimeError), match=r"last_rate is -6, outside of the -0.001 to"):
        loop.step(given(0))


@every_loop
def test_a_batch_of_another_size_gives_one_warning(kind):
    loop, batch = kind(tiny_model()), {name: value for name, value in given(0).items() if name != "explained_variance"}
    batch["values"] = batch["targets"] = np.arange(10, dtype=np.float32)
    with pytest.warns(UserWarning, match=r"(?i)learned_?(rate|lr): .* this one has steps of a batch 10 \(there 24\)\."):
        loop.step(batch)
    loop.step(batch)


class StableBaselines3:
    def __init__(self, model: Model, **options: Any) -> None:
        LearnedRate(model, **options)


@pytest.mark.parametrize("kind", [*LOOPS, StableBaselines3], ids=lambda kind: kind.__name__)
def test_models_and_settings_that_do_not_fit_are_refused(kind):
    with pytest.raises(InputError, match="outside is 'ignore', allowed are warn, refuse"):
        kind(tiny_model(), outside="ignore")
    record = tiny_model().record
    other = replace(tiny_model(), record=replace(record, setting=record.setting | {"rule": {"name": "trpo"}}))
    with pytest.raises(InputError, match=r"for the rule 'trpo', whose step is not a learning rate; allowed are ppo"):
        kind(other)
    if kind is not StableBaselines3:
        with pytest.raises(InputError, match=r": the model chooses clip_range as well, for which there is no setting"):
            kind(clip_model())
