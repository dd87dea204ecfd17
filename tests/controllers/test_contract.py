"""Every registered controller keeps the contract, and the contract's check notices who does not."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from metastep.meta.transitions import Transitions
from sklearn.neighbors import KNeighborsRegressor

from metastep import controllers
from metastep.blocks import Stream
from metastep.controllers import Clip, Fixed, MetaFQIController
from metastep.errors import InputError
from metastep.fqi import MetaFQI, Model, ObservationPart, TrainingData
from metastep.fqi.model import model_from
from metastep.fqi.native import fit_forest
from metastep.mdp import Learners, MetaMDP, begin
from metastep.testing import check_controller
from tests.controllers.problems import BLOCK, make_mdp


def _model(**changes: Any) -> Model:
    """A small model for the problem of these tests, really fitted."""
    mdp = make_mdp()
    rng = np.random.default_rng(0)
    parts = [ObservationPart("theta", mdp.num_parameters), ObservationPart("gradient", mdp.num_parameters)]
    parts.append(ObservationPart("context", 2))
    size = sum(part.size for part in parts)
    data = Transitions(
        rng.normal(size=(200, size)).astype(np.float32),
        rng.uniform(0.0, 2.0, 200).astype(np.float32),
        rng.normal(size=200).astype(np.float32),
        rng.normal(size=(200, size)).astype(np.float32),
    )
    fitted = MetaFQI(iterations=1, trees=5, min_samples_split=0.1, stepsize_high=2.0).fit(data)
    model = model_from(fitted, environment="nav2d", observation=parts, training_data=TrainingData(200, 0, "x"))
    return dataclasses.replace(model, record=dataclasses.replace(model.record, **changes))


def _regression() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    forest = fit_forest(rng.uniform(size=(100, 3)), rng.uniform(size=100), num_trees=3, min_samples_split=5, seed=0)
    return {"forest": forest, "stepsizes": np.linspace(0.0, 2.0, 11, dtype=np.float32)}


OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "uniform": dict,
    "random-constant": dict,
    "fixed": lambda: {"stepsize": 0.5},
    "decay": lambda: {"alpha": 1.0},
    "geometric-decay": lambda: {"stepsize": 1.0, "alpha": 0.9},
    "hoof": lambda: {"max_divergence": 0.02},
    "metagrad": lambda: {"stepsize": 0.5, "beta": 0.1},
    "single-action": _regression,
    "metafqi": lambda: {"model": _model()},
    "greedy-oracle": lambda: {"num_stepsizes": 11},
}


@pytest.mark.parametrize("name", controllers.names())
def test_registered_controllers_keep_the_contract(name: str) -> None:
    controller = controllers.make(name, **OPTIONS[name]())
    assert controller.name == name
    check_controller(controller, make_mdp())


def test_wrapped_controllers_keep_the_contract() -> None:
    check_controller(Clip(Fixed(np.linspace(0.0, 4.0, BLOCK))), make_mdp())


def test_a_learner_that_is_not_finite_gets_the_smallest_step_of_metafqi() -> None:
    """The others choose as if it were not there, with any regressor: most of scikit-learn's refuse NaN."""
    mdp = make_mdp()
    whole = begin(mdp, mdp.tasks(0, Stream.TUNING, 0))
    broken = whole._replace(theta=whole.theta.at[3].set(jnp.nan))
    size = 2 * mdp.num_parameters + 2
    rng = np.random.default_rng(0)
    data = Transitions(
        rng.normal(size=(60, size)), rng.uniform(1.0, 2.0, 60), rng.normal(size=60), np.zeros((60, size))
    )
    neighbours = MetaFQI(1, regressor=KNeighborsRegressor(3), stepsize_low=0.0, stepsize_high=2.0).fit(data)
    for model in (_model(), neighbours):
        controller = MetaFQIController(model)
        state = controller.init(mdp, whole)
        expected = np.asarray(controller.propose(state, whole)).copy()
        expected[3] = 0.0
        np.testing.assert_array_equal(controller.propose(state, broken), expected)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"environment": "minigolf"}, "the environment minigolf, but the meta-MDP has nav2d"),
        ({"stepsize_high": 8.0}, r"the range of step sizes \[0, 8\], but the meta-MDP has \[0, 2\]"),
        (
            {"observation": tuple(reversed(_model().record.observation))},
            r"the meta-observation context \(2\), .*, but the meta-MDP has theta",
        ),
    ],
    ids=["environment", "step sizes", "observation"],
)
def test_a_model_for_something_else_is_refused(changes: dict[str, Any], complaint: str) -> None:
    mdp = make_mdp()
    learners = begin(mdp, mdp.tasks(0, Stream.TUNING, 0))
    MetaFQIController(_model()).init(mdp, learners)
    with pytest.raises(InputError, match=complaint):
        MetaFQIController(_model(**changes)).init(mdp, learners)


class _Faulty:
    """A controller whose proposal is up to the test."""

    name = "faulty"

    def __init__(self, proposal: Callable[[Learners], Array]) -> None:
        self.proposal = proposal

    def init(self, mdp: MetaMDP, learners: Learners) -> None:
        return

    def propose(self, state: None, learners: Learners) -> Array:
        return self.proposal(learners)

    def observe(self, state: None, before: Learners, hyperparameters: Array, after: Learners) -> None:
        return


def _counting() -> Callable[[Learners], Array]:
    calls = iter(range(1000))
    return lambda learners: jnp.full((BLOCK, 1), 0.001 * next(calls), jnp.float32)


@pytest.mark.parametrize(
    ("proposal", "complaint"),
    [
        (lambda learners: jnp.ones(BLOCK, jnp.float32), "shape"),
        (lambda learners: jnp.ones((BLOCK, 1), jnp.int32), "float32"),
        (lambda learners: jnp.full((BLOCK, 1), jnp.nan, jnp.float32), "finite"),
        (_counting(), "change nothing"),
        (lambda learners: jnp.full((BLOCK, 1), jnp.mean(learners.theta)), "other learners"),
        (lambda learners: learners.estimate.gradient[:, :1], "finite"),
    ],
    ids=["shape", "type", "nan", "stateful", "mixed lanes", "broken learner"],
)
def test_the_check_notices(proposal: Callable[[Learners], Array], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        check_controller(_Faulty(proposal), make_mdp(), num_updates=1)


def test_a_controller_needs_a_name() -> None:
    nameless = _Faulty(lambda learners: jnp.ones((BLOCK, 1), jnp.float32))
    nameless.name = ""
    with pytest.raises(InputError, match="name"):
        check_controller(nameless, make_mdp())


def test_unknown_names_and_options_get_one_sentence() -> None:
    with pytest.raises(InputError, match="Did you mean 'metagrad'"):
        controllers.make("metagard")
    with pytest.raises(InputError, match="fixed cannot be built"):
        controllers.make("fixed", rate=1.0)
    with pytest.raises(InputError, match="taken already"):
        controllers.register("fixed", controllers.Decay)
