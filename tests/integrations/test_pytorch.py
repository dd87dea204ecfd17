"""A scheduler of PyTorch: the rate that is proposed is the length of the step that is made."""

import copy
import io
from dataclasses import replace

import numpy as np
import pytest
import torch

from metastep._core.errors import InputError
from metastep.integrations.pytorch import LearnedLR
from tests.steppers import diagnostics, tiny_model


def make(kind=None, **options):
    torch.manual_seed(0)
    network = torch.nn.Linear(3, 2)
    return network, (kind or torch.optim.SGD)(network.parameters(), lr=0.5, **options)


def told(update):
    return {name: value for name, value in diagnostics(update).items() if name != "parameters"}


def train(network, optimizer, scheduler, updates):
    rates, data = [], torch.linspace(-1.0, 1.0, 12).reshape(4, 3)
    for update in updates:
        scheduler.step(**told(update))
        optimizer.zero_grad()
        network(data).square().sum().backward()
        before = torch.nn.utils.parameters_to_vector(network.parameters()).detach().clone()
        optimizer.step()
        moved = before - torch.nn.utils.parameters_to_vector(network.parameters()).detach()
        gradient = torch.cat([parameter.grad.flatten() for parameter in network.parameters()])
        rates.append((scheduler.get_last_lr()[0], float(moved.norm() / gradient.norm())))
    return rates


def test_the_rate_that_is_proposed_is_the_step_that_is_made():
    network, optimizer = make()
    scheduler = LearnedLR(optimizer, tiny_model(), num_updates=8)
    steps = train(network, optimizer, scheduler, range(6))
    proposed, made = zip(*steps, strict=True)
    np.testing.assert_allclose(made, proposed, rtol=1e-3)
    assert len(set(proposed)) > 2
    assert scheduler.stepper.last["last_rate"] == pytest.approx(np.log10(proposed[-2]), rel=1e-5)


def test_of_minibatches_the_rate_stays_until_an_update_begins():
    network, optimizer = make()
    scheduler, stepper = LearnedLR(optimizer, tiny_model(), minibatches=2), tiny_model().stepper(minibatches=2)
    for index in range(8):
        flat = torch.nn.utils.parameters_to_vector(network.parameters())
        wanted = stepper(told(index), parameters=flat, begins=index % 4 == 0).stepsize
        scheduler.step(**told(index), begins=index % 4 == 0)
        assert optimizer.param_groups[0]["lr"] == wanted
        if index == 5:
            state = scheduler.state_dict()
            scheduler = LearnedLR(optimizer, tiny_model(), minibatches=2)
            scheduler.load_state_dict(state)
        with torch.no_grad():
            network.weight += 0.1
    assert scheduler.last_epoch == 1


def test_what_was_saved_goes_on_identically():
    network, optimizer = make(torch.optim.Adam)
    scheduler = LearnedLR(optimizer, tiny_model(), num_updates=8)
    train(network, optimizer, scheduler, range(3))
    file = io.BytesIO()
    torch.save([thing.state_dict() for thing in (network, optimizer, scheduler)], file)
    wanted = train(network, optimizer, scheduler, range(3, 6))

    again, other = make(torch.optim.Adam)
    late = LearnedLR(other, tiny_model())
    file.seek(0)
    for thing, state in zip((again, other, late), torch.load(file, weights_only=True), strict=True):
        thing.load_state_dict(state)
    assert train(again, other, late, range(3, 6)) == wanted


def test_groups_keep_their_ratios_and_tensors_stay_the_same():
    first, second = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(3))
    rate = torch.tensor(0.1)
    groups = [{"params": [first], "lr": rate}, {"params": [second], "lr": 0.2}]
    optimizer = torch.optim.Adam(groups, capturable=False, foreach=False)
    scheduler = LearnedLR(optimizer, tiny_model())
    scheduler.step(**told(0))
    assert optimizer.param_groups[0]["lr"] is rate
    assert optimizer.param_groups[1]["lr"] == pytest.approx(2.0 * float(rate))
    assert [type(each) for each in scheduler.get_last_lr()] == [float, float]


def test_it_is_a_scheduler_as_others_are():
    network, optimizer = make(torch.optim.Adam)
    usual = torch.optim.lr_scheduler.ConstantLR(make(torch.optim.Adam)[1])
    scheduler = LearnedLR(optimizer, tiny_model())
    train(network, optimizer, scheduler, range(1))
    assert (scheduler.last_epoch, scheduler._step_count) == (usual.last_epoch, usual._step_count) == (0, 1)
    assert {*vars(usual)} - {*vars(scheduler)} <= {"factor", "total_iters", "_get_lr_called_within_step", "_is_initial"}
    assert optimizer.param_groups[0]["initial_lr"] == scheduler.base_lrs[0] == 0.5
    train(network, optimizer, scheduler, range(1, 3))
    assert (scheduler.last_epoch, scheduler._step_count) == (2, 3)
    assert scheduler.get_last_lr() == scheduler.get_lr() == [optimizer.param_groups[0]["lr"]]
    late = LearnedLR(make(torch.optim.Adam)[1], tiny_model())
    late.load_state_dict(scheduler.state_dict())
    assert late.last_epoch == 2
    with pytest.raises(InputError, match="num_updates is 7, allowed is the 20 of the record"):
        LearnedLR(make()[1], tiny_model(), 7).load_state_dict(scheduler.state_dict())


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
    network, optimizer = make()
    scheduler = LearnedLR(optimizer, tiny_model(), num_updates=8)
    train(network, optimizer, scheduler, range(2))
    before = copy.deepcopy(scheduler.state_dict())
    state = copy.deepcopy(before)
    damage(state)
    with pytest.raises(InputError, match=r"^[^\n]*(state_dict: (stepper|ratios) is|not a metastep stepper)[^\n]*\.$"):
        scheduler.load_state_dict(state)
    assert scheduler.state_dict() == before


def test_what_is_outside_of_the_training_data_may_be_refused():
    scheduler = LearnedLR(make()[1], tiny_model(reach=1e-3), outside="refuse")
    for _ in range(2):
        with pytest.raises(InputError, match=r"last_rate is -6, outside of the -0.001 to 0.001 of the training data"):
            scheduler.step(**told(0))
        scheduler.load_state_dict(scheduler.state_dict())


def with_setting(**changes):
    model = tiny_model()
    return replace(model, record=replace(model.record, setting=model.record.setting | changes))


def test_other_loops_are_warned_of_as_far_as_they_are_known():
    rule = {"name": "ppo", "epochs": 2, "minibatch_size": 6}  # of batches of 24 steps
    optimizer = make()[1]
    scheduler = LearnedLR(optimizer, with_setting(rule=rule))
    numbers = torch.linspace(0.0, 1.0, 10).reshape(5, 2)
    batch = {name: value for name, value in told(0).items() if name != "explained_variance"}
    with pytest.warns(UserWarning, match=r"LearnedLR: .* this one has steps of a batch 10 \(there 24\)\.") as warned:
        scheduler.step(**batch, values=numbers, targets=numbers)
    assert warned[0].filename == __file__
    optimizer.step()
    with pytest.warns(UserWarning, match=r"this one has gradient steps of an update 1 \(there 8\)\."):
        scheduler.step(**batch, values=numbers, targets=numbers)
    scheduler.step(**batch, values=numbers, targets=numbers)  # once


def test_models_whose_step_is_not_a_rate_are_refused():
    with pytest.raises(
        InputError, match=r"fitted for the rule 'trpo', whose step is not a learning rate; allowed are ppo"
    ):
        LearnedLR(make()[1], with_setting(rule={"name": "trpo"}))
