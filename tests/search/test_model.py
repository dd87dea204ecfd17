"""Searched models: NumPy, JAX and simulated learners agree, files hold a few kilobytes, and hostile ones are refused."""

import dataclasses
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import metastep
from metastep._core.errors import InputError
from metastep._core.storage import read_tensors, write_tensors
from metastep.experiments.checking import draw_model, inspect_path
from metastep.fqi import save_model as save_fitted
from metastep.mdp.blocks import Stream
from metastep.mdp.runs import BlockRun, run_blocks
from metastep.rules.actor_critic import A2C
from metastep.search import Network, Searched, SearchedModel, load_model, save_model
from tests.search.test_controller import SEEN, clip_mdp, network
from tests.steppers import random_weights, tiny_model


@cache
def model(knots: int = 3, units: int = 4) -> SearchedModel:
    """A model of random weights."""
    num = knots > 1
    alone = Network(("budget",)[:num], (0.5,)[:num], (0.3,)[:num], (0.4, 0.7), knots)
    return random_weights(clip_mdp(), network(knots, units) if units else alone, 6.0)


@pytest.mark.parametrize(("knots", "units"), [(1, 0), (3, 0), (3, 4)])
def test_a_file_gives_the_model_back(knots: int, units: int, tmp_path: Path) -> None:
    one, path = model(knots, units), tmp_path / "one.safetensors"
    save_model(one, path)
    assert path.stat().st_size < 8000
    again = metastep.load_model(path)
    assert isinstance(again, SearchedModel)
    assert again.record == one.record
    assert again.fingerprint == one.fingerprint != model(2, 3).fingerprint
    rows = np.random.default_rng(1).normal(size=(5, len(one.network.features)))
    np.testing.assert_array_equal(again.act(rows), one.act(rows))
    assert load_model(path).record.level == ("feedback" if units else "schedule" if knots > 1 else "constant")
    save_fitted(tiny_model(), tmp_path / "fitted.safetensors")
    assert isinstance(metastep.load_model(tmp_path / "fitted.safetensors"), metastep.Model)


def test_numpy_jax_and_simulated_learners_agree() -> None:
    one, mdp = model(), clip_mdp()
    rows = np.random.default_rng(1).normal(0.0, 2.0, (64, 3)).astype(np.float32)
    rows[0, 0] = np.nan
    acted = one.act(rows)
    for found in (
        one.values(rows),
        jax.jit(one.values)(rows),
        jax.vmap(one.values)(rows),
        jax.lax.scan(lambda carry, each: (carry, one.values(each)), 0, rows)[1],
    ):
        both = np.stack([found["stepsize"], found["clip_range"]], axis=1)
        np.testing.assert_allclose(both, acted, rtol=1e-6)
    shapes = {name: value.shape for name, value in model(1, 0).values(np.zeros(0)).items()}
    assert shapes == dict.fromkeys(("stepsize", "clip_range"), ())
    proposal = one.propose(**{name: float(value) for name, value in zip(SEEN, rows[1], strict=True)})
    np.testing.assert_array_equal([*proposal.values.values()], acted[1])
    assert proposal.stepsize == proposal.values["stepsize"]
    start = mdp.begin(mdp.tasks(0, Stream.TUNING, 0))
    follower, flat = Searched(model=one), Searched(one.network, np.concatenate([part.ravel() for part in one.weights]))
    proposed = (each.propose(each.init(mdp, start), start) for each in (follower, flat))
    np.testing.assert_array_equal(*proposed)


def test_gradient_steps_are_whole_numbers_in_loops() -> None:
    one, own = model(1, 0), {"names": ("stepsize", "gradient_steps"), "base": (0.5, 0.5)}
    record = dataclasses.replace(one.record, low=(1e-4, 0.2), high=(1e-1, 3.0), **own)
    for logit, wanted in ((-9.0, 1), (0.0, 2), (9.0, 3)):
        few = SearchedModel(record, one.weights._replace(curves=np.full((1, 2), logit, np.float32)))
        assert few.propose().values["gradient_steps"] == wanted
        assert float(few.values(np.zeros(0))["gradient_steps"]) == wanted


def test_a_constant_and_a_schedule_need_no_diagnostics_and_a_schedule_is_a_table_of_its_knots() -> None:
    for one in (model(1, 0), model(3, 0)):
        stepper = one.stepper(3, outside="trust")
        assert stepper.needs == ()
        found = [stepper().values for _ in range(4)]
        assert [one.propose(budget=share).values for share in (0.0, 1 / 3, 2 / 3, 1.0)] == found
    table = model(3, 0).curves()
    assert [*table] == ["budget", "stepsize", "clip_range"]
    for index, share in enumerate((0.0, 0.5, 1.0)):
        proposal = model(3, 0).propose(budget=share)
        np.testing.assert_allclose([table["stepsize"][index], table["clip_range"][index]], [*proposal.values.values()])


def _edited(path: Path, record: dict[str, Any], arrays: dict[str, Any], drop: tuple[str, ...] = ()) -> None:
    save_model(model(), path)
    old, metadata = read_tensors(path)
    known = {name: value for name, value in metadata["record"].items() if name not in drop} | record
    write_tensors(path, {**old, **arrays}, metadata | {"record": known})


@pytest.mark.parametrize(
    ("record", "arrays", "sentence"),
    [
        ({"base": [0.4, 1.7]}, {}, "must lie on the unit cube"),
        ({"base": [0.4]}, {}, "base has 1 entries, allowed is 2"),
        ({"mean": [0.0]}, {}, "features, mean and spread must have as many entries"),
        ({"low": [1.0, 0.05]}, {}, "must lie below"),
        ({"names": ["stepsize", "stepsize"]}, {}, "each name once"),
        ({"names": ["rate", "clip_range"]}, {}, "must have stepsize"),
        ({"level": "schedule"}, {}, "level is 'schedule', but the network's is 'feedback'"),
        ({"knots": 10**8}, {}, r"curves is float32 of shape \(3, 2\), allowed is float32 of \(100000000, 2\)"),
        ({"units": -1}, {}, "units"),
        ({"feature_low": [7.0, 7.0, 7.0]}, {}, "feature_low exceeds feature_high"),
        ({"feature_names": ["budget", "budget"]}, {}, "has 2 entries, allowed is 3"),
        ({"spread": [1.0, -0.2, 0.3]}, {}, "spread"),
        ({"validation": [{"level": "constant", "score": 1.0, "error": 0.0}] * 2}, {}, "one of each level"),
        ({}, {"output": np.full((4, 2), np.nan, np.float32)}, "output has numbers that are not finite"),
        ({}, {"hidden": np.zeros((4, 4))}, "hidden is float64"),
        ({}, {"more": np.zeros(1, np.float32)}, "tensors: .*'more'.*allowed are curves, hidden, output"),
    ],
)  # fmt: skip
def test_a_hostile_file_is_refused_in_one_sentence(record: Any, arrays: Any, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.safetensors"
    _edited(path, record, arrays)
    with pytest.raises(InputError, match=sentence) as caught:
        load_model(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_field_and_another_version_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.safetensors"
    for field in dataclasses.asdict(model().record).keys() - {"versions"}:
        _edited(path, {}, {}, drop=(field,))
        with pytest.raises(InputError, match=field):
            load_model(path)
    save_model(model(), path)
    arrays, metadata = read_tensors(path)
    write_tensors(path, arrays, metadata | {"version": 99})
    with pytest.raises(InputError, match="is a searched model of version 99, this metastep reads version 2: search"):
        load_model(path)


def test_a_model_for_something_else_and_observations_of_another_shape_are_refused() -> None:
    mdp, one = clip_mdp(), model()
    start = mdp.begin(mdp.tasks(0, Stream.TUNING, 0))
    wide = dataclasses.replace(one.record, high=(0.1, 0.9))
    other = dataclasses.replace(one.record, setting=one.record.setting | {"rule": {"name": A2C.name}})
    parts = one.record.observation
    named = dataclasses.replace(one.record, observation=(*parts[:2], dataclasses.replace(parts[0], name="own")))
    for record, sentence in (
        (wide, r"it was searched for space.high = \[0.1, 0.9\], but the meta-MDP has \[0.1, 0.5\]"),
        (other, 'it was searched for rule.name = "a2c", but the meta-MDP has "ppo"'),
        (named, "it was searched for features.own = 1, but the meta-MDP has not set"),
    ):
        with pytest.raises(InputError, match=sentence):
            Searched(model=SearchedModel(record, one.weights)).init(mdp, start)
    with pytest.raises(InputError, match=r"observation has shape \(3,\), allowed are rows of 3 numbers"):
        one.act(jnp.zeros(3))
    with pytest.raises(InputError, match="entropy_change is missing"):
        one.propose(last_divergence=0.0)


def test_a_stepper_proposes_what_simulated_learners_got_and_resumes_from_its_record() -> None:
    mdp, one = clip_mdp(), model()
    ran = run_blocks([BlockRun(mdp, Searched(model=one), mdp.tasks(0, Stream.TUNING, 0), 4)], 0)[0]
    learners, stepper = mdp.begin(mdp.tasks(0, Stream.TUNING, 0)), one.stepper(4, outside="trust")
    for chosen in ran.history.hyperparameters:
        seen = mdp.diagnostics(learners)
        proposal = stepper({name: seen[name][2] for name in ("approx_kl", "entropy")})
        np.testing.assert_allclose([*proposal.values.values()], chosen[2], rtol=1e-5)
        record = json.loads(json.dumps(stepper.record()))
        stepper = one.stepper(record=record, outside="trust")
        assert stepper(begins=False) == proposal
        learners = mdp.advance(learners, jnp.asarray(chosen))
    gathered = record["gathered"]
    for values, sentence in (
        ({}, r"gathered.values are \['stepsize'\], allowed are stepsize, clip_range"),
        ({"clip_range": 0.7}, "clip_range is 0.7, allowed is 0.05 to 0.5"),
        ({"clip_range": None}, "gathered.values.clip_range is None, it must be a number"),
        ({"clip_range": 0.2, "epochs": 3.0}, "gathered.values are"),
    ):
        with pytest.raises(InputError, match=f"record: {sentence}"):
            one.stepper(record=record | {"gathered": gathered | {"values": values}})
    sentence = "entropy is nan, allowed is a finite number of float32: features are at their mean"
    with pytest.warns(UserWarning, match=sentence):
        found = stepper(approx_kl=0.01, entropy=np.nan)
    assert found.values == pytest.approx(one.propose(last_divergence=-2.0, entropy_change=0.0, budget=1.0).values)


def test_a_model_is_described_and_drawn(tmp_path: Path) -> None:
    one, path, figure = model(), tmp_path / "one.safetensors", tmp_path / "one.svg"
    save_model(one, path)
    text = inspect_path(path)
    parts = "feedback searched for pendulum, ppo", "30 weights, 1e+06 environment steps of search, seed 0", "last_div"
    assert all(part in text for part in parts), text
    rows = {line.split()[0]: list(map(float, line.split()[1:])) for line in text.splitlines()[-3:]}
    assert rows["budget"] == [0.0, 0.5, 1.0]
    np.testing.assert_allclose(rows["clip_range"], one.curves()["clip_range"], rtol=5e-3)
    draw_model(path, figure)
    assert len(set(re.findall("axes_[0-9]+", figure.read_text()))) == 6  # two hyperparameters, time and two features
    for wanted, sentence in ((figure, "exists already"), (tmp_path / "one.pdf", r"must end with .svg or .png")):
        with pytest.raises(InputError, match=sentence):
            draw_model(path, wanted)
    save_fitted(tiny_model(), tmp_path / "fitted.safetensors")
    with pytest.raises(InputError, match="holds a fitted model"):
        draw_model(tmp_path / "fitted.safetensors", tmp_path / "other.svg")
