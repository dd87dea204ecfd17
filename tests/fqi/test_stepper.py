"""In any loop a stepper proposes what the controller of the model would, from the diagnostics of the loop."""

import dataclasses
import json
import re
import warnings
from contextlib import nullcontext
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from metastep import features
from metastep._core.errors import InputError
from metastep.controllers import MetaFQIController
from metastep.features.diagnostics import DIAGNOSTICS, PER_MINIBATCH, Memory
from metastep.mdp.blocks import Stream
from metastep.rules.actor_critic import PPO
from tests.controllers.problems import make_training_mdp
from tests.fqi.test_model import _model, fitted  # noqa: F401  (a fixture)
from tests.steppers import ADDED, HIGH, LOW, TRAINING, clip_model, diagnostics, tiny_model, whole_model

ALL = (*TRAINING, *ADDED)
REPORTED = ("last_clip_fraction", "gradient_norm", "actor_gradient_norm", "gradient_steps")  # of the last update


def everything(update: int) -> dict[str, Any]:
    """What a loop tells to a model that observes all unit-free features."""
    draw = np.random.default_rng([9, update])
    numbers = dict(zip(REPORTED, draw.uniform(0.1, 1.0, len(REPORTED)), strict=True))
    return diagnostics(update) | numbers | {"targets": draw.normal(size=12)}


@pytest.mark.parametrize("names", [TRAINING, ALL], ids=["training", "all"])
def test_a_loop_sees_and_proposes_what_simulated_learners_do(names):
    rule = PPO(epochs=2, minibatch_size=8, clip_range=(0.01,))  # a range that ratios leave
    mdp = dataclasses.replace(make_training_mdp(rule), observation=names, budget=4)
    model = tiny_model(names=names)
    model = dataclasses.replace(model, record=dataclasses.replace(model.record, setting=mdp.setting))
    controller = MetaFQIController(model)
    learners = mdp.begin(mdp.tasks(0, Stream.TEST, 0))
    state = controller.init(mdp, learners)
    stepper, lane, varied = model.stepper(num_updates=4, outside="trust"), 3, set()
    for _ in range(6):
        batch, last, lanes = learners.estimate, learners.previous, learners.estimate.lanes
        proposal = stepper(
            returns=jnp.where(lanes.has_ended, lanes.last_return, lanes.paid)[lane],
            entropy=batch.entropy[lane],
            values=batch.value[lane],
            targets=batch.target[lane],
            approx_kl=last.divergence[lane],
            clip_fraction=last.clip_fraction[lane],
            parameters=learners.theta[lane],
            **{name: getattr(last, name)[lane] for name in stepper.needs if name in REPORTED},
        )
        simulated = features.compute(mdp, names, learners)
        for name in names:
            np.testing.assert_allclose(stepper.last[name], simulated[name][lane], rtol=2e-4, atol=2e-5, err_msg=name)
        proposed = controller.propose(state, learners)
        assert proposal.stepsize == pytest.approx(float(proposed[lane, 0]), rel=1e-6)
        learners = mdp.advance(learners, proposed)
        varied |= {name for name in names if stepper.last[name] not in (0.0, -6.0)}
    assert varied == set(names)


def test_records_of_earlier_versions_lack_what_their_models_do_not_observe():
    stepper, record = tiny_model().stepper(20), tiny_model().stepper(20).record()
    for kind, kept in (("memory", Memory._fields[:6]), ("gathered", ("minibatches", "approx_kl", "clip_fraction"))):
        record[kind] = {name: value for name, value in record[kind].items() if name in (*kept, "direction")}
    assert tiny_model().stepper(record=record)(diagnostics(0)) == stepper(diagnostics(0))


def test_features_of_the_return_the_targets_and_the_gradient_by_hand():
    """Returns 1, 5, 2, 3 with errors 1, 2, 0.5, 1; targets that spread 2, 20, 2, 0.2; gradients of length 4, 0.4, 40."""
    stepper = tiny_model(names=ALL).stepper(20)
    rows = [(1.0, 1.0, 2.0, 9.0), (5.0, 2.0, 20.0, 4.0), (2.0, 0.5, 2.0, 0.4), (3.0, 1.0, 0.2, 40.0)]
    seen, rest = [], {name: value for name, value in everything(0).items() if name not in ("returns", "targets")}
    for mean, error, spread, norm in rows:
        own = {"mean_return": mean, "return_error": error, "target_std": spread, "gradient_norm": norm}
        own["approx_kl"] = 0.01 * mean
        stepper(rest | own, parameters=np.full(4, mean), actor_gradient_norm=0.5, gradient_steps=100)
        seen.append({name: float(value[0]) for name, value in stepper.last.items()})
    columns = {name: [each[name] for each in seen] for name in ADDED}
    np.testing.assert_allclose(columns["drop_in_errors"], [0.0, 0.0, 3.0 / 0.5, 2.0], rtol=1e-5)
    smoothed = [0.0, 0.8, 0.8 * 0.8 - 0.2 * 3.0, 0.8 * (0.8 * 0.8 - 0.2 * 3.0) + 0.2]
    np.testing.assert_allclose(columns["smoothed_change"], np.divide(smoothed, (1.0, 2.0, 0.5, 1.0)), rtol=1e-4)
    np.testing.assert_allclose(columns["target_change"], [0.0, 1.0, 0.0, -1.0], atol=1e-6)
    np.testing.assert_allclose(columns["gradient_change"], [0.0, 0.0, -1.0, 1.0], atol=1e-6)
    np.testing.assert_allclose(columns["gradient_steps"], [0.0, 2.0, 2.0, 2.0], rtol=1e-6)
    np.testing.assert_allclose(columns["actor_gradient"], [-6.0, *np.log10([5.0, 2.0, 3.0])], rtol=1e-5)
    np.testing.assert_allclose(columns["relative_step"], [-6.0, *np.log10([8 / 10, 6 / 4, 2 / 6])], rtol=1e-5)


def test_rewards_in_another_unit_change_no_added_feature():
    model = tiny_model(names=ALL)
    plain, scaled = model.stepper(20), model.stepper(20)
    for update in range(4):
        given = everything(update)
        plain(given)
        scaled(given | {name: 1000.0 * given[name] for name in ("returns", "targets", "gradient_norm")})
        for name in ADDED:
            np.testing.assert_allclose(scaled.last[name], plain.last[name], rtol=1e-4, atol=1e-5, err_msg=name)


INSTEAD: list[dict[str, Any]] = [
    {"mean_return": 1.0, "return_error": 0.5, "returns": None},
    {"values": np.arange(12.0), "targets": np.arange(12.0) ** 2, "explained_variance": None},
    {"step_norm": 0.1, "step_cosine": 0.5, "parameters": None},
    *({name: 0.5} for name in (*REPORTED, "rate", "target_std", "parameter_norm")),
]
"""Diagnostics in place of others, which are then not given."""


def reported_by_name(name: str, update: int) -> dict[str, Any]:
    """Return diagnostics of a loop that gives this one."""
    changed = diagnostics(update) | next((each for each in INSTEAD if each.get(name) is not None), {})
    return {key: value for key, value in changed.items() if value is not None}


@pytest.mark.parametrize("name", DIAGNOSTICS)
@pytest.mark.parametrize(("outside", "rate"), [("fallback", 2e-4), ("trust", LOW)])
def test_numbers_that_are_not_finite_give_the_own_or_the_smallest_step_and_spoil_nothing_after_it(name, outside, rate):
    stepper, sound = (tiny_model().stepper(20, outside, fallback=2e-4) for _ in range(2))
    spoilt, bad = [reported_by_name(name, update) for update in (1, 2)], np.nan if "e" in name else -np.inf
    for each in spoilt:
        each[name] = np.where(np.arange(np.size(each[name])) == 0, bad, each[name])
    for each in (stepper, sound):
        each(reported_by_name(name, 0))
    then = "your own values are used" if outside == "fallback" else "the smallest step is proposed"
    sentence = rf"^diagnostics: {name} is (nan|-inf), allowed is .*: {then} in such an update\.$"
    with pytest.warns(UserWarning, match=sentence) as warned:  # once
        assert [stepper(each).stepsize for each in spoilt] == pytest.approx([rate, rate])
    assert [each.filename for each in warned] == [__file__]
    assert sound(reported_by_name(name, 1)).stepsize != pytest.approx(rate)
    json.dumps(stepper.record(), allow_nan=False)
    assert tiny_model().stepper(record=stepper.record()).memory == stepper.memory
    for update in (3, 4):
        stepper(reported_by_name(name, update))
        assert all(np.isfinite(value).all() for value in stepper.last.values())
    assert stepper(reported_by_name(name, 5)).stepsize > 1.01 * LOW


def test_what_is_remembered_of_the_first_update_is_taken_from_the_first_sound_one():
    stepper = tiny_model().stepper(20)
    with pytest.warns(UserWarning, match="entropy is nan.*the values of the last update stay, pass your own as `fallb"):
        proposal = stepper({**diagnostics(0), "entropy": np.nan, "parameters": np.full(6, np.nan)})
    assert proposal.stepsize == pytest.approx((LOW * HIGH) ** 0.5)  # there was none: the middle of the range
    assert stepper.movement is None
    stepper(diagnostics(1))
    assert stepper.last["entropy_change"] == stepper.last["change_in_errors"] == stepper.last["step_cosine"] == 0.0
    stepper(diagnostics(2))
    change = diagnostics(2)["entropy"] - diagnostics(1)["entropy"]
    assert stepper.last["entropy_change"] == pytest.approx(change, rel=1e-4)


def test_parameters_that_change_in_place_are_seen_to_move_and_the_rate_that_was_used_may_be_another():
    stepper, reported = tiny_model().stepper(20), diagnostics(0)
    reported["parameters"] = np.ones(6, np.float32)
    stepper(reported)
    reported["parameters"] += np.float32(0.5)
    stepper(reported, rate=0.01)
    assert stepper.memory.step_norm == pytest.approx(0.5 * 6**0.5)
    assert stepper.last["last_rate"] == pytest.approx(-2.0)


def test_diagnostics_of_minibatches_are_averaged_to_those_of_an_update():
    """Of 2 epochs of 3 minibatches, one cut short: means over the last epoch or over all, and how many there were."""
    model, draw, last = tiny_model(names=ALL), np.random.default_rng(0), {}
    each, whole = model.stepper(20, minibatches=3), model.stepper(20)
    for update in range(4):
        reported = {name: everything(update)[name] for name in everything(0).keys() - {*PER_MINIBATCH, *REPORTED}}
        wanted = whole(reported | last)
        ratios = draw.uniform(0.0, 0.1, (5 if update == 2 else 6, 4)).astype(np.float32)
        for index, numbers in enumerate(ratios):
            if index == 4:  # in the middle of an epoch
                each = model.stepper(record=json.loads(json.dumps(each.record(), allow_nan=False)), minibatches=3)
            found = each(reported, **dict(zip(PER_MINIBATCH, numbers, strict=True)), begins=index == 0)
            assert found.stepsize == pytest.approx(wanted.stepsize, rel=1e-6)
            for name in ALL if not index else ():
                np.testing.assert_allclose(each.last[name], whole.last[name], rtol=1e-5, atol=1e-6, err_msg=name)
        last = dict(zip(PER_MINIBATCH, ratios.mean(axis=0), strict=True))
        last |= {"approx_kl": ratios[3:, 0].mean(), "last_clip_fraction": ratios[3:, 1].mean()}
        last["gradient_steps"] = len(ratios)
    each(reported, approx_kl=np.nan, clip_fraction=0.0, begins=False)
    with pytest.warns(UserWarning, match="approx_kl is nan, allowed is 0 or more"):
        again = model.stepper(record=each.record(), minibatches=3, fallback=0.02)(reported | last)
    assert again.stepsize == 0.02
    with pytest.raises(InputError, match="begins is False, allowed is True: nothing was proposed yet"):
        model.stepper(20, minibatches=3)(diagnostics(0), begins=False)


def test_numbers_outside_the_training_data_are_warned_of_or_refused():
    sentence = r"last_rate is -6, outside of the -0.001 to 0.001 of the training data"
    stepper = tiny_model(reach=1e-3).stepper(20)
    with warnings.catch_warnings(record=True, action="always") as reported:  # each feature once
        _ = [stepper(diagnostics(update)) for update in range(4)]
    assert re.match(sentence, str(reported[0].message))
    assert {each.filename for each in reported} == {__file__}
    named = " ".join(str(each.message) for each in reported)
    assert all(named.count(f"{name} is ") <= 1 for name in TRAINING)
    assert stepper.memory.rate == pytest.approx((LOW * HIGH) ** 0.5)  # the middle, while there is nothing else
    stepper = tiny_model(reach=1e-3).stepper(20, outside="refuse")
    with pytest.raises(InputError, match=sentence):
        stepper(diagnostics(0))
    assert not stepper.memory.updates  # nothing has happened


def test_models_of_whole_episodes_take_their_features(fitted):  # noqa: F811
    model = _model(fitted)
    given = {"theta": [0.5, -1.0], "natural_gradient": [0.1, 2.0], "context": 0.3}
    proposal = model.stepper()(given)
    assert proposal.stepsize == model.stepsize(**given)
    with pytest.raises(InputError, match="diagnostics: missing context"):
        model.stepper()(theta=[0.5, -1.0], natural_gradient=[0.1, 2.0])
    with pytest.raises(InputError, match="theta has 1 numbers, allowed is 2"):
        model.stepper()(given | {"theta": 1.0})


UNREAL: list[Any] = ["much", 10**400, 1j, True, None, np.array([1.0, None]), np.array([np.datetime64(0, "s")])]
UNREAL += [torch.tensor(True), torch.ones((), device="meta")]


def test_missing_or_wrong_diagnostics_are_named():
    stepper = tiny_model().stepper(20)
    assert set(stepper.needs) == set(diagnostics(0))
    with pytest.raises(InputError, match="diagnostics: missing entropy, explained_variance, returns"):
        stepper()
    added = tiny_model(names=ALL).stepper(20)
    assert set(added.needs) == set(everything(0))
    added(diagnostics(0), targets=np.arange(12.0))  # those of the last update are not known yet
    with pytest.raises(InputError, match="missing last_clip_fraction, gradient_norm, actor_gradient_norm, targets, g"):
        added(diagnostics(1))
    stepper(diagnostics(0))
    before, without = stepper.record(), {name: value for name, value in diagnostics(1).items() if name != "returns"}
    for change, sentence in (
        ({"aproxx_kl": 1.0}, r"'aproxx_kl' is not something a stepper knows.*Did you mean 'approx_kl'"),
        ({5: 1.0}, "diagnostics: '5' is not something a stepper knows"),
        ({"entropy": [1.0, 2.0]}, "diagnostics: entropy has 2 numbers, allowed is one"),
        *(({"entropy": wrong}, "entropy is .*, allowed are real numbers") for wrong in UNREAL),
        ({"entropy": 10**5000}, "entropy is a value of type int, allowed are real numbers"),
        ({"returns": [[1.0, [2.0, 3.0]], [4.0]]}, "returns is .*, allowed are real numbers"),
        ({"returns": []}, "diagnostics: returns has 0 numbers, allowed is at least one"),
        ({"values": [1.0], "targets": np.ones(8)}, "diagnostics: 1 values and 8 targets, allowed are as many"),
        ({"mean_return": 1.0}, "diagnostics: returns and mean_return are both given, allowed is one of them"),
        ({"parameters": [1.0, 2.0]}, "parameters has 2 numbers, before it had 6"),
    ):
        with pytest.raises(InputError, match=f"^[^\n]*{sentence}[^\n]*$"):
            stepper(diagnostics(1) | change)
    with pytest.raises(InputError, match="diagnostics: missing return_error, which the model needs"):
        stepper(without, mean_return=1.0)
    with pytest.raises(InputError, match="diagnostics is 5, allowed are numbers by name"):
        stepper(5)
    with pytest.raises(InputError, match=r"begins is array.*, allowed are True and False"):
        stepper(diagnostics(1), begins=np.ones(2))
    assert stepper.record() == before  # a refused call changes nothing


def test_damaged_records_and_wrong_settings_are_refused():
    model = tiny_model()
    stepper = model.stepper(20)
    stepper(diagnostics(0))
    record = stepper.record()
    memory, gathered = record["memory"], record["gathered"]
    for change, sentence in (
        ({"num_updates": 10**400}, "num_updates is 1000.*, it must be less than or equal to 1000000000"),
        ({"num_updates": 10**5000}, "is a value of type dict, allowed are numbers, text"),
        ({"version": np.ones(2)}, "is .*, allowed are numbers, text"),
        ({"movement": {"parameters": "?", "step": ""}}, "movement is damaged, allowed are two vectors"),
        ({"movement": record["movement"] | {"step": "AACAfwAAgH8AAIB/AACAfwAAgH8AAIB/"}}, "movement is damaged"),
        ({"gathered": None}, "gathered is None, it must be a table"),
        ({"gathered": gathered | {"minibatches": "many"}}, "gathered.minibatches is 'many', it must be a whole"),
        ({"gathered": gathered | {"direction": "west"}}, "gathered.direction is 'west', allowed is one of ''"),
        ({"memory": {}}, "memory.updates is missing"),
        ({"memory": memory | {"rate": 1e300}}, r"memory.rate is 1e\+300, it must be less than or equal to 34028"),
        ({"memory": memory | {"rate": 1.0}}, "stepsize is 1, allowed is 0.0001 to 0.1"),
        ({"memory": memory | {"updates": True}}, "memory.updates is True, it must be a whole number"),
    ):
        with pytest.raises(InputError, match=rf"^record:? ?{sentence}[^\n]*\.$"):
            model.stepper(record=record | change)
    for wrong in (5, [], "record", b"record", np.ones(3)):
        with pytest.raises(InputError, match=r"^record is .*, allowed is the result of a stepper's `record`\.$"):
            model.stepper(record=wrong)
    chosen = clip_model().stepper(20)
    chosen(diagnostics(0))
    del gathered["values"]  # as in version 0.2
    other = {"direction": {"clip 0.1": "clip 0.3", "clip 0.3": "clip 0.1"}[chosen.record()["gathered"]["direction"]]}
    clip_model().stepper(record=chosen.record() | {"gathered": gathered | other})  # a choice that it has
    with pytest.raises(InputError, match=r"direction is 'clip 7', allowed is one of 'clip 0.1', 'clip 0.3'"):
        clip_model().stepper(record=chosen.record() | {"gathered": gathered | {"direction": "clip 7"}})
    for number in (0, -3, 2.5, True, "9", 10**400, np.ones(2)):
        for name in ("num_updates", "minibatches"):
            with pytest.raises(InputError, match=rf"^stepper(: {name} is .*, it must|.*{name}.*, allowed are).*\.$"):
                model.stepper(**{name: number})
    for options, sentence in (
        ({"log": 5}, "log is 5, allowed are a function, the path of a CSV file and None"),
        ({"record": {}}, "not a metastep stepper"),
        ({"outside": "ignore"}, "stepper: outside is 'ignore', it must be 'fallback', 'refuse' or 'trust'"),
        ({"num_updates": 99, "record": record}, "num_updates is 99, allowed is the 20 of the record, or none"),
        ({"fallback": -1.0}, "fallback: stepsize is -1.0, allowed is a finite number, 0 or more"),
        ({"fallback": lambda made: float("nan")}, "fallback: stepsize is nan, allowed is a finite number"),
        ({"fallback": {"stepsize": "much"}}, "fallback: stepsize is 'much', allowed is a finite number"),
        ({"fallback": {"clip_range": 0.2}}, "fallback: 'clip_range' is not what the model chooses, allowed are st"),
        ({"loop": {"discout": 0.9}}, "loop: discout is 0.9, it must not be there"),
        ({"loop": {"discount": -1.0}}, "loop: discount is -1.0, it must be greater than 0"),
        ({"loop": {"actions": 2}}, "loop: actions is 2, it must be text"),
        ({"loop": 5}, "loop is 5, it must be"),
    ):
        with pytest.raises(InputError, match=sentence):
            model.stepper(**{"num_updates": None if "record" in options else 20} | options)


def test_records_of_models_that_propose_something_else_are_refused():
    model = tiny_model()
    for other in (tiny_model(9), model.only_selected(1), model.only_selected(2)):
        with pytest.raises(InputError, match="belongs to a stepper of another model"):
            other.stepper(record=model.stepper(20).record())


def test_the_number_of_updates_is_given_or_recorded_where_proposals_depend_on_it():
    model = tiny_model()
    record = model.stepper(np.int64(9)).record()
    assert model.stepper(record=record).num_updates == model.stepper(9, record=record).num_updates == 9
    other = tiny_model(names=tuple(name for name in TRAINING if name != "budget"))
    assert other.stepper(fallback={"stepsize": 0.1}).num_updates == 1
    for needy in (model.stepper, partial(other.stepper, fallback={"stepsize": lambda made: 1.0 - made})):
        with pytest.raises(InputError, match=r"^num_updates is missing, allowed is 1 or more: how many updates your"):
            needy()


def test_impossible_and_repeated_diagnostics_are_replaced_and_missing_ones_are_named():
    """A repeated divergence is that of an earlier update; a rate that rises again afterwards is bounded."""
    stepper = tiny_model().stepper(20, fallback=2e-4)
    stepper(diagnostics(0))
    changes = ({"approx_kl": -0.2}, {"clip_fraction": 30.0}, {"explained_variance": 2.0}, {"approx_kl": 0.02})
    for update, change in enumerate(changes, 1):
        with pytest.warns(UserWarning, match=f"^diagnostics: {next(iter(change))} is") if update < 4 else nullcontext():
            assert (stepper(diagnostics(update) | change).stepsize == 2e-4) == (update < 4)
    assert stepper(diagnostics(5) | {"approx_kl": 0.02}).stepsize == 2e-4  # the cause is known
    assert stepper(diagnostics(6)).stepsize != 2e-4
    other = whole_model(chosen=("stepsize",)).stepper(fallback=0.01)
    other()
    sentence = r"^diagnostics: missing returns, approx_kl, so guards that need them are off\.$"
    with pytest.warns(UserWarning, match=sentence):
        other()
    other(diagnostics(1))  # they are used if they are there, although the model observes nothing
    with pytest.warns(UserWarning, match=r"^approx_kl is 9, more than 0\.5: the rate is halved"):
        other(diagnostics(2) | {"approx_kl": 9.0})


@pytest.mark.parametrize(("divergence", "has_fallen"), [(0.0, False), (0.01, True)])
def test_a_divergence_of_zero_is_no_fault_but_another_number_twice_is(divergence: float, has_fallen: bool) -> None:
    """A policy that is certain of its actions does not diverge; any other number is hardly ever measured again."""
    stepper = tiny_model().stepper(20, fallback=3e-4)
    with pytest.warns(UserWarning, match="approx_kl") if has_fallen else nullcontext():
        for update in range(4):
            stepper(diagnostics(update) | {"approx_kl": divergence})
    assert ("fallback" in stepper.guard.names) == has_fallen
