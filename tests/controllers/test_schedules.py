import numpy as np
import pytest

from metastep._core.errors import InputError
from metastep.controllers import (
    HOOF,
    Controller,
    Decay,
    Exploration,
    Fixed,
    GeometricDecay,
    GreedyOracle,
    KLAdaptive,
    Metagrad,
    RandomConstant,
)
from metastep.mdp.blocks import Stream
from metastep.rules.spaces import HyperparameterSpace
from tests.controllers.problems import BLOCK, make_mdp
from tests.one_block import run

NUM_UPDATES = 4


def proposals(controller: Controller) -> np.ndarray:
    """(updates, learners)."""
    mdp = make_mdp()
    history, _ = run(mdp, controller, mdp.tasks(0, Stream.TUNING, 0), NUM_UPDATES)
    return history.hyperparameters[:, :, 0]


def test_fixed_steps_stay_and_decay_divides_by_the_number_of_the_update() -> None:
    steps = np.linspace(0.1, 0.8, BLOCK)
    np.testing.assert_array_equal(proposals(Fixed(steps)), np.tile(steps.astype(np.float32), (NUM_UPDATES, 1)))
    np.testing.assert_allclose(proposals(Decay(3.0))[:, 0], [3.0, 1.5, 1.0, 0.75])


def test_geometric_decay_multiplies() -> None:
    alphas = np.full(BLOCK, 0.5)
    alphas[1] = 0.1
    found = proposals(GeometricDecay(2.0, alphas))
    np.testing.assert_allclose(found[:, 0], [2.0, 1.0, 0.5, 0.25])
    np.testing.assert_allclose(found[:, 1], [2.0, 0.2, 0.02, 0.002], rtol=1e-6)


def test_random_constants_are_uniform_draws_that_stay() -> None:
    found = proposals(RandomConstant())
    np.testing.assert_array_equal(found, np.tile(found[0], (NUM_UPDATES, 1)))
    assert len(set(found[0])) == BLOCK
    assert found.min() >= 0.0
    assert found.max() <= 2.0
    assert not np.array_equal(proposals(Exploration())[0], proposals(Exploration())[1])


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: Fixed(float("nan")), "fixed.stepsize"),
        (lambda: GeometricDecay(1.0, -0.5), "geometric_decay.alpha"),
        (lambda: Metagrad(1.0, float("nan")), "metagrad.beta"),
        (lambda: GreedyOracle(1), "num_stepsizes"),
        (lambda: HOOF(-1.0), "max_divergence"),
        (lambda: HOOF(1.0, num_candidates=0), "num_candidates"),
        (lambda: KLAdaptive(1.0, 0.1, lowest=0.5, highest=0.1), "kl_adaptive.lowest: 0.5 must not exceed highest"),
    ],
)
def test_bad_settings_are_refused(build, field) -> None:
    with pytest.raises(InputError, match=field):
        build()


def test_the_first_adaptive_step_lies_within_its_bounds_too() -> None:
    mdp = make_mdp()
    learners = mdp.begin(mdp.tasks(0, Stream.TUNING, 0))
    steps = np.linspace(0.1, 0.8, BLOCK, dtype=np.float32)
    first = KLAdaptive(steps, 0.1, lowest=0.2, highest=0.5).init(mdp, learners)
    np.testing.assert_array_equal(np.asarray(first)[:, 0], np.clip(steps, np.float32(0.2), np.float32(0.5)))
    with pytest.raises(InputError, match=r"kl_adaptive.lowest: 3 numbers, but a block has 8 learners"):
        KLAdaptive(steps, 0.1, lowest=np.zeros(3)).init(mdp, learners)


def test_a_space_of_two_hyperparameters_is_refused() -> None:
    class TwoNumbers:
        space = HyperparameterSpace((0.0, 0.0), (1.0, 1.0), ("linear", "linear"), ("stepsize", "clip"))
        rule = make_mdp().rule

    with pytest.raises(InputError, match="one number for each update"):
        Fixed(1.0).init(TwoNumbers(), None)  # type: ignore[arg-type]
