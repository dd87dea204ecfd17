"""A bandit over several hyperparameters within a run."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metastep._core.errors import InputError
from metastep.controllers import Bandit
from metastep.mdp.blocks import Stream
from metastep.rules.actor_critic import PPO
from metastep.rules.spaces import HyperparameterSpace
from tests.controllers.problems import BLOCK, make_training_mdp
from tests.one_block import run

SPACE = HyperparameterSpace(
    (1e-4, 0.05, 0.8, 1.0), (1e-1, 1.0, 1.0, 6.0), ("log", "log", "linear", "log"),
    ("stepsize", "clip_range", "gae_lambda", "gradient_steps"),
)  # fmt: skip
USUAL = (3e-3, 0.2, 0.95, 6.0)


def state_of(bandit: Bandit) -> Any:
    mdp = SimpleNamespace(space=SPACE, rule=PPO())
    return bandit.init(mdp, SimpleNamespace(theta=np.zeros((BLOCK, 3))))  # type: ignore[arg-type]


def moment(index: int, mean_return: Any) -> Any:
    """What the controller looks at of learners."""
    estimate = SimpleNamespace(mean_return=jnp.asarray(mean_return), return_error=jnp.full(BLOCK, 0.1))
    return SimpleNamespace(theta=np.zeros((BLOCK, 3)), estimate=estimate, controller_key=jax.random.key(index))


def play(bandit: Bandit, reward: Any, num: int) -> tuple[np.ndarray, Any]:
    """Return what is chosen (updates, learners, coordinates) where an update improves the return by `reward(values)`."""
    state, level, chosen = state_of(bandit), np.zeros(BLOCK, np.float32), []
    for index in range(num):
        before = moment(index, level)
        values = bandit.propose(state, before)
        chosen.append(np.asarray(values))
        level = level + reward(chosen[-1]).astype(np.float32)
        state = bandit.observe(state, before, values, moment(index + 1, level))
    return np.stack(chosen), state


def test_arms_lie_around_the_usual_values_and_within_the_ranges() -> None:
    arms = np.asarray(state_of(Bandit(np.linspace(1e-3, 8e-3, BLOCK), spread=0.1)).arms)
    np.testing.assert_allclose(arms[:, 0, 1], np.linspace(1e-3, 8e-3, BLOCK), rtol=1e-6)
    np.testing.assert_allclose(arms[0, :, 1], (1e-3, *USUAL[1:]), rtol=1e-6)
    np.testing.assert_allclose(arms[0, 0], [1e-3 / 10**0.3, 1e-3, 1e-3 * 10**0.3], rtol=1e-5)  # 3 decades
    np.testing.assert_allclose(arms[0, 2], [0.93, 0.95, 0.97], rtol=1e-6)
    assert arms[0, 3, 2] == 6.0  # not above the range


def test_one_value_changes_at_a_time_and_every_hyperparameter_is_tried_first() -> None:
    chosen, state = play(Bandit(3e-3), lambda values: np.zeros(BLOCK), 8)
    before = np.concatenate([np.broadcast_to(np.float32(USUAL), (1, BLOCK, 4)), chosen[:-1]])
    assert np.max(np.sum(~np.isclose(chosen, before, rtol=1e-6), axis=2)) == 1
    pulls = np.asarray(play(Bandit(3e-3), lambda values: np.zeros(BLOCK), 4)[1].pulls)
    np.testing.assert_array_equal(pulls.sum(axis=2) > 0.0, True)
    assert len(np.unique(chosen[:, :, 0], axis=1).T) > 1  # learners explore in orders of their own
    np.testing.assert_allclose(np.asarray(state.pulls).sum(axis=(1, 2)), (1 - 0.9**8) / 0.1, rtol=1e-5)


@pytest.mark.parametrize("window", [10.0, 40.0])
def test_the_better_values_are_found_and_followed_when_they_change(window: float) -> None:
    """A small clip range pays at first, a large one later; nothing else matters."""
    bandit = Bandit(3e-3, exploration=0.5, window=window, spread=0.2)
    arms = np.asarray(state_of(bandit).arms)[0, 1]
    first, state = play(bandit, lambda values: np.where(values[:, 1] < 0.15, 0.2, -0.2), 60)
    assert np.mean(first[30:, :, 1] == arms[0]) > 0.7
    turned, _ = play(bandit, lambda values: np.where(values[:, 1] > 0.3, 0.2, -0.2), 60)
    assert np.mean(turned[30:, :, 1] == arms[2]) > 0.7
    assert np.isfinite(np.asarray(state.gains)).all()


def test_a_lost_return_counts_as_a_large_drop() -> None:
    lost, _ = play(Bandit(3e-3, exploration=0.1), lambda values: np.where(values[:, 0] > 5e-3, np.nan, 0.05), 3)
    assert np.isfinite(lost).all()
    bandit, state = Bandit(3e-3), state_of(Bandit(3e-3))
    values = bandit.propose(state, moment(0, np.zeros(BLOCK)))
    after = bandit.observe(state, moment(0, np.zeros(BLOCK)), values, moment(1, np.full(BLOCK, np.nan)))
    np.testing.assert_allclose(np.asarray(after.gains).sum(axis=(1, 2)), -3.0)


def test_learners_of_ppo_follow_it() -> None:
    mdp = make_training_mdp()
    mdp = dataclasses.replace(mdp, space=SPACE)
    history, _ = run(mdp, Bandit(np.linspace(1e-3, 1e-2, BLOCK)), mdp.tasks(0, Stream.TUNING, 0), 4)
    assert history.hyperparameters.shape == (4, BLOCK, 4)
    assert (history.hyperparameters >= np.float32(SPACE.low)).all()
    assert (history.hyperparameters <= np.float32(SPACE.high)).all()


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(InputError, match=r"bandit\.window: 0\.5 must be at least 1"):
        Bandit(1e-3, window=0.5)
