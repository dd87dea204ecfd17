import pickle
import warnings
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import ValidationError
from sklearn.ensemble import RandomForestRegressor

from metastep._core.errors import InputError
from metastep.controllers import MetaFQIController
from metastep.fqi import ExtraTrees, MetaFQI, Model, ObservationPart, TrainingData, ValidationCurve, model_from
from metastep.fqi.record import record_from_json, record_to_json
from tests.fqi.problems import HIGH, transitions

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


def test_record_tells_where_the_model_comes_from(model):
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


def test_rows_that_are_not_finite_get_the_smallest_step_size(model):
    observation = transitions(4, 5, seed=6).observation
    broken = observation.astype(float)
    broken[0, 0], broken[2, 4], broken[3, 1] = np.nan, np.inf, 1e300
    chosen = model.act(broken)
    assert list(chosen[[0, 2, 3]]) == [0.0, 0.0, 0.0]
    assert chosen[1] == model.act(observation)[1]


def test_one_learner_in_a_plain_loop(model):
    theta, gradient, context = np.array([0.5, -1.0]), [[0.1], [2.0]], 0.3
    stepsize = model.stepsize(theta=theta, natural_gradient=gradient, context=context)
    assert isinstance(stepsize, float)
    assert stepsize == float(model.act([[0.5, -1.0, 0.1, 2.0, 0.3]])[0])


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


def test_what_is_not_finite_gets_the_smallest_step_size(model):
    for theta in ([np.nan, 0.0], [0.0, -np.inf], [1e300, 0.0]):
        assert model.stepsize(theta=theta, natural_gradient=[0.0, 0.0], context=0.0) == 0.0


def test_the_first_number_outside_of_the_training_data_is_warned_of(model):
    sentence = r"theta\[1\] is 50, outside of the -\d\.\d+ to \d\.\d+ of the training data"
    with pytest.warns(UserWarning, match=sentence) as caught:
        stepsize = model.stepsize(theta=[0.0, 50.0], natural_gradient=[0.0, 0.0], context=0.0)
    assert caught[0].filename == __file__
    assert stepsize == float(model.act([[0.0, 50.0, 0.0, 0.0, 0.0]])[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.stepsize(theta=[70.0, 50.0], natural_gradient=[0.0, 0.0], context=0.0)


def test_missing_or_wrong_parts_are_one_sentence(model):
    with pytest.raises(InputError, match="context is missing, allowed is 1 numbers"):
        model.stepsize(theta=[0.0, 0.0], natural_gradient=[0.0, 0.0])
    with pytest.raises(InputError, match="natural_gradient has 3 numbers, allowed is 2"):
        model.stepsize(theta=[0.0, 0.0], natural_gradient=[0.0, 0.0, 0.0], context=[0.0])
    with pytest.raises(InputError, match="theta is 'far', allowed is 2 numbers"):
        model.stepsize(theta="far", natural_gradient=[0.0, 0.0], context=[0.0])
    with pytest.raises(InputError, match=r"'gradient' is not what the model .* Did you mean 'natural_gradient'\?"):
        model.stepsize(theta=[0.0, 0.0], gradient=[0.0, 0.0], context=[0.0])
    with pytest.raises(InputError, match=r"observation has shape \(1, 4\), allowed is \(rows, 5\)"):
        model.act(np.zeros((1, 4)))


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


def test_inconsistent_records_are_refused(model):
    def with_record(**change: object) -> Model:
        return replace(model, record=replace(model.record, **change))

    with pytest.raises(InputError, match="selected_iteration is 9"):
        with_record(selected_iteration=9)
    with pytest.raises(InputError, match="feature_names has 1 entries, allowed is 5"):
        with_record(feature_names=("theta",))
    with pytest.raises(InputError, match="feature_high has 2 entries, allowed is 5"):
        with_record(feature_high=(1.0, 2.0))
    with pytest.raises(InputError, match="named twice"):
        with_record(observation=(ObservationPart("mine:theta", 2), PARTS[0], PARTS[2]))
    with pytest.raises(InputError, match="named twice"):
        with_record(observation=(PARTS[0], PARTS[0], PARTS[2]))
    with pytest.raises(InputError, match="a head has 6 features, allowed is 3"):
        with_record(observation=PARTS[:1], feature_names=("a", "b"), feature_low=(0.0, 0.0), feature_high=(1.0, 1.0))
    with pytest.raises(ValidationError):
        ObservationPart("velocity", 0)


def test_wrong_json_is_one_sentence(model):
    good = record_to_json(model.record)
    for change in ({"lam": 2.0}, {"lam": "1"}, {"num_stepsizes": 10**9}, {"surprise": 1}, {"observation": 3}):
        with pytest.raises(InputError, match=f"model record: {next(iter(change))}") as caught:
            record_from_json(good | change)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="model record: "):
        record_from_json(None)
    for wrong in (float("nan"), object()):
        with pytest.raises(InputError, match="model record: cannot be written as JSON"):
            record_to_json(replace(model.record, configuration={"a": wrong}))


def test_the_record_names_a_regressor_of_ones_own():
    regressor = RandomForestRegressor(3, max_depth=2)
    fitted = MetaFQI(1, regressor, stepsize_high=HIGH).fit(transitions(50, 5, seed=0))
    assert _model(fitted).record.regressor.name == repr(regressor)
    assert _model(fitted).record.regressor.options == {}
