"""What is particular to one framework: compiled loops of optax, PyTorch's parameter groups and saved states."""

import copy
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from metastep._core.errors import InputError
from metastep.integrations.optax import learned_rate
from metastep.integrations.pytorch import LearnedLR
from tests.integrations.test_contract import given
from tests.steppers import tiny_model

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


def test_optax_names_missing_arguments():
    optimizer = learned_rate(tiny_model())
    state = optimizer.init(PARAMS)
    with pytest.raises(InputError, match="update needs diagnostics"):
        optimizer.update(PARAMS, state, PARAMS)
    with pytest.raises(InputError, match="update needs params"):
        optimizer.update(PARAMS, state, diagnostics=given(0))
    without = {name: value for name, value in given(0).items() if name != "entropy"}
    with pytest.raises(InputError, match="entropy"):
        optimizer.update(PARAMS, state, PARAMS, diagnostics=without)


def make(model=None, num_updates=None, kind=torch.optim.SGD):
    torch.manual_seed(0)
    optimizer = kind(torch.nn.Linear(3, 2).parameters(), lr=0.5)
    return optimizer, LearnedLR(optimizer, model or tiny_model(), num_updates)


def test_parameter_groups_keep_their_ratios_and_tensors_stay_the_same():
    first, second = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(3))
    rate = torch.tensor(0.1)
    groups = [{"params": [first], "lr": rate}, {"params": [second], "lr": 0.2}]
    optimizer = torch.optim.Adam(groups, capturable=False, foreach=False)
    scheduler = LearnedLR(optimizer, tiny_model())
    scheduler.step(**given(0))
    assert optimizer.param_groups[0]["lr"] is rate
    assert optimizer.param_groups[1]["lr"] == pytest.approx(2.0 * float(rate))
    assert [type(each) for each in scheduler.get_last_lr()] == [float, float]


def test_it_is_a_scheduler_like_pytorchs_own():
    optimizer, scheduler = make(kind=torch.optim.Adam)
    usual = torch.optim.lr_scheduler.ConstantLR(make(kind=torch.optim.Adam)[0])
    scheduler.step(**given(0))
    assert (scheduler.last_epoch, scheduler._step_count) == (usual.last_epoch, usual._step_count) == (0, 1)
    assert {*vars(usual)} - {*vars(scheduler)} <= {"factor", "total_iters", "_get_lr_called_within_step", "_is_initial"}
    assert optimizer.param_groups[0]["initial_lr"] == scheduler.base_lrs[0] == 0.5
    for update in (1, 2):
        scheduler.step(**given(update))
    assert (scheduler.last_epoch, scheduler._step_count) == (2, 3)
    assert scheduler.get_last_lr() == scheduler.get_lr() == [optimizer.param_groups[0]["lr"]]
    late = make()[1]
    late.load_state_dict(scheduler.state_dict())
    assert late.last_epoch == 2
    with pytest.raises(InputError, match="num_updates is 7, allowed is the 20 of the record"):
        make(num_updates=7)[1].load_state_dict(scheduler.state_dict())


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state.clear(),
        lambda state: state.update(stepper=None),
        lambda state: state.update(stepper={}),
        lambda state: state.pop("ratios"),
        lambda state: state.update(ratios=[1.0, 1.0]),
        lambda state: state.update(ratios=["one"]),
        lambda state: state.update(ratios=[float("nan")]),
    ],
)
def test_damaged_states_are_refused_and_change_nothing(damage):
    _, scheduler = make(num_updates=8)
    for update in range(2):
        scheduler.step(**given(update))
    before = copy.deepcopy(scheduler.state_dict())
    state = copy.deepcopy(before)
    damage(state)
    with pytest.raises(InputError, match=r"^[^\n]*(state_dict: (stepper|ratios) is|not a metastep stepper)[^\n]*\.$"):
        scheduler.load_state_dict(state)
    assert scheduler.state_dict() == before


def test_another_number_of_gradient_steps_gives_one_warning():
    rule = {"name": "ppo", "epochs": 2, "minibatch_size": 6}  # of batches of 24 steps
    record = tiny_model().record
    model = replace(tiny_model(), record=replace(record, setting=record.setting | {"rule": rule}))
    optimizer, scheduler = make(model)
    scheduler.step(**given(0))
    optimizer.step()
    with pytest.warns(UserWarning, match=r"gradient steps of an update 1 \(there 8\)\.") as warned:
        scheduler.step(**given(1))
    assert warned[0].filename == __file__
    scheduler.step(**given(2))
