"""Every registered controller keeps the contract, and the contract's check notices who does not."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from metastep import controllers
from metastep.controllers import Clip, Fixed
from metastep.errors import InputError
from metastep.fqi.native import fit_forest
from metastep.meta.mdp import Learners, MetaMDP
from metastep.testing import check_controller
from tests.controllers.problems import BLOCK, make_mdp


class _Model:
    def act(self, observation: Any, iteration: int | None = None) -> np.ndarray:
        return np.clip(np.nan_to_num(np.abs(np.asarray(observation)[:, 0])), 0.0, 2.0)


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
    "metafqi": lambda: {"model": _Model()},
    "greedy-oracle": lambda: {"num_stepsizes": 11},
}


@pytest.mark.parametrize("name", controllers.names())
def test_registered_controllers_keep_the_contract(name: str) -> None:
    controller = controllers.make(name, **OPTIONS[name]())
    assert controller.name == name
    check_controller(controller, make_mdp())


def test_wrapped_controllers_keep_the_contract() -> None:
    check_controller(Clip(Fixed(np.linspace(0.0, 4.0, BLOCK))), make_mdp())


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
