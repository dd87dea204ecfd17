import numpy as np
import pytest
from sklearn.ensemble import RandomForestRegressor
from sklearn.neighbors import KNeighborsRegressor

from metastep._core.errors import InputError
from metastep.fqi import MetaFQI, ObservationPart, load_model, regressors, save_model
from tests.fqi.problems import HIGH, LeastSquares, transitions
from tests.fqi.test_model import _model

PARTS = (ObservationPart("theta", 4),)


@pytest.fixture(autouse=True, scope="module")
def registered():
    """Only here: other tests look at all that is registered."""
    regressors.register("least-squares", LeastSquares)
    yield
    del regressors.REGISTRY._entries["least-squares"]


@pytest.fixture(scope="module")
def data():
    return transitions(300, 4, seed=0)


@pytest.mark.parametrize("regressor", ["least-squares", LeastSquares(0.1), f"{__name__}:least-squares"])
def test_a_regressor_of_ones_own_is_fitted_saved_and_loaded(data, regressor, tmp_path):
    model = _model(MetaFQI(3, regressor, stepsize_high=HIGH).fit(data), PARTS)
    assert not model.q_functions[0].is_forest
    save_model(model, tmp_path / "model.safetensors")
    loaded = load_model(tmp_path)
    assert loaded.record == model.record
    assert loaded.record.regressor.options == {"ridge": 0.1 if regressor == LeastSquares(0.1) else 1e-3}
    for iteration in (1, 2, 3):
        wanted = model.values(data.observation, iteration)
        np.testing.assert_array_equal(loaded.values(data.observation, iteration), wanted)


@pytest.mark.parametrize("regressor", [KNeighborsRegressor(3), RandomForestRegressor(3, max_depth=3)])
def test_models_of_scikit_learn_live_in_memory_only(data, regressor, tmp_path):
    model = _model(MetaFQI(2, regressor, stepsize_high=HIGH).fit(data), PARTS)
    with pytest.raises(InputError, match=r"Regressor.* is not registered, allowed are .*extra-trees"):
        save_model(model, tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_a_file_does_not_import_modules(data, tmp_path, monkeypatch):
    save_model(_model(MetaFQI(1, f"{__name__}:least-squares", stepsize_high=HIGH).fit(data), PARTS), tmp_path / "m")
    monkeypatch.delitem(regressors.REGISTRY._entries, "least-squares")
    with pytest.raises(InputError, match=r"test_regressors:least-squares' is not registered, .*import the module"):
        load_model(tmp_path / "m")
