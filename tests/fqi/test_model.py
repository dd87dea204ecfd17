import json
from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError
from sklearn.ensemble import RandomForestRegressor
from sklearn.neighbors import KNeighborsRegressor

from metastep.errors import InputError
from metastep.fqi import MetaFQI, Model, ObservationPart, TrainingData, ValidationCurve
from metastep.fqi.model import model_from, record_from_json, record_to_json
from tests.fqi.problems import HIGH, transitions

PARTS = (ObservationPart("theta", 2), ObservationPart("gradient", 2), ObservationPart("context", 1))
DATA = TrainingData(tuples=300, seed=5, fingerprint="abc")


@pytest.fixture(scope="module")
def fitted():
    return MetaFQI(3, 6, 0.05, stepsize_high=HIGH).fit(transitions(300, 5, seed=5))


@pytest.fixture(scope="module")
def model(fitted) -> Model:
    return model_from(fitted, environment="nav2d", observation=PARTS, training_data=DATA, configuration={"name": "x"})


def test_record_tells_where_the_model_comes_from(model):
    record = model.record
    assert record.feature_names == ("theta[0]", "theta[1]", "gradient[0]", "gradient[1]", "context")
    assert record.selected_iteration == 3
    assert record.configuration["name"] == "x"
    assert record.configuration["fqi"]["trees"] == 6
    assert record.versions["numba"]
    assert record_from_json(record_to_json(record)) == record


def test_acts_as_the_estimator_does(fitted, model):
    observation = transitions(40, 5, seed=6).observation
    assert np.array_equal(model.act(observation), fitted.act(observation))
    assert np.array_equal(model.act(observation, iteration=1), fitted.act(observation, 1))
    assert np.array_equal(model.values(observation, iteration=2), fitted.values(observation, 2))


def test_one_learner_in_a_plain_loop(model):
    theta, gradient, context = np.array([0.5, -1.0]), [[0.1], [2.0]], 0.3
    stepsize = model.stepsize(theta, gradient, context)
    assert isinstance(stepsize, float)
    assert stepsize == float(model.act([[0.5, -1.0, 0.1, 2.0, 0.3]])[0])


def test_parts_in_the_order_of_the_record(fitted):
    parts = (ObservationPart("return", 1), ObservationPart("context", 2), ObservationPart("theta", 2))
    model = model_from(fitted, environment="x", observation=parts, training_data=DATA)
    assert model.stepsize(theta=[3.0, 4.0], context=[1.0, 2.0], estimated_return=-1.0) == float(
        model.act([[-1.0, 1.0, 2.0, 3.0, 4.0]])[0]
    )
    # What the model does not look at may be given all the same: a loop need not know.
    model.stepsize(theta=[3.0, 4.0], gradient=[9.0], context=[1.0, 2.0], estimated_return=-1.0)


def test_missing_or_wrong_parts_are_one_sentence(model):
    with pytest.raises(InputError, match="context is missing, allowed is 1 numbers"):
        model.stepsize(theta=[0.0, 0.0], gradient=[0.0, 0.0])
    with pytest.raises(InputError, match="gradient has 3 numbers, allowed is 2"):
        model.stepsize([0.0, 0.0], [0.0, 0.0, 0.0], [0.0])
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


def test_inconsistent_records_are_refused(model):
    def with_record(**change: object) -> Model:
        return replace(model, record=replace(model.record, **change))

    with pytest.raises(InputError, match="selected_iteration is 9"):
        with_record(selected_iteration=9)
    with pytest.raises(InputError, match="feature_names has 1 names, allowed is 5"):
        with_record(feature_names=("theta",))
    with pytest.raises(InputError, match="named twice"):
        with_record(observation=(PARTS[0], PARTS[0], PARTS[2]))
    with pytest.raises(InputError, match="forest: has 6 features, allowed is 3"):
        with_record(observation=PARTS[:1], feature_names=("a", "b"))
    with pytest.raises(ValidationError):
        ObservationPart("velocity", 1)


def test_wrong_json_is_one_sentence(model):
    good = json.loads(record_to_json(model.record))
    for change in ({"lam": 2.0}, {"lam": "1"}, {"num_stepsizes": 10**9}, {"surprise": 1}, {"observation": 3}):
        with pytest.raises(InputError, match=f"model record: {next(iter(change))}") as caught:
            record_from_json(json.dumps(good | change))
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="model record: "):
        record_from_json("[" * 100_000)


def test_only_forests_make_models():
    fitted = MetaFQI(1, stepsize_high=HIGH, regressor=KNeighborsRegressor()).fit(transitions(50, 5, seed=0))
    with pytest.raises(InputError, match="regressor is no forest"):
        model_from(fitted, environment="x", observation=PARTS, training_data=DATA)


def test_the_record_names_a_regressor_of_ones_own():
    regressor = RandomForestRegressor(3, max_depth=2)
    fitted = MetaFQI(1, stepsize_high=HIGH, regressor=regressor).fit(transitions(50, 5, seed=0))
    settings = model_from(fitted, environment="x", observation=PARTS, training_data=DATA).record.configuration["fqi"]
    assert settings["regressor"] == repr(regressor)
    assert not {"trees", "forest", "min_samples_split"} & set(settings)


def test_the_record_names_our_forests(model):
    settings = model.record.configuration["fqi"]
    assert (settings["forest"], settings["trees"], settings["min_samples_split"]) == ("native", 6, 0.05)
    assert "regressor" not in settings
