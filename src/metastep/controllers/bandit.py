"""A bandit over all hyperparameters within one run, after ULTHO (Yuan and others 2025, arXiv 2503.06101)."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from metastep._core.errors import InputError
from metastep.controllers.schedules import PerLearner, _Schedule
from metastep.mdp import Learners, MetaMDP
from metastep.rules.spaces import HyperparameterSpace, usual_values

_LARGEST = 3.0  # standard errors; larger improvements, and returns that are lost, count as this


class BanditState(NamedTuple):
    """What every learner knows of the arms: (learners, coordinates, arms), of the current values (learners, coordinates)."""

    arms: Array  # values to choose from
    current: Array  # in use
    pulls: Array  # how often each arm was chosen
    gains: Array  # sum of the improvements of the return that followed


@dataclass(frozen=True, eq=False)
class Bandit(_Schedule):
    """Vary one hyperparameter at every update: UCB chooses which, then UCB chooses its value; the others keep theirs.

    UCB takes the largest q + c sqrt(log(1 + sum n) / n), with q the mean improvement of the return in standard errors and n how
    often a choice was made. Both forget by a factor of 1 - 1/W at every update, since what helps changes. New choices come first.

    Args:
        stepsize: the usual step size; the usual values of other hyperparameters are the rule's.
        exploration: c.
        window: W, in updates.
        spread: distance of the values below and above the usual one, as a share of the range, along its scale.
    """

    stepsize: PerLearner
    exploration: PerLearner = 1.0
    window: PerLearner = 10.0
    spread: PerLearner = 0.15

    name: ClassVar[str] = "bandit"
    least: ClassVar[dict[str, float]] = {"stepsize": 0.0, "exploration": 0.0, "window": 1.0, "spread": 0.0}

    def init(self, mdp: MetaMDP, learners: Learners) -> BanditState:
        space, columns, num = mdp.space, [], len(learners.theta)
        if not isinstance(space, HyperparameterSpace):
            raise InputError(f"controller: 'bandit' chooses from ranges, the rule {mdp.rule.name!r} has directions.")
        shifts = self._column("spread", learners) * jnp.asarray([-1.0, 0.0, 1.0], jnp.float32)
        known = usual_values(mdp.rule, space)
        for name, bounds in zip(space.names, space.ranges, strict=True):
            usual = jnp.full((num, 1), known.get(name, bounds.high), jnp.float32)
            usual = jnp.maximum(self._column("stepsize", learners) if name == "stepsize" else usual, bounds.low)
            columns.append(jnp.clip(bounds.shifted(usual, shifts), bounds.low, bounds.high))
        arms = jnp.stack(columns, axis=1)
        return BanditState(arms, arms[:, :, 1], jnp.zeros_like(arms), jnp.zeros_like(arms))

    def propose(self, state: BanditState, learners: Learners) -> Array:
        return _chosen(state, self._column("exploration", learners), learners.controller_key)[0]

    def observe(self, state: BanditState, before: Learners, hyperparameters: Array, after: Learners) -> BanditState:
        """Credit the improvement to the choice that was made."""
        _, choice = _chosen(state, self._column("exploration", before), before.controller_key)
        first, second = before.estimate, after.estimate
        error = jnp.maximum(jnp.hypot(first.return_error, second.return_error), 1e-20)
        gain = jnp.nan_to_num((second.mean_return - first.mean_return) / error, nan=-_LARGEST)
        gain = jnp.clip(gain, -_LARGEST, _LARGEST)[:, None, None]
        kept = 1.0 - 1.0 / self._column("window", before)[..., None]
        return BanditState(state.arms, hyperparameters, kept * state.pulls + choice, kept * state.gains + choice * gain)


@jax.jit
def _chosen(state: BanditState, exploration: Array, key: Array) -> tuple[Array, Array]:
    """Return the next values, and which choice they make: 1 at one place of (learners, coordinates, arms), else 0."""

    def best(pulls: Array, gains: Array, weight: Array, key: Array) -> Array:
        """Mark the largest upper confidence bound along the last axis; what is new comes first, in random order."""
        safe = jnp.maximum(pulls, 1e-6)
        bound = gains / safe + weight * jnp.sqrt(jnp.log1p(jnp.sum(pulls, -1, keepdims=True)) / safe)
        bound = jnp.where(pulls > 1e-6, bound, 1e9 + 1e9 * jax.random.uniform(key, pulls.shape, jnp.float32))
        return jax.nn.one_hot(jnp.argmax(bound, -1), pulls.shape[-1], dtype=jnp.float32)

    which, value = jax.random.split(key)
    varied = best(jnp.sum(state.pulls, -1), jnp.sum(state.gains, -1), exploration, which)
    choice = varied[..., None] * best(state.pulls, state.gains, exploration[..., None], value)
    return jnp.where(varied > 0.0, jnp.sum(choice * state.arms, -1), state.current), choice
