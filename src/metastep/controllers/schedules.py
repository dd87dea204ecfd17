"""Controllers without a model: constant, decaying (paper, appendix) or adaptive; settings may differ between learners."""

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep._core.errors import InputError
from metastep._core.settings import FLOAT32, fits_float32
from metastep.mdp import EpisodicMetaMDP, Learners, MetaMDP, require_episodic
from metastep.mdp.controller import Controller, require_one_coordinate
from metastep.rules import Rule, unusable
from metastep.rules.spaces import HyperparameterSpace, usual_values

PerLearner = float | NDArray[np.floating[Any]]
_LARGEST = 3.0  # standard errors at which a bandit clips improvements; a return that is not finite counts as -3


class NumericController(Controller):
    """A controller whose settings are numbers, one for all learners or one for each.

    By default its state, and its proposal, is one number per learner, (learners, 1); it starts as the setting named by `first`.
    """

    first: ClassVar[str] = "stepsize"
    least: ClassVar[dict[str, float]] = {}  # lower bounds of settings

    def __post_init__(self) -> None:
        for entry in fields(self):  # type: ignore[arg-type]  # subclasses with settings are dataclasses
            place, value = self._place(entry.name), getattr(self, entry.name)
            array, least = np.asarray(value), self.least.get(entry.name, -np.inf)
            if not np.issubdtype(array.dtype, np.number) or array.ndim > 1 or not np.all(np.isfinite(array)):
                raise InputError(f"{place}: {value!r} must be a finite number, or one for each learner.")
            if not all(map(fits_float32, np.unique(array))):
                raise InputError(f"{place}: {value!r} {FLOAT32}.")
            if np.any(array < least):
                raise InputError(f"{place}: {float(array.min()):g} must be at least {least:g}.")

    def init(self, mdp: MetaMDP, learners: Learners) -> Any:
        require_one_coordinate(self.name, mdp)
        return self.column(self.first, learners)

    def propose(self, state: Any, learners: Learners) -> Array:
        return state

    def column(self, name: str, learners: Learners) -> Array:
        """Return the setting of every learner: (learners, 1)."""
        array, num = np.asarray(getattr(self, name), np.float32).reshape(-1, 1), len(learners.theta)
        if len(array) not in (1, num):
            raise InputError(f"{self._place(name)}: {len(array)} numbers, but a block has {num} learners.")
        return jnp.broadcast_to(jnp.asarray(array), (num, 1))

    def _place(self, name: str) -> str:
        return f"{self.name.replace('-', '_')}.{name}"


@dataclass(frozen=True, eq=False)
class Fixed(NumericController):
    """h_t = h; with Adam or RMSprop as the rule it is their learning rate."""

    stepsize: PerLearner  # h, which may lie outside the space H

    name: ClassVar[str] = "fixed"


@dataclass(frozen=True, eq=False)
class RandomConstant(NumericController):
    """Every learner draws one step size from U(H) and keeps it: the training data of `SingleAction`."""

    name: ClassVar[str] = "random-constant"

    def init(self, mdp: MetaMDP, learners: Learners) -> Array:
        return mdp.space.sample(learners.controller_key, learners.theta.shape[0])


@dataclass(frozen=True, eq=False)
class Decay(NumericController):
    """h_t = alpha / t, t = 1, 2, ..."""

    alpha: PerLearner  # the first step size; it may lie outside the space H, as the paper's choice for Minigolf does

    name: ClassVar[str] = "decay"
    first: ClassVar[str] = "alpha"

    def propose(self, state: Array, learners: Learners) -> Array:
        return state / (learners.update.astype(jnp.float32) + 1.0)


@dataclass(frozen=True, eq=False)
class GeometricDecay(NumericController):
    """h_t = alpha h_{t-1}."""

    stepsize: PerLearner  # h of the first update
    alpha: PerLearner  # the factor; above 1 the step sizes grow

    name: ClassVar[str] = "geometric-decay"
    least: ClassVar[dict[str, float]] = {"alpha": 0.0}

    def observe(self, state: Array, before: Learners, hyperparameters: Array, after: Learners) -> Array:
        return state * self.column("alpha", before)


@dataclass(frozen=True, eq=False)
class LinearAnnealing(NumericController):
    """h_t = h (1 - t / T), t = 0, ..., T - 1."""

    stepsize: PerLearner  # h of the first update
    num_updates: int  # T; in an experiment that of the comparison

    name: ClassVar[str] = "linear-annealing"
    least: ClassVar[dict[str, float]] = {"num_updates": 1.0}

    def propose(self, state: Array, learners: Learners) -> Array:
        """Anneal; updates after the last planned one have the same step."""
        last = float(self.num_updates - 1) / self.num_updates
        return state * self._share(jnp.minimum(learners.update.astype(jnp.float32) / self.num_updates, last))

    def _share(self, done: Array) -> Array:
        return 1.0 - done


@dataclass(frozen=True, eq=False)
class CosineAnnealing(LinearAnnealing):
    """h_t = h (1 + cos(pi t / T)) / 2, t = 0, ..., T - 1."""

    name: ClassVar[str] = "cosine-annealing"

    def _share(self, done: Array) -> Array:
        return 0.5 * (1.0 + jnp.cos(math.pi * done))


@dataclass(frozen=True, eq=False)
class KLAdaptive(NumericController):
    """h / 1.5 after an update whose KL divergence was above twice the target, 1.5 h after one below half of it.

    The usual rule of PPO implementations; the divergence is the mean KL between the policies before and after an update.
    """

    stepsize: PerLearner  # h of the first update; like all others it may lie outside the space H
    target: PerLearner  # the divergence aimed at
    lowest: PerLearner = 0.0  # smallest h, also of the first update; for learning rates rsl_rl has 1e-5, rl_games 1e-6
    highest: PerLearner = 1e9  # largest h; both have 1e-2

    name: ClassVar[str] = "kl-adaptive"
    least: ClassVar[dict[str, float]] = dict.fromkeys(("stepsize", "target", "lowest", "highest"), 0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if np.size(self.lowest) in (1, np.size(self.highest)) or np.size(self.highest) == 1:  # otherwise `init` raises
            for low, high in np.broadcast(self.lowest, self.highest):
                if low > high:
                    raise InputError(f"kl_adaptive.lowest: {low:g} must not exceed highest, which is {high:g}.")

    def init(self, mdp: MetaMDP, learners: Learners) -> Array:
        if isinstance(mdp.rule, Rule) and not mdp.rule.is_along_a_line:
            needs = "needs a rule that reports the divergence of an update"
            raise InputError(f"controller: {self.name!r} {needs}, {mdp.rule.name!r} does not.")
        return self._clipped(super().init(mdp, learners), learners)

    def observe(self, state: Array, before: Learners, hyperparameters: Array, after: Learners) -> Array:
        """Compare the divergence of the update with the band around the target."""
        target, divergence = self.column("target", before), after.previous.divergence[:, None]
        factor = jnp.where(divergence > 2.0 * target, 1.0 / 1.5, jnp.where(divergence < 0.5 * target, 1.5, 1.0))
        moved = jnp.any(after.theta != before.theta, axis=1, keepdims=True)  # ignore updates that were not made
        return self._clipped(state * jnp.where(moved, factor, 1.0), before)

    def _clipped(self, stepsize: Array, learners: Learners) -> Array:
        return jnp.clip(stepsize, self.column("lowest", learners), self.column("highest", learners))


def cosine(first: Array, second: Array) -> Array:
    """Return the cosine of the angle between rows (learners, parameters), 0 where one has no direction: (learners, 1)."""

    def unit(direction: Array) -> Array:
        usable = ~unusable(direction)[:, None]
        safe = jnp.where(usable, direction, 1.0)
        scaled = safe / jnp.max(jnp.abs(safe), axis=-1, keepdims=True)  # squares of large numbers would overflow
        return jnp.where(usable, scaled / jnp.sqrt(jnp.sum(scaled * scaled, axis=-1, keepdims=True)), 0.0)

    return jnp.clip(jnp.sum(unit(first) * unit(second), axis=-1, keepdims=True), -1.0, 1.0)


@dataclass(frozen=True, eq=False)
class Metagrad(NumericController):
    """Meta-gradient on the step size (paper, appendix; after Xu, van Hasselt and Silver 2018).

    h' = clip(h + beta cos(g', g), H), g the direction of the rule: the trace mu is 0, as in the paper. dj(theta + h g/||g||)/dh
    is the component of the next gradient along g; the paper prints a minus sign, the convention of descent.
    """

    stepsize: PerLearner  # h of the first update, clipped to H like all others
    beta: PerLearner  # the meta step size

    name: ClassVar[str] = "metagrad"

    def init(self, mdp: MetaMDP, learners: Learners) -> tuple[EpisodicMetaMDP, Array]:
        first = super().init(mdp, learners)
        return require_episodic(mdp, "controller: 'metagrad'"), mdp.space.clip(first)

    def propose(self, state: tuple[EpisodicMetaMDP, Array], learners: Learners) -> Array:
        return state[1]

    def observe(self, state: Any, before: Learners, hyperparameters: Array, after: Learners) -> Any:
        """Increase the step while successive directions agree, decrease it otherwise."""
        mdp, stepsize = state
        agreement = cosine(mdp.rule.direction(before.estimate), mdp.rule.direction(after.estimate))
        return mdp, mdp.space.clip(stepsize + self.column("beta", before) * agreement)


class BanditState(NamedTuple):
    """Statistics of the arms of every learner, (learners, coordinates, arms); the current values are (learners, coordinates)."""

    arms: Array  # values to choose from
    current: Array  # values in use
    pulls: Array  # number of times that each arm was chosen, with forgetting
    gains: Array  # sum of the improvements of the return after these, with forgetting


@dataclass(frozen=True, eq=False)
class Bandit(NumericController):
    """Vary one hyperparameter at every update: UCB chooses which, then UCB chooses its value; the others keep theirs.

    After ULTHO (Yuan and others 2025, arXiv 2503.06101). UCB takes the largest q + c sqrt(log(1 + sum n) / n), q the mean
    improvement of the return in standard errors and n how often a choice was made; new choices come first. Both forget by a
    factor of 1 - 1/W at every update, since what helps changes.
    """

    stepsize: PerLearner  # the usual step size; the usual values of other hyperparameters are the rule's
    exploration: PerLearner = 1.0  # c
    window: PerLearner = 10.0  # W, in updates
    spread: PerLearner = 0.15  # distance of the values beside the usual one, as a share of the range, along its scale

    name: ClassVar[str] = "bandit"
    least: ClassVar[dict[str, float]] = {"stepsize": 0.0, "exploration": 0.0, "window": 1.0, "spread": 0.0}

    def init(self, mdp: MetaMDP, learners: Learners) -> BanditState:
        space, columns, num = mdp.space, [], len(learners.theta)
        if not isinstance(space, HyperparameterSpace):
            raise InputError(f"controller: 'bandit' chooses from ranges, the rule {mdp.rule.name!r} has directions.")
        shifts = self.column("spread", learners) * jnp.asarray([-1.0, 0.0, 1.0], jnp.float32)
        defaults = usual_values(mdp.rule, space)
        for name, bounds in zip(space.names, space.ranges, strict=True):
            default = jnp.full((num, 1), defaults.get(name, bounds.high), jnp.float32)
            default = jnp.maximum(self.column("stepsize", learners) if name == "stepsize" else default, bounds.low)
            columns.append(jnp.clip(bounds.shifted(default, shifts), bounds.low, bounds.high))
        arms = jnp.stack(columns, axis=1)
        return BanditState(arms, arms[:, :, 1], jnp.zeros_like(arms), jnp.zeros_like(arms))

    def propose(self, state: BanditState, learners: Learners) -> Array:
        return _chosen(state, self.column("exploration", learners), learners.controller_key)[0]

    def observe(self, state: BanditState, before: Learners, hyperparameters: Array, after: Learners) -> BanditState:
        """Add the improvement to the arm that was chosen."""
        _, choice = _chosen(state, self.column("exploration", before), before.controller_key)
        first, second = before.estimate, after.estimate
        error = jnp.maximum(jnp.hypot(first.return_error, second.return_error), 1e-20)
        gain = jnp.nan_to_num((second.mean_return - first.mean_return) / error, nan=-_LARGEST)
        gain = jnp.clip(gain, -_LARGEST, _LARGEST)[:, None, None]
        kept = 1.0 - 1.0 / self.column("window", before)[..., None]
        return BanditState(state.arms, hyperparameters, kept * state.pulls + choice, kept * state.gains + choice * gain)


@jax.jit
def _chosen(state: BanditState, exploration: Array, key: Array) -> tuple[Array, Array]:
    """Return the next values, and the chosen arm as a one-hot array (learners, coordinates, arms)."""

    def best(pulls: Array, gains: Array, weight: Array, key: Array) -> Array:
        """Mark the largest upper confidence bound along the last axis; arms without pulls come first, in random order."""
        safe = jnp.maximum(pulls, 1e-6)
        bound = gains / safe + weight * jnp.sqrt(jnp.log1p(jnp.sum(pulls, -1, keepdims=True)) / safe)
        bound = jnp.where(pulls > 1e-6, bound, 1e9 + 1e9 * jax.random.uniform(key, pulls.shape, jnp.float32))
        return jax.nn.one_hot(jnp.argmax(bound, -1), pulls.shape[-1], dtype=jnp.float32)

    which, value = jax.random.split(key)
    varied = best(jnp.sum(state.pulls, -1), jnp.sum(state.gains, -1), exploration, which)
    choice = varied[..., None] * best(state.pulls, state.gains, exploration[..., None], value)
    return jnp.where(varied > 0.0, jnp.sum(choice * state.arms, -1), state.current), choice
