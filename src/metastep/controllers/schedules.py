"""Step sizes without a model: constant, decaying (paper, appendix) or adapted; a setting may differ between learners."""

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep._core.errors import InputError
from metastep._core.settings import FLOAT32, fits_float32
from metastep.mdp import EpisodicMetaMDP, Learners, MetaMDP, whole_episodes
from metastep.mdp.controller import Controller, require_one_coordinate
from metastep.rules import Rule, unusable

PerLearner = float | NDArray[np.floating[Any]]


def check(field: str, value: PerLearner, *, least: float | None = None) -> None:
    """Refuse a setting that is not finite, or below `least`."""
    array = np.asarray(value)
    if not np.issubdtype(array.dtype, np.number) or array.ndim > 1 or not np.all(np.isfinite(array)):
        raise InputError(f"{field}: {value!r} must be a finite number, or one for each learner.")
    if not all(map(fits_float32, np.unique(array))):
        raise InputError(f"{field}: {value!r} {FLOAT32}.")
    if least is not None and np.any(array < least):
        raise InputError(f"{field}: {float(array.min()):g} must be at least {least:g}.")


def column(field: str, value: PerLearner, num_learners: int) -> Array:
    """Return the setting of every learner: (learners, 1)."""
    array = np.asarray(value, np.float32).reshape(-1, 1)
    if len(array) not in (1, num_learners):
        raise InputError(f"{field}: {len(array)} numbers, but a block has {num_learners} learners.")
    return jnp.broadcast_to(jnp.asarray(array), (num_learners, 1))


class _Schedule(Controller):
    """The state is a number for each learner, (learners, 1), at first that of the field `first`; it is the proposal."""

    first: ClassVar[str] = "stepsize"
    least: ClassVar[dict[str, float]] = {}  # smallest value of settings that have one

    def __post_init__(self) -> None:
        for entry in fields(self):  # type: ignore[arg-type]  # those that have settings are dataclasses
            check(self._field(entry.name), getattr(self, entry.name), least=self.least.get(entry.name))

    def init(self, mdp: MetaMDP, learners: Learners) -> Any:
        require_one_coordinate(self.name, mdp)
        return self._column(self.first, learners)

    def propose(self, state: Any, learners: Learners) -> Array:
        return state

    def _field(self, name: str) -> str:
        return f"{self.name.replace('-', '_')}.{name}"

    def _column(self, name: str, learners: Learners) -> Array:
        return column(self._field(name), getattr(self, name), learners.theta.shape[0])


@dataclass(frozen=True, eq=False)
class Fixed(_Schedule):
    """h_t = h; with Adam or RMSprop as the rule it is their learning rate.

    Args:
        stepsize: h, for all learners or one for each; it may lie outside the space H.
    """

    stepsize: PerLearner

    name: ClassVar[str] = "fixed"


@dataclass(frozen=True, eq=False)
class RandomConstant(_Schedule):
    """Every learner draws one step size from U(H) and keeps it: the training data of `SingleAction`."""

    name: ClassVar[str] = "random-constant"

    def init(self, mdp: MetaMDP, learners: Learners) -> Array:
        return mdp.space.sample(learners.controller_key, learners.theta.shape[0])


@dataclass(frozen=True, eq=False)
class Decay(_Schedule):
    """h_t = alpha / t, t = 1, 2, ...

    Args:
        alpha: the first step size; it may lie outside the space H, as the paper's choice for Minigolf does.
    """

    alpha: PerLearner

    name: ClassVar[str] = "decay"
    first: ClassVar[str] = "alpha"

    def propose(self, state: Array, learners: Learners) -> Array:
        return state / (learners.update.astype(jnp.float32) + 1.0)


@dataclass(frozen=True, eq=False)
class GeometricDecay(_Schedule):
    """h_t = alpha h_{t-1}.

    Args:
        stepsize: h of the first update.
        alpha: the factor; above 1 the step sizes grow.
    """

    stepsize: PerLearner
    alpha: PerLearner

    name: ClassVar[str] = "geometric-decay"
    least: ClassVar[dict[str, float]] = {"alpha": 0.0}

    def observe(self, state: Array, before: Learners, hyperparameters: Array, after: Learners) -> Array:
        return state * self._column("alpha", before)


@dataclass(frozen=True, eq=False)
class LinearAnnealing(_Schedule):
    """h_t = h (1 - t / T), t = 0, ..., T - 1.

    Args:
        stepsize: h of the first update.
        num_updates: T; in an experiment that of the comparison.
    """

    stepsize: PerLearner
    num_updates: int

    name: ClassVar[str] = "linear-annealing"
    least: ClassVar[dict[str, float]] = {"num_updates": 1.0}

    def propose(self, state: Array, learners: Learners) -> Array:
        """Anneal; updates after the last planned one get the same step."""
        last = float(self.num_updates - 1) / self.num_updates
        return state * self._share(jnp.minimum(learners.update.astype(jnp.float32) / self.num_updates, last))

    def _share(self, done: Array) -> Array:
        return 1.0 - done


@dataclass(frozen=True, eq=False)
class CosineAnnealing(LinearAnnealing):
    """h_t = h (1 + cos(pi t / T)) / 2, t = 0, ..., T - 1.

    Args:
        stepsize: h of the first update.
        num_updates: T; in an experiment that of the comparison.
    """

    name: ClassVar[str] = "cosine-annealing"

    def _share(self, done: Array) -> Array:
        return 0.5 * (1.0 + jnp.cos(math.pi * done))


@dataclass(frozen=True, eq=False)
class KLAdaptive(_Schedule):
    """h / 1.5 after an update whose KL divergence was above twice the target, 1.5 h after one below half of it.

    The usual rule of PPO implementations; the divergence is the mean KL between the policies before and after an update.

    Args:
        stepsize: h of the first update; like all others it may lie outside the space H.
        target: the divergence aimed at.
        lowest, highest: smallest and largest h, of the first update too; rsl_rl has 1e-5 and 1e-2 for learning rates, rl_games
            1e-6 and 1e-2.
    """

    stepsize: PerLearner
    target: PerLearner
    lowest: PerLearner = 0.0
    highest: PerLearner = 1e9

    name: ClassVar[str] = "kl-adaptive"
    least: ClassVar[dict[str, float]] = dict.fromkeys(("stepsize", "target", "lowest", "highest"), 0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if np.size(self.lowest) in (1, np.size(self.highest)) or np.size(self.highest) == 1:  # else `init` refuses them
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
        target, divergence = self._column("target", before), after.previous.divergence[:, None]
        factor = jnp.where(divergence > 2.0 * target, 1.0 / 1.5, jnp.where(divergence < 0.5 * target, 1.5, 1.0))
        moved = jnp.any(after.theta != before.theta, axis=1, keepdims=True)  # an update that was not made says nothing
        return self._clipped(state * jnp.where(moved, factor, 1.0), before)

    def _clipped(self, stepsize: Array, learners: Learners) -> Array:
        return jnp.clip(stepsize, self._column("lowest", learners), self._column("highest", learners))


class MetagradState(NamedTuple):
    """The next step size."""

    mdp: EpisodicMetaMDP
    stepsize: Array  # (learners, 1)


def cosine(first: Array, second: Array) -> Array:
    """Return the cosine of the angle between rows (learners, parameters), 0 where one has no direction: (learners, 1)."""

    def unit(direction: Array) -> Array:
        usable = ~unusable(direction)[:, None]
        safe = jnp.where(usable, direction, 1.0)
        scaled = safe / jnp.max(jnp.abs(safe), axis=-1, keepdims=True)  # squares of large numbers would overflow
        return jnp.where(usable, scaled / jnp.sqrt(jnp.sum(scaled * scaled, axis=-1, keepdims=True)), 0.0)

    return jnp.clip(jnp.sum(unit(first) * unit(second), axis=-1, keepdims=True), -1.0, 1.0)


@dataclass(frozen=True, eq=False)
class Metagrad(_Schedule):
    """Meta-gradient on the step size (paper, appendix; after Xu, van Hasselt and Silver 2018).

    h' = clip(h + beta cos(g', g), H), g the direction of the rule: the trace mu is 0, as in the paper. dj(theta + h g/||g||)/dh
    is the component of the next gradient along g; the paper prints a minus sign, the convention of descent.

    Args:
        stepsize: h of the first update, clipped to H like all others.
        beta: the meta step size.
    """

    stepsize: PerLearner
    beta: PerLearner

    name: ClassVar[str] = "metagrad"

    def init(self, mdp: MetaMDP, learners: Learners) -> MetagradState:
        first = super().init(mdp, learners)
        return MetagradState(whole_episodes(mdp, "controller: 'metagrad'"), mdp.space.clip(first))

    def propose(self, state: MetagradState, learners: Learners) -> Array:
        return state.stepsize

    def observe(self, state: MetagradState, before: Learners, hyperparameters: Array, after: Learners) -> MetagradState:
        """Grow while successive directions agree, shrink when they oppose."""
        direction = state.mdp.rule.direction
        agreement = cosine(direction(before.estimate), direction(after.estimate))
        stepsize = state.stepsize + self._column("beta", before) * agreement
        return state._replace(stepsize=state.mdp.space.clip(stepsize))
