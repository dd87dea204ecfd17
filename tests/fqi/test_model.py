import pickle
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

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
    model_of_heads,
    save_model,
)
from metastep.fqi.base import record_to_json
from metastep.fqi.model import record_from_json
from tests.fqi.problems import HIGH, MENU, menu_transitions, transitions

PARTS = (ObservationPart("theta", 2), ObservationPart("natural_gradient", 2), ObservationPart("context", 1))
DATA = TrainingData(tuples=300, seed=5, fingerprint="abc")
SETTING = {"env": "nav2d", "rule": {"name": "nga"}}


@pytest.fixture(scope="module")
def fitted():
    return MetaFQI(3, ExtraTrees(6, 0.05), stepsize_high=HIGH).fit(transitions(300, 5, seed=5))


def _model(fitted, parts=PARTS) -> Model:
    return model_from(fitted, setting=SETTING, observation=parts, training_data=DATA, configuration={"name": "x"})


@pytest.fixture
def model(fitted) -> Model:
    return _model(fitted)


def test_the_record_says_where_the_model_comes_from(model):
    record = model.record
    data = transitions(300, 5, seed=5)
    assert record.feature_names == ("theta[0]", "theta[1]", "natural_gradient[0]", "natural_gradient[1]", "context")
    assert record.feature_low == tuple(data.observation.min(axis=0).tolist())
    assert record.feature_high == tuple(data.observation.max(axis=0).tolist())
    assert record.selected_iteration == 3
    assert record.setting == SETTING
    assert record.environment == "nav2d"
    assert record.configuration["name"] == "x"
    assert record.configuration["fqi"]["meta_discount"] == 1.0
    assert (record.regressor.name, record.regressor.options) == (
        "extra-trees",
        {"trees": 6, "min_samples_split": 0.05, "state_first": False},
    )
    assert record.versions["numba"]
    assert record_from_json(record_to_json(record)) == record


def test_acts_as_the_estimator_does(fitted, model):
    observation = transitions(40, 5, seed=6).observation
    assert np.array_equal(model.act(observation), fitted.act(observation))
    assert np.array_equal(model.act(observation, iteration=1), fitted.act(observation, 1))
    assert np.array_equal(model.values(observation, iteration=2), fitted.values(observation, 2))
    with pytest.raises(InputError, match=r"observation has shape \(1, 4\), allowed is \(rows, 5\)"):
        model.act(np.zeros((1, 4)))


def test_one_learner_in_a_plain_loop(model):
    theta, gradient, context = np.array([0.5, -1.0]), [[0.1], [2.0]], 0.3
    stepsize = model.stepsize(theta=theta, natural_gradient=gradient, context=context)
    assert isinstance(stepsize, float)
    assert stepsize == float(model.act([[0.5, -1.0, 0.1, 2.0, 0.3]])[0])
    proposal = model.propose(theta=theta, natural_gradient=gradient, context=context)
    assert proposal == ({"stepsize": stepsize}, "")


def test_numbers_of_other_libraries(model):
    torch = pytest.importorskip("torch")
    expected = model.stepsize(theta=[0.5, -1.0], natural_gradient=[0.125, 2.0], context=0.25)
    theta = torch.tensor([0.5, -1.0], requires_grad=True)
    for gradient in (torch.tensor([0.125, 2.0], dtype=torch.bfloat16), jnp.array([0.125, 2.0], jnp.bfloat16)):
        assert model.stepsize(theta=theta, natural_gradient=gradient, context=jnp.float32(0.25)) == expected


def test_parts_in_the_order_of_the_record(fitted):
    parts = (ObservationPart("mine:returns", 1), ObservationPart("context", 2), ObservationPart("theta", 2))
    model = _model(fitted, parts)
    given = {"theta": [0.5, 1.0], "context": [0.1, 0.2], "returns": -1.0}
    assert model.stepsize(**given) == float(model.act([[-1.0, 0.1, 0.2, 0.5, 1.0]])[0])
    # What the model does not look at may be given all the same: a loop need not know.
    model.stepsize(**given, natural_gradient=[9.0])


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
    assert [source.use for source in there.shaped_by] == [
        source.use for source in MetaFQIController(model, iteration).shaped_by
    ]


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
        ({"branches": (Branch("a", 0.0, 1.0, "linear"),)}, "a Q function has 0 directions, allowed is 1"),
    ],
)
def test_inconsistent_records_are_refused(model, change, sentence):
    with pytest.raises(InputError, match=sentence):
        replace(model, record=replace(model.record, **change))


def test_wrong_json_is_one_sentence(model):
    good = record_to_json(model.record)
    for change in ({"lam": 2.0}, {"lam": "1"}, {"surprise": 1}, {"observation": 3}):
        with pytest.raises(InputError, match=f"model record: {next(iter(change))}") as caught:
            record_from_json(good | change)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="model record is None, it must be"):
        record_from_json(None)
    for wrong in (float("nan"), object()):
        with pytest.raises(InputError, match="model record: cannot be written as JSON"):
            record_to_json(replace(model.record, configuration={"a": wrong}))


@pytest.fixture(scope="module")
def menu_model() -> Model:
    fitted = MetaFQI(3, ExtraTrees(8, 0.05), num_stepsizes=31, menu=MENU).fit(menu_transitions(600, 4, seed=0))
    return _model(fitted, (ObservationPart("theta", 2), ObservationPart("mine:gain", 2)))


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
    grids = np.stack([own.grid for own in menu_model.record.stepsizes.values()])
    last = [grids[b, np.flatnonzero(tied[b])[-1]] for b, tied in zip(branch, is_best, strict=True)]
    largest = model_of_heads(replace(menu_model.record, ties="largest"), heads)
    save_model(largest, tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert loaded.record.ties == "largest"
    assert loaded.fingerprint != menu_model.fingerprint
    np.testing.assert_array_equal(loaded.act(rows), np.stack([branch, last], axis=1).astype(np.float32))
    assert (loaded.act(rows)[:, 1] > smallest[:, 1]).any()
    np.testing.assert_array_equal(loaded.values(rows), values)
    older = record_to_json(menu_model.record)
    del older["ties"]
    assert record_from_json(older) == menu_model.record


def test_files_keep_the_bits(menu_model, tmp_path):
    save_model(menu_model, tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert loaded.record == menu_model.record
    for iteration in (1, 3):
        for answer in ("act", "values"):
            rows = menu_transitions(200, 4, seed=1).observation
            np.testing.assert_array_equal(
                getattr(loaded, answer)(rows, iteration), getattr(menu_model, answer)(rows, iteration)
            )
    arrays, _ = read_tensors(tmp_path / "m")
    assert len(arrays) == 3 * 6 * 7
    np.testing.assert_array_equal(arrays["2/5/value"], menu_model.q_functions[1].heads[5].value)
    save_model(loaded, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "m").read_bytes()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda found: found["branches"].pop(), "heads, allowed are 4 of every iteration"),
        (
            lambda found: found["branches"][1].update(name="adam"),
            r"branches: \['natural', 'adam', 'adam'\] must have a name",
        ),
        (lambda found: found["branches"][1].update(name=""), "must have a name each, given once"),
        (lambda found: found["branches"][1].update(low="0"), r"model record: branches\.1\.low"),
        (lambda found: found["branches"][1].update(scale="log"), "must be positive on a log scale"),
        (lambda found: found["branches"][2].update(high=0.001), "low is 0.01 and high 0.001"),
    ],
)
def test_impossible_branches_in_a_file_are_named(menu_model, tmp_path, change, sentence):
    save_model(menu_model, tmp_path / "m")
    arrays, metadata = read_tensors(tmp_path / "m")
    change(metadata["record"])
    write_tensors(tmp_path / "m", arrays, metadata)
    with pytest.raises(InputError, match=sentence) as caught:
        load_model(tmp_path / "m")
    assert str(caught.value).startswith("File ")
    assert "\n" not in str(caught.value)
