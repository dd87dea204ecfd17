"""Models: what their records say, what they propose, and files that keep every bit or are refused with one sentence."""

import json
import os
import pickle
import random
import tracemalloc
from contextlib import suppress
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from metastep._core.errors import InputError
from metastep._core.storage import read_tensors, write_tensors
from metastep.controllers import MetaFQIController
from metastep.fqi import (
    Branch,
    ExtraTrees,
    MetaFQI,
    Model,
    ObservationPart,
    Proposal,
    TrainingData,
    ValidationCurve,
    load_model,
    model_from,
    save_model,
)
from metastep.fqi.base import record_to_json
from metastep.fqi.forest import Forest
from metastep.fqi.model import model_of_heads, record_from_json
from tests.campaigns.mutations import mutated
from tests.fqi.problems import HIGH, MENU, menu_transitions, transitions

PARTS = (ObservationPart("theta", 2), ObservationPart("natural_gradient", 2), ObservationPart("context", 1))
DATA = TrainingData(tuples=600, seed=5, fingerprint="abc")
SETTING = {"env": "nav2d", "rule": {"name": "nga"}}


@pytest.fixture(scope="module")
def fitted():
    return MetaFQI(3, ExtraTrees(20, 0.01), stepsize_high=HIGH, lam=0.8).fit(transitions(600, 5, seed=5))


def _model(fitted, parts=PARTS) -> Model:
    return model_from(fitted, setting=SETTING, observation=parts, training_data=DATA, configuration={"name": "x"})


@pytest.fixture(scope="module")
def model(fitted) -> Model:
    return _model(fitted)


@pytest.fixture(scope="module")
def menu_model() -> Model:
    fitted = MetaFQI(3, ExtraTrees(8, 0.05), num_stepsizes=31, menu=MENU).fit(menu_transitions(600, 4, seed=0))
    return _model(fitted, (ObservationPart("theta", 2), ObservationPart("mine:gain", 2)))


def test_the_record_says_where_the_model_comes_from(model):
    record, seen = model.record, transitions(600, 5, seed=5).observation
    assert record.feature_names == ("theta[0]", "theta[1]", "natural_gradient[0]", "natural_gradient[1]", "context")
    assert record.feature_low == tuple(seen.min(axis=0).tolist())
    assert record.feature_high == tuple(seen.max(axis=0).tolist())
    assert (record.selected_iteration, record.setting, record.environment) == (3, SETTING, "nav2d")
    assert record.configuration["name"] == "x"
    assert record.configuration["fqi"]["meta_discount"] == 1.0
    options = {"trees": 20, "min_samples_split": 0.01, "state_first": False}
    assert (record.regressor.name, record.regressor.options) == ("extra-trees", options)
    assert record.versions["numba"]
    assert record_from_json(record_to_json(record)) == record


def test_acts_as_the_estimator_does_also_in_a_plain_loop(fitted, model):
    observation = transitions(40, 5, seed=6).observation
    assert np.array_equal(model.act(observation), fitted.act(observation))
    assert np.array_equal(model.act(observation, iteration=1), fitted.act(observation, 1))
    assert np.array_equal(model.values(observation, iteration=2), fitted.values(observation, 2))
    with pytest.raises(InputError, match=r"observation has shape \(1, 4\), allowed is \(rows, 5\)"):
        model.act(np.zeros((1, 4)))
    given = {"theta": np.array([0.5, -1.0]), "natural_gradient": [[0.1], [2.0]], "context": 0.3}
    stepsize = model.stepsize(**given)
    assert isinstance(stepsize, float)
    assert stepsize == float(model.act([[0.5, -1.0, 0.1, 2.0, 0.3]])[0])
    assert model.propose(**given) == ({"stepsize": stepsize}, "")


def test_numbers_of_other_libraries(model):
    torch = pytest.importorskip("torch")
    expected = model.stepsize(theta=[0.5, -1.0], natural_gradient=[0.125, 2.0], context=0.25)
    theta = torch.tensor([0.5, -1.0], requires_grad=True)
    for gradient in (torch.tensor([0.125, 2.0], dtype=torch.bfloat16), jnp.array([0.125, 2.0], jnp.bfloat16)):
        assert model.stepsize(theta=theta, natural_gradient=gradient, context=jnp.float32(0.25)) == expected


def test_parts_in_the_order_of_the_record(fitted):
    parts = (ObservationPart("mine:returns", 1), ObservationPart("context", 2), ObservationPart("theta", 2))
    model, given = _model(fitted, parts), {"theta": [0.5, 1.0], "context": [0.1, 0.2], "returns": -1.0}
    # What the model does not look at may be given all the same: a loop need not know.
    chosen = model.stepsize(**given, natural_gradient=[9.0])
    assert chosen == float(model.act([[-1.0, 0.1, 0.2, 0.5, 1.0]])[0])


def test_missing_or_wrong_parts_are_one_sentence(model):
    good = {"theta": [0.0, 0.0], "natural_gradient": [0.0, 0.0], "context": 0.0}
    for change, sentence in (
        ({"context": None}, "context is missing, allowed is 1 numbers"),
        ({"natural_gradient": [0.0, 0.0, 0.0]}, "natural_gradient has 3 numbers, allowed is 2"),
        ({"theta": "far"}, "theta is 'far', allowed are real numbers"),
        ({"gradient": [0.0]}, r"features: 'gradient' is not what the model .* Did you mean 'natural_gradient'\?"),
    ):
        with pytest.raises(InputError, match=sentence):
            model.stepsize(**good | change)


def test_validation_selects_the_best_iteration(model):
    curves = [ValidationCurve(n, score, (0.0, score)) for n, score in ((3, 1.0), (1, 2.0), (2, 2.0))]
    validated = model.with_validation(curves)
    assert validated.record.selected_iteration == 1  # the smaller of two equals
    assert [curve.iteration for curve in validated.record.validation] == [1, 2, 3]
    observation = transitions(40, 5, seed=6).observation
    assert np.array_equal(validated.act(observation), model.act(observation, iteration=1))
    assert record_from_json(record_to_json(validated.record)) == validated.record
    with pytest.raises(InputError, match="no curves"):
        model.with_validation([])
    with pytest.raises(InputError, match="iterations"):
        model.with_validation([ValidationCurve(1, 2.0, ()), ValidationCurve(4, 1.0, ())])


@pytest.mark.parametrize("iteration", [None, 1])
def test_to_another_process_goes_only_the_iteration_that_acts(model, iteration):
    sent = pickle.dumps(MetaFQIController(model, iteration, np.ones((1, 2), np.float32)))
    assert len(sent) < len(pickle.dumps(model))
    there = pickle.loads(sent)
    rows = transitions(40, 5, seed=6).observation
    np.testing.assert_array_equal(there.model.act(rows, there.iteration), model.act(rows, iteration))
    here = MetaFQIController(model, iteration)
    assert [source.use for source in there.shaped_by] == [source.use for source in here.shaped_by]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"selected_iteration": 9}, "selected_iteration is 9"),
        ({"feature_names": ("theta",)}, "feature_names has 1 entries, allowed is 5"),
        ({"observation": (ObservationPart("mine:theta", 2), PARTS[0], PARTS[2])}, "named twice"),
        (
            {
                "observation": PARTS[:1],
                "feature_names": ("a", "b"),
                "feature_low": (0.0, 0.0),
                "feature_high": (1.0, 1.0),
            },
            "a head has 6 features, allowed is 3",
        ),
    ],
)
def test_inconsistent_records_are_refused(model, change, sentence):
    with pytest.raises(InputError, match=sentence):
        replace(model, record=replace(model.record, **change))


def test_wrong_json_is_one_sentence(model):
    for change in ({"lam": 2.0}, {"lam": "1"}, {"surprise": 1}, {"observation": 3}):
        with pytest.raises(InputError, match=f"model record: {next(iter(change))}") as caught:
            record_from_json(record_to_json(model.record) | change)
        assert "\n" not in str(caught.value)
    for wrong in (float("nan"), object()):
        with pytest.raises(InputError, match="model record: cannot be written as JSON"):
            record_to_json(replace(model.record, configuration={"a": wrong}))


def test_a_model_proposes_direction_and_step(menu_model):
    row = menu_transitions(600, 4, seed=0).observation[3]
    found = menu_model.propose(theta=row[:2], gain=row[2:])
    direction, step = menu_model.act(row[None])[0]
    assert isinstance(found, Proposal)
    assert found == ({"direction": direction, "stepsize": float(step)}, list(MENU)[int(direction)])
    smallest = {"direction": 0.0, "stepsize": float(np.float32(1e-3))}
    assert menu_model.propose(theta=row[:2], gain=[np.nan, 0.0]) == (smallest, "natural")
    assert menu_model.record.directions == tuple(MENU)
    assert menu_model.record.branches[2] == Branch("adam", 0.01, 2.0, "log", {"direction": 2.0})
    assert record_from_json(record_to_json(menu_model.record)) == menu_model.record
    with pytest.raises(
        InputError, match=r"^stepsize: the model chooses among natural, plain, adam as well; use propose\.$"
    ):
        menu_model.stepsize(theta=row[:2], gain=row[2:])
    with pytest.warns(UserWarning, match=r"gain\[0\] is 70, outside") as caught:
        menu_model.propose(theta=row[:2], gain=[70.0, 0.0])
    assert caught[0].filename == __file__


def test_the_tie_rule_is_kept_and_changes_only_the_step(menu_model, tmp_path):
    rows, heads = menu_transitions(200, 4, seed=1).observation, [own.heads for own in menu_model.q_functions]
    values, smallest = menu_model.values(rows), menu_model.act(rows)
    branch, is_best = smallest[:, 0].astype(int), values.max(axis=2, keepdims=True) == values
    grids = np.stack([own.grid(own.num) for own in menu_model.record.stepsizes.values()])
    last = [grids[b, np.flatnonzero(tied[b])[-1]] for b, tied in zip(branch, is_best, strict=True)]
    save_model(model_of_heads(replace(menu_model.record, ties="largest"), heads), tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert loaded.record.ties == "largest"
    assert loaded.fingerprint != menu_model.fingerprint
    np.testing.assert_array_equal(loaded.act(rows), np.stack([branch, last], axis=1).astype(np.float32))
    assert (loaded.act(rows)[:, 1] > smallest[:, 1]).any()
    np.testing.assert_array_equal(loaded.values(rows), values)
    older = record_to_json(menu_model.record)
    del older["ties"]
    assert record_from_json(older) == menu_model.record


@pytest.fixture(scope="module")
def content(model, tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    save_model(model, path)
    load_model(path)  # compiles what the memory measurements must not count
    return path.read_bytes()


def test_files_keep_every_bit(model, content, tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    (tmp_path / "model.safetensors").write_bytes(content)
    assert load_model(tmp_path).record == model.record  # that of a run's folder
    loaded = load_model(path)
    assert loaded.record == model.record
    assert np.array_equal(load_file(path)["2/0/value"], model.q_functions[1].heads[0].value)  # any reader opens it
    observation = transitions(200, 5, seed=6).observation
    for iteration in (None, 1, 2, 3):
        assert np.array_equal(loaded.values(observation, iteration), model.values(observation, iteration))
        assert np.array_equal(loaded.act(observation, iteration), model.act(observation, iteration))
    for function, original in zip(loaded.q_functions, model.q_functions, strict=True):
        for head, expected in zip(function.heads, original.heads, strict=True):
            assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(head, expected, strict=True))
    (tmp_path / "again").write_bytes(b"something old")
    save_model(loaded, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == content
    assert set(os.listdir(tmp_path)) == {"again", "m.safetensors", "model.safetensors"}


def test_accidents_are_detected_in_little_memory_and_signed_ones_give_models_whose_walks_end(content, tmp_path):
    assert len(content) > 200_000
    generator, refused, observation = random.Random(0), 0, transitions(5, 5, seed=6).observation
    length, path = 8 + int.from_bytes(content[:8], "little"), tmp_path / "m"
    for index in range(150):
        # Half of them in the header, which is a small part of the file.
        size = length if index % 2 else len(content)
        damaged = mutated(content[:size], generator) + content[size:]
        path.write_bytes(damaged)
        tracemalloc.start()
        with suppress(InputError):
            load_model(path)
            assert damaged == content
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        # 64 KiB for what any call costs: frames, the path, the error itself.
        assert peak <= 3 * len(damaged) + 65_536
        with suppress(ValueError):  # what cannot be read cannot be signed
            write_tensors(path, *read_tensors(path, verify=False))
        try:
            loaded = load_model(path)
        except InputError:
            refused += 1
            continue
        with np.errstate(all="ignore"):  # a mended file may hold any numbers
            assert loaded.act(observation).shape == (5,)
    assert 40 < refused < 150


def _set(path: tuple, value: object):
    def change(header: dict) -> dict:
        inner = header
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        return header

    return change


@pytest.mark.parametrize(
    "change",
    [
        _set(("__metadata__",), 3),
        _set(("__metadata__",), {"format": "pt"}),
        *(_set(("__metadata__", "metastep"), text) for text in ("[]", "{", '{"checksum": "", "metadata": 1}')),
        _set(("__metadata__", "metastep"), '{"checksum": "", "metadata": NaN}'),
        _set(("__metadata__", "metastep"), '{"checksum": "", "metadata": {"a": "\\ud800"}}'),
        _set(("1/0/value", "dtype"), "F16"),
        _set(("1/0/value", "shape"), [2**40]),
        _set(("1/0/value", "shape"), 3),
        _set(("1/0/value", "data_offsets"), [8, 16]),
        _set(("1/0/empty",), {"dtype": "F32", "shape": [0, 2**70], "data_offsets": [0, 0]}),
        lambda header: '{"__metadata__":{}}, oops',
        lambda header: '{"a":' + "[" * 5000,
        lambda header: '{"a":[' + "[]," * 250_000 + "1]}",
        lambda header: "{}" + " " * (17 << 20),
    ],
)
def test_hostile_headers_are_refused(content, tmp_path, change):
    length = int.from_bytes(content[:8], "little")
    changed = change(json.loads(content[8 : 8 + length]))
    raw = (changed if isinstance(changed, str) else json.dumps(changed)).encode()
    (tmp_path / "m").write_bytes(len(raw).to_bytes(8, "little") + raw + content[8 + length :])
    with pytest.raises(InputError, match="is damaged or was not written by metastep: "):
        load_model(tmp_path / "m")


def _rewritten(content, path, arrays, change):
    path.write_bytes(content)
    found, metadata = read_tensors(path)
    kept = {name: array for name, array in (found | arrays).items() if array is not None}
    write_tensors(path, kept, change(metadata) or metadata)
    return path


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_set(("version",), 2), "is a model of version 2, this metastep reads version 3: fit it again"),
        (_set(("format",), "other"), "is not a metastep model"),
        (_set(("record",), {}), "model record: setting is missing"),
        (_set(("record", "regressor", "name"), "os:system"), "'os:system' is not registered"),
        (_set(("record", "regressor", "options"), {"trees": "many"}), "trees: 'many' must be a whole number"),
        (_set(("record", "regressor", "options"), {"surprise": 1}), "'surprise' is not an option of extra-trees"),
        (_set(("record", "num_stepsizes"), 10**9), "model record: num_stepsizes"),
        (_set(("record", "branches", 0, "scale"), "cubic"), "model record: branches.0.scale"),
        (_set(("record", "branches"), []), "model record: branches"),
        ({"1/0/left": None}, "has the arrays"),
        ({"1/2/left": np.zeros(2)}, "7 heads, allowed are 2 of every iteration from 1 on"),
        ({"1/02/left": np.zeros(2)}, "is not named iteration/head/array"),
        ({"9/0/left": np.zeros(2)}, "allowed are 2 of every iteration from 1 on"),
        ({"1/0/left": np.zeros(2)}, "left is float64 of shape"),
        ({f"{n}/{h}/importances": np.ones(9) for n in (1, 2, 3) for h in (0, 1)}, "a head has 9 features"),
        ({f"3/{h}/{name}": None for h in (0, 1) for name in Forest._fields}, "selected_iteration|validation"),
    ],
)
def test_hostile_metadata_and_tensors_that_do_not_belong_are_named(content, tmp_path, change, sentence):
    arrays, change = ({}, change) if callable(change) else (change, lambda metadata: metadata)
    with pytest.raises(InputError, match=sentence):
        load_model(_rewritten(content, tmp_path / "m", arrays, change))


@pytest.mark.parametrize(
    ("branch", "change", "sentence"),
    [
        (1, {"name": "adam"}, r"branches: \['natural', 'adam', 'adam'\] must have a name"),
        (1, {"name": ""}, "must have a name each, given once"),
        (1, {"low": "0"}, r"model record: branches\.1\.low"),
        (1, {"scale": "log"}, "must be positive on a log scale"),
        (2, {"high": 0.001}, "low: 0.01 must lie below .*high = 0.001"),
    ],
)
def test_impossible_branches_in_a_file_are_named(menu_model, tmp_path, branch, change, sentence):
    save_model(menu_model, tmp_path / "m")
    content = (tmp_path / "m").read_bytes()
    with pytest.raises(InputError, match=f"^File .*{sentence}") as caught:
        load_model(
            _rewritten(content, tmp_path / "m", {}, lambda known: known["record"]["branches"][branch].update(change))
        )
    assert "\n" not in str(caught.value)


def test_paths_without_a_model_file_are_named(model, tmp_path):
    with pytest.raises(InputError, match="cannot be written"):
        save_model(model, tmp_path / "nowhere" / "m")
    (tmp_path / "short").write_bytes(b"\0" * 50)
    for path, sentence in (
        ("nothing", r"File .*/nothing is missing\."),
        (".", r"File .*/model.safetensors is missing\."),
        ("short", "is damaged or was not written by metastep"),
    ):
        with pytest.raises(InputError, match=sentence):
            load_model(tmp_path / path)
