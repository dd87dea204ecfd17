"""All integrations keep one contract: with the same model and diagnostics, they use the rates that a plain stepper proposes."""

import copy
import json
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from metastep._core.errors import InputError
from metastep.fqi import Model
from metastep.integrations.optax import learned_rate, learned_update
from metastep.integrations.pytorch import LearnedLR
from metastep.integrations.stable_baselines3 import LearnedRate
from tests.steppers import HIGH, LOW, TRAINING, clip_model, diagnostics, tiny_model, whole_model

START = np.linspace(0.1, 1.0, 6, dtype=np.float32)
GRADIENT = np.linspace(-1.0, 1.0, 6, dtype=np.float32)


def given(update: int, seed: int = 0) -> dict[str, Any]:
    """Diagnostics without the parameters, which a loop knows."""
    return {name: np.float32(value) for name, value in diagnostics(update, seed).items() if name != "parameters"}


class PlainLoop:
    """The reference: a loop around a stepper."""

    def __init__(self, model: Model, **options: Any) -> None:
        self.theta, self.model, self.options = START.copy(), model, options
        self.stepper = model.stepper(8, **options)

    def step(self, numbers: dict[str, Any], begins: bool = True) -> float:
        rate = np.float32(self.stepper(numbers, parameters=self.theta, begins=begins).stepsize)
        self.theta = self.theta - rate * GRADIENT
        return float(rate)

    def restarted(self) -> "PlainLoop":
        again = type(self)(self.model, **self.options)
        again.theta = self.theta.copy()
        again.stepper = self.model.stepper(record=json.loads(json.dumps(self.stepper.record())), **self.options)
        return again


class OptaxLoop(PlainLoop):
    def __init__(self, model, **options):
        self.theta, self.model, self.options = START.copy(), model, options
        self.optimizer = optax.chain(optax.clip_by_global_norm(100.0), learned_rate(model, 8, **options))
        self.state = self.optimizer.init(jnp.asarray(self.theta))
        self._update = jax.jit(partial(self.optimizer.update, jnp.asarray(GRADIENT)))

    def step(self, numbers, begins=True):
        update, self.state = self._update(self.state, jnp.asarray(self.theta), diagnostics=numbers, begins=begins)
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


# The model's rate depends on the fifth and the ninth: on what is remembered of gradients, and on the parameters' length.
PROGRESS = ("budget", "last_clip_fraction", "target_change", "smoothed_change", "gradient_change")
PROGRESS += ("relative_step", "drop_in_errors", "gradient_steps", "actor_gradient")


@pytest.mark.parametrize(("minibatches", "names"), [(None, TRAINING), (2, TRAINING), (2, PROGRESS)])
@pytest.mark.parametrize("kind", [PlainLoop, *LOOPS], ids=lambda kind: kind.__name__)
def test_rates_are_those_of_a_plain_stepper_also_after_a_restart(kind, minibatches, names):
    how = {"minibatches": minibatches, "fallback": 0.01}
    loop, reference, rates = kind(tiny_model(names=names), **how), PlainLoop(tiny_model(names=names), **how), []
    for index in range(16):
        begins, norm = index % 4 == 0, np.float32(10.0 ** np.sin(index))
        more = {"gradient_norm": norm, "actor_gradient_norm": norm / 2, "target_std": norm} if names == PROGRESS else {}
        wanted = reference.step(given(index) | more, begins)
        rates.append(loop.step(given(index) | more, begins))
        assert rates[-1] == (wanted if kind is PlainLoop else pytest.approx(wanted, rel=1e-6))
        if index in (5, 8):
            loop = loop.restarted()
    assert kind is not PlainLoop or loop.stepper.record() == reference.stepper.record()
    assert len(set(rates)) > 2
    assert all(len({*rates[first : first + 4]}) == 1 for first in range(0, 16, 4))


@every_loop
def test_numbers_outside_the_training_data_may_be_refused(kind):
    loop = kind(tiny_model(reach=1e-3), outside="refuse")
    with pytest.raises((InputError, jax.errors.JaxRuntimeError), match=r"last_rate is -6, outside of the -0.001 to"):
        loop.step(given(0))


@every_loop
def test_a_batch_of_another_size_gives_one_warning(kind):
    loop, batch = kind(tiny_model(), fallback=0.01), given(0)
    del batch["explained_variance"]
    batch["values"] = batch["targets"] = np.arange(2, dtype=np.float32)
    with pytest.warns(UserWarning, match=r"batch_steps is 2, trained on 24: your own values are used"):
        loop.step(batch)
    loop.step(batch)


@pytest.mark.parametrize("kind", [*LOOPS, LearnedRate], ids=lambda kind: kind.__name__)
def test_models_and_settings_that_do_not_fit_are_refused(kind):
    with pytest.raises(InputError, match="outside is 'ignore', it must be 'fallback', 'refuse' or 'trust'"):
        kind(tiny_model(), outside="ignore")
    record = tiny_model().record
    other = replace(tiny_model(), record=replace(record, setting=record.setting | {"rule": {"name": "trpo"}}))
    with pytest.raises(InputError, match=r"for the rule 'trpo', whose step is not a learning rate; allowed are ppo"):
        kind(other)
    if kind is not LearnedRate:
        with pytest.raises(InputError, match=r": the model chooses clip_range as well, for which there is no setting"):
            kind(clip_model())


# What is particular to one framework: compiled loops of optax, PyTorch's parameter groups and saved states.

PARAMS = {"w": jnp.arange(4.0, dtype=jnp.float32), "b": jnp.ones(2, jnp.float32)}


def test_optax_in_a_scan_and_for_several_learners_at_once():
    optimizer = learned_rate(tiny_model(), num_updates=8)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[given(update) for update in range(3)])

    def loss(params):
        return jnp.sum(jnp.sin(params["w"])) + jnp.sum(params["b"] ** 2)

    def learner(scale):
        def step(carry, numbers):
            params, state = carry
            updates, state = optimizer.update(jax.grad(loss)(params), state, params, diagnostics=numbers)
            return (optax.apply_updates(params, updates), state), state.hyperparams["learning_rate"]

        params = jax.tree.map(lambda leaf: scale * leaf, PARAMS)
        return jax.lax.scan(step, (params, optimizer.init(params)), stacked)[1]

    rates = jax.jit(jax.vmap(learner))(jnp.array([1.0, 2.0], jnp.float32))
    np.testing.assert_allclose(rates[1], jax.jit(learner)(jnp.float32(2.0)), rtol=1e-6)
    assert rates.shape == (2, 3)


@pytest.mark.filterwarnings("ignore:.*outside of the")
def test_optax_names_what_is_missing_and_refuses_or_bounds_a_state_from_elsewhere():
    optimizer = learned_rate(tiny_model(), 20, minibatches=2)
    another = "learned_rate: state is .*, allowed is the result of"

    def rate_of(state, numbers, begins=False, params=PARAMS, update=optimizer.update):
        found = update(PARAMS, state, params, diagnostics=numbers, begins=begins)[1]
        return float(found.hyperparams["learning_rate"])

    sound = optimizer.update(PARAMS, optimizer.init(PARAMS), PARAMS, diagnostics=given(0), begins=True)[1]
    compiled = partial(rate_of, update=jax.jit(optimizer.update))
    for wrong in (np.inf, -np.inf, np.nan, 1e30, -1.0):
        number = jnp.float32(wrong)
        memory = jax.tree.map(lambda _, number=number: number, sound.memory)
        state = sound._replace(hyperparams={"learning_rate": number}, memory=memory)
        for begins in (False, True):
            assert np.float32(LOW) <= compiled(state, given(1), begins) <= np.float32(HIGH)
    assert rate_of(sound._replace(hyperparams={"learning_rate": 5}), given(1)) == pytest.approx(HIGH)
    wide = sound.movement._replace(step=jnp.ones(9))
    without = {name: value for name, value in given(0).items() if name != "entropy"}
    for call, sentence in (
        ((5, given(1)), another),
        (({5: 1, "x": 2}, given(1)), another),
        ((sound._replace(memory={}), given(1)), another),
        ((sound._replace(movement=wide), given(1)), "learned_rate: state.movement.step has 9 numbers, allowed is 6"),
        ((sound._replace(hyperparams={"learning_rate": 1j}), given(1)), "learning_rate.* is .*, allowed are real num"),
        ((sound, given(1) | {"entropy": jnp.ones(2)}, True), "diagnostics: entropy has 2 numbers, allowed is one"),
        ((sound, given(1) | {"entropy": jnp.bool_(True)}, True), "entropy is .*, allowed are real numbers"),
        ((sound, given(1) | {"returns": jnp.ones(0)}, True), "returns has 0 numbers, allowed is at least one"),
        ((sound, given(1), jnp.ones(2)), "begins is .*, allowed are True and False"),
        ((sound, None, True), "update needs diagnostics"),
        ((sound, given(1), True, None), "update needs params"),
        ((sound, without, True), "diagnostics: missing entropy"),
    ):
        with pytest.raises(InputError, match=sentence):
            rate_of(*call)


def make(model=None, num_updates=20, kind=torch.optim.SGD):
    torch.manual_seed(0)
    optimizer = kind(torch.nn.Linear(3, 2).parameters(), lr=0.5)
    return optimizer, LearnedLR(optimizer, model or tiny_model(), num_updates)


def test_parameter_groups_keep_their_ratios_and_tensors_stay_the_same():
    groups = [{"params": [torch.nn.Parameter(torch.ones(2))], "lr": rate} for rate in (torch.tensor(0.1), 0.2)]
    rate, optimizer = groups[0]["lr"], torch.optim.Adam(groups, capturable=False, foreach=False)
    scheduler = LearnedLR(optimizer, tiny_model(), 20)
    scheduler.step(**given(0))
    assert optimizer.param_groups[0]["lr"] is rate
    assert optimizer.param_groups[1]["lr"] == pytest.approx(2.0 * float(rate))
    assert [type(each) for each in scheduler.get_last_lr()] == [float, float]
    groups = [{"params": [torch.nn.Parameter(torch.ones(2))], "lr": rate} for rate in (1e-6, 1.0)]
    with pytest.raises(InputError, match=r"rates of its groups are \[1e-06, 1.0\], allowed is up to 10000 times"):
        LearnedLR(torch.optim.SGD(groups), tiny_model(), 20)


def test_it_is_a_scheduler_like_pytorchs_own_and_damaged_states_change_nothing():
    optimizer, scheduler = make(kind=torch.optim.Adam)
    usual = torch.optim.lr_scheduler.ConstantLR(make(kind=torch.optim.Adam)[0])
    scheduler.step(**given(0))
    assert (scheduler.last_epoch, scheduler._step_count) == (usual.last_epoch, usual._step_count) == (0, 1)
    assert {*vars(usual)} - {*vars(scheduler)} <= {"factor", "total_iters", "_get_lr_called_within_step", "_is_initial"}
    assert optimizer.param_groups[0]["initial_lr"] == scheduler.base_lrs[0] == 0.5
    scheduler.step(**given(1))
    assert (scheduler.last_epoch, scheduler._step_count) == (1, 2)
    assert scheduler.get_last_lr() == scheduler.get_lr() == [optimizer.param_groups[0]["lr"]]
    late, before = make()[1], copy.deepcopy(scheduler.state_dict())
    late.load_state_dict(before)
    assert late.last_epoch == 1
    for state, sentence in (
        (5, "state_dict is 5, allowed is the result of `state_dict`"),
        ({}, "state_dict is {}, allowed is the result of `state_dict`"),
        ({"stepper": 5}, "record is 5, allowed is the result of a stepper's `record`"),
        ({"stepper": {}}, "not a metastep stepper"),
    ):
        with pytest.raises(InputError, match=sentence):
            scheduler.load_state_dict(state)
    assert scheduler.state_dict() == before


def test_another_number_of_gradient_steps_gives_one_warning():
    rule = {"name": "ppo", "epochs": 2, "minibatch_size": 6}  # of batches of 24 steps
    record = tiny_model().record
    model = replace(tiny_model(), record=replace(record, setting=record.setting | {"rule": rule}))
    optimizer, scheduler = make(model)
    scheduler.step(**given(0))
    optimizer.step()
    with pytest.warns(UserWarning, match=r"gradient_steps is 1, trained on 8: your own values are used") as warned:
        scheduler.step(**given(1))
    assert warned[0].filename == __file__
    scheduler.step(**given(2))


def test_optax_and_pytorch_give_all_values_by_name():
    """The same as a stepper, compiled and in a batch of learners; the critic's group has its own rate."""
    model = whole_model(("last_divergence", "entropy_change", "budget"))
    groups = [{"params": [torch.nn.Parameter(torch.ones(2))], "name": name} for name in ("actor", "critic")]
    optimizer = torch.optim.Adam(groups, lr=1e-3)
    with pytest.raises(InputError, match=r"chooses gradient_steps, .*; give your own values of what it takes from"):
        LearnedLR(optimizer, model, 5)
    reads = {"gradient_steps": 8, "clip_range": 0.2, "gae_lambda": 0.9, "entropy_weight": 0.0}
    with pytest.raises(InputError, match=r"^reads is \['gradient_steps', .*, allowed are your own values by name\.$"):
        LearnedLR(optimizer, model, 5, reads=[*reads])
    scheduler = LearnedLR(optimizer, model, 5, reads=reads)
    assert scheduler.stepper.fallback == {"stepsize": 1e-3, **reads, "critic_rate": 1.0}
    stepper = model.stepper(5, fallback=scheduler.stepper.fallback)
    init, propose = learned_update(model, 5, fallback=stepper.fallback)
    state, many = init(()), jax.vmap(lambda _: init(()))(jnp.arange(3))
    for update in range(3):
        given = {"approx_kl": 0.01 * (update + 1), "entropy": 1.0 - 0.2 * update}
        given["returns"] = np.float32([9 * update, 1])
        wanted = stepper(given).values
        values, state = jax.jit(propose)(state, given)
        rows, many = jax.vmap(propose, in_axes=(0, None))(many, given)
        assert {name: float(value) for name, value in values.items()} == pytest.approx(wanted, rel=1e-5)
        assert {name: float(value[1]) for name, value in rows.items()} == pytest.approx(wanted, rel=1e-5)
        scheduler.step(**given)
        assert scheduler.values == wanted
        rates = [group["lr"] for group in optimizer.param_groups]
        assert rates == pytest.approx([wanted["stepsize"], wanted["stepsize"] * wanted["critic_rate"]])
    narrow = replace(model, record=replace(model.record, feature_low=(-7.0,) * 3, feature_high=(-1.0, 9.0, 9.0)))
    init, propose = learned_update(narrow, 5)
    with pytest.warns(UserWarning, match="last_divergence is 0.90309, outside"), pytest.warns(match="approx_kl is 8"):
        propose(propose(init(()), given)[1], given | {"approx_kl": 8.0})[0]["stepsize"].block_until_ready()
    with pytest.raises(InputError, match=r"learned_rate: the model chooses .*; use learned_update"):
        learned_rate(model, 5)
