"""Every registered controller keeps the contract, and the check notices controllers that break it."""

from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from sklearn.neighbors import KNeighborsRegressor

from metastep import controllers, features
from metastep._core.errors import InputError
from metastep.controllers import Controller, Fixed, MetaFQIController
from metastep.fqi import ExtraTrees, MetaFQI, Model, ObservationPart, TrainingData, model_from
from metastep.fqi.iteration import QFunction, Stepsizes
from metastep.mdp import EpisodicMetaMDP, Learners
from metastep.mdp.blocks import Stream
from metastep.mdp.controller import TaskSource
from metastep.mdp.history import Transitions
from metastep.search import Network
from metastep.testing import check_controller
from tests.controllers.problems import BLOCK, make_mdp


def _model(**changes: Any) -> Model:
    """A small model for the problem of these tests, really fitted."""
    mdp, rng = make_mdp(), np.random.default_rng(0)
    parts = [ObservationPart(name, size) for name, size in features.sizes(mdp, mdp.observation).items()]
    rows = rng.normal(size=(200, sum(part.size for part in parts)))
    data = Transitions(rows, rng.uniform(0.0, 2.0, 200), rng.normal(size=200), rows[::-1])
    fitted = MetaFQI(1, ExtraTrees(5, 0.1), stepsize_high=2.0).fit(data)
    return model_from(fitted, setting=mdp.setting | changes, observation=parts, training_data=TrainingData(200, 0, "x"))


def _regression() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    forest = ExtraTrees(3, 5).fit(rng.uniform(size=(100, 3)), rng.uniform(size=100), seed=0)
    return {"regression": QFunction((forest,), {"": Stepsizes(0.0, 2.0, num=11)})}


SPACE = make_mdp().setting["space"]

OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "uniform": dict,
    "random-constant": dict,
    "fixed": lambda: {"stepsize": 0.5},
    "decay": lambda: {"alpha": 1.0},
    "geometric-decay": lambda: {"stepsize": 1.0, "alpha": 0.9},
    "linear-annealing": lambda: {"stepsize": 1.0, "num_updates": 5},
    "cosine-annealing": lambda: {"stepsize": 1.0, "num_updates": 5},
    "hoof": lambda: {"max_divergence": 0.02},
    "kl-adaptive": lambda: {"stepsize": 0.5, "target": 0.1},
    "bandit": lambda: {"stepsize": 0.5, "window": 5.0},
    "metagrad": lambda: {"stepsize": 0.5, "beta": 0.1},
    "single-action": _regression,
    "metafqi": lambda: {"model": _model()},
    "searched": lambda: {"network": Network(("update",), (3.0,), (2.0,), (0.4,), 1, 2), "weights": np.arange(7.0)},
    "greedy-oracle": lambda: {"num_stepsizes": 11},
}


@pytest.mark.parametrize("name", controllers.names())
def test_registered_controllers_keep_the_contract(name: str) -> None:
    controller = controllers.make(name, **OPTIONS[name]())
    assert controller.name == name
    check_controller(controller, make_mdp())


def test_settings_for_each_learner_and_declared_tasks_keep_the_contract() -> None:
    check_controller(Fixed(np.linspace(0.0, 4.0, BLOCK)), make_mdp(), num_updates=1)
    check_controller(_faulty(shaped_by=(TaskSource("trained", Stream.TRAIN),)), make_mdp(), num_updates=1)


def test_a_learner_that_is_not_finite_gets_the_smallest_step_of_metafqi() -> None:
    """The others choose as if it were not there, with any regressor: most of scikit-learn's refuse NaN."""
    mdp = make_mdp()
    whole = mdp.begin(mdp.tasks(0, Stream.TUNING, 0))
    broken = whole._replace(theta=whole.theta.at[3].set(jnp.nan))
    size = 2 * mdp.policy.num_parameters + 2
    rng = np.random.default_rng(0)
    observed, steps, reward = rng.normal(size=(60, size)), rng.uniform(1.0, 2.0, 60), rng.normal(size=60)
    data = Transitions(observed, steps, reward, np.zeros((60, size)))
    neighbours = MetaFQI(1, KNeighborsRegressor(3), stepsize_high=2.0).fit(data)
    for model in (_model(), neighbours):
        controller = MetaFQIController(model)
        state = controller.init(mdp, whole)
        expected = np.asarray(controller.propose(state, whole)).copy()
        expected[3] = 0.0
        np.testing.assert_array_equal(controller.propose(state, broken), expected)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"env": "minigolf"}, 'it was fitted for env = "minigolf", but the meta-MDP has "nav2d"'),
        ({"space": {**SPACE, "high": [8.0]}}, r"it was fitted for space.high = \[8.0\], but the meta-MDP has \[2.0\]"),
    ],
)
def test_a_model_for_something_else_is_refused(changes: dict[str, Any], complaint: str) -> None:
    mdp = make_mdp()
    learners = mdp.begin(mdp.tasks(0, Stream.TUNING, 0))
    MetaFQIController(_model()).init(mdp, learners)
    with pytest.raises(InputError, match=complaint):
        MetaFQIController(_model(**changes)).init(mdp, learners)


class _Faulty(Controller):
    """A controller whose proposal is up to the test."""

    name: ClassVar[Any] = "faulty"

    def __init__(self, proposal: Callable[[Learners], Array]) -> None:
        self.proposal = proposal

    def init(self, mdp: EpisodicMetaMDP, learners: Learners) -> Any:
        return jnp.uint32(0)

    def propose(self, state: Any, learners: Learners) -> Array:
        return self.proposal(learners)

    def observe(self, state: Any, before: Learners, hyperparameters: Array, after: Learners) -> Any:
        return state + jnp.uint32(1)


def _faulty(**members: Any) -> Controller:
    """A controller that proposes one half, with these members in place of its own."""
    return type("_Changed", (_Faulty,), members)(lambda learners: jnp.full((BLOCK, 1), 0.5, jnp.float32))


def _counting() -> Callable[[Learners], Array]:
    calls = iter(range(1000))
    return lambda learners: jnp.full((BLOCK, 1), 0.001 * next(calls), jnp.float32)


def _fails(self: Any, mdp: EpisodicMetaMDP, learners: Learners) -> Any:
    raise ZeroDivisionError("no learners\nat all")


def _remembers(self: Any, state: Any, learners: Learners) -> Array:
    """Count the updates."""
    return jnp.full((BLOCK, 1), 0.1 * (1.0 + state.astype(jnp.float32)))


@pytest.mark.parametrize(
    ("controller", "sentence"),
    [
        (_Faulty(lambda learners: jnp.ones(BLOCK, jnp.float32)), "shape"),
        (_Faulty(lambda learners: jnp.full((BLOCK, 1), jnp.nan, jnp.float32)), "finite"),
        (_Faulty(_counting()), "change nothing"),
        (_Faulty(lambda learners: jnp.full((BLOCK, 1), jnp.mean(learners.theta))), "other learners"),
        (_faulty(name=""), "controller: _Changed must have a `name`, a non-empty string, got ''"),
        (_faulty(is_memoryless=None), "controller 'faulty': `is_memoryless` must be True or False, got None"),
        (_faulty(shaped_by=(Stream.TRAIN,)), "controller 'faulty': `shaped_by` must be a tuple of .*TaskSource, got "),
        (_faulty(init=_fails), "controller 'faulty': `init` fails with ZeroDivisionError: no learners$"),
        (_faulty(is_memoryless=True, propose=_remembers), "`is_memoryless` is True, but a new `init` changes its"),
        (_faulty(report=lambda self, state: {"updates": jnp.full(BLOCK, state)}), r"'updates' of `report` has shape \(8,\)"),
    ],
)  # fmt: skip
def test_the_check_notices(controller: Controller, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        check_controller(controller, make_mdp(), num_updates=2)
    assert "\n" not in str(caught.value)
