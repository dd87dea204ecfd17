"""One block of learners during a meta-episode: what Gymnasium's single and vector environments have in common."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box
from jax import Array
from numpy.typing import ArrayLike, NDArray

from metastep._core.errors import InputError
from metastep.features import make, meta_observation
from metastep.mdp import Learners, MetaMDP, Tasks
from metastep.mdp.blocks import Stream

ActionUnit = Literal["normalised", "stepsize"]
Floats = NDArray[np.float32]


def observation_space(mdp: MetaMDP) -> Box[np.float32]:
    """Whatever the features allow: the context within the bounds of the task distribution, the others any finite number."""
    bounds = [make(name).bounds(mdp) for name in mdp.observation]
    low, high = (np.concatenate([np.asarray(bound[end], np.float32) for bound in bounds]) for end in (0, 1))
    return Box(low, high, dtype=np.float32)


def action_space(mdp: MetaMDP, actions: ActionUnit) -> Box[np.float32]:
    """[-1, 1] along the scale of each hyperparameter, or the hyperparameters' own box."""
    if actions not in get_args(ActionUnit):
        raise InputError(f"actions: {actions!r} must be one of {', '.join(get_args(ActionUnit))}.")
    if actions == "normalised":
        return Box(-1.0, 1.0, (mdp.space.num_coordinates,), np.float32)
    return Box(np.asarray(mdp.space.low, np.float32), np.asarray(mdp.space.high, np.float32), dtype=np.float32)


class Moment(NamedTuple):
    """What the learners of a block show between two updates; learners first, on the host, never shared with JAX."""

    observation: Floats  # (learners, features), finite
    mean_return: Floats  # (learners,), as estimated, finite or not
    context: Floats  # (learners, coordinates)
    flagged: NDArray[np.bool_]  # (learners,): the estimate cannot be followed, the next update leaves theta as it is
    stepsize: Floats  # (learners, hyperparameters) of the update that led here, zero before the first

    def info(self) -> dict[str, NDArray[Any]]:
        """Everything but the observation."""
        return {name: value for name, value in self._asdict().items() if name != "observation"}


@partial(jax.jit, static_argnums=(0, 1))
def _hyperparameters(mdp: MetaMDP, actions: ActionUnit, values: Array) -> Array:
    if actions == "normalised":
        return mdp.space.from_unit((jnp.clip(values, -1.0, 1.0) + 1.0) / 2.0)
    return mdp.space.clip(values)


class MetaEpisode:
    """The learners of one block during one meta-episode: what `MetaEnv` and `MetaVectorEnv` have in common."""

    def __init__(self, mdp: MetaMDP, num_updates: int, actions: ActionUnit):
        if num_updates < 1:
            raise InputError(f"num_updates: {num_updates} must be at least 1.")
        self.mdp, self.num_updates, self.actions = mdp.with_budget(num_updates), num_updates, actions
        self.updates_left = 0
        self._learners: Learners
        self._moment: Moment

    def begin(self, rng: np.random.Generator, options: Mapping[str, Any] | None) -> Moment:
        """New tasks and policies, all of it from two draws, so that options change nothing else."""
        seed, block = (int(number) for number in rng.integers(2**31, size=2))
        tasks = _with_options(self.mdp, self.mdp.tasks(seed, Stream.TRAIN, block), options or {})
        self.updates_left = self.num_updates
        return self._show(self.mdp.begin(tasks), np.zeros(self._action_shape, np.float32))

    def update(self, actions: ArrayLike) -> tuple[Moment, Floats]:
        """One update of every learner, and its reward: (learners,)."""
        if not self.updates_left:
            raise ResetNeeded("The meta-episode is over, or none was begun: call reset() before step().")
        values = to_float32(actions, "action")
        if values.shape != self._action_shape or not np.all(np.isfinite(values)):
            raise InputError(
                f"action: {np.asarray(actions).tolist()} must be {self._action_shape[1]} finite number(s) for each learner."
            )
        chosen = _hyperparameters(self.mdp, self.actions, values)
        before = self._moment.mean_return
        moment = self._show(self.mdp.advance(self._learners, chosen), np.array(chosen))
        self.updates_left -= 1
        # A learner that diverged has no return to compare with; `flagged` and `mean_return` tell, the agent gets zero.
        with np.errstate(invalid="ignore", over="ignore"):
            improvement = moment.mean_return - before
        return moment, np.where(np.isfinite(improvement), improvement, np.float32(0.0))

    @property
    def _action_shape(self) -> tuple[int, int]:
        return self.mdp.block_size, self.mdp.space.num_coordinates

    def _show(self, learners: Learners, stepsize: Floats) -> Moment:
        shown = meta_observation(self.mdp, learners), learners.estimate.mean_return, learners.context, learners.flagged
        observation, mean_return, context, flagged = (np.array(array) for array in jax.device_get(shown))
        self._learners = learners
        self._moment = Moment(np.nan_to_num(observation), mean_return, context, flagged, stepsize)
        return self._moment


def _with_options(mdp: MetaMDP, tasks: Tasks, options: Mapping[str, Any]) -> Tasks:
    """Replace what `options` fixes: one row for all learners, or one for each."""
    for name in options:
        if name not in ("context", "theta"):
            raise InputError(f"options: {name!r} is unknown, allowed are 'context' and 'theta'.")
        field, num = f"options.{name}", mdp.block_size
        rows = np.atleast_2d(to_float32(options[name], field))
        if name == "context":
            rows = mdp.env.context_space.validate(rows, field)
        elif rows.shape[1:] != (mdp.num_parameters,) or not np.all(np.isfinite(rows)):
            raise InputError(f"{field}: {rows.tolist()} must be {mdp.num_parameters} finite numbers for each learner.")
        if len(rows) not in (1, num):
            raise InputError(f"{field}: got {len(rows)} rows, allowed is one or one for each learner ({num}).")
        tasks = tasks._replace(**{name: jnp.asarray(np.broadcast_to(rows, (num, rows.shape[1])))})
    return tasks


def to_float32(values: Any, field: str) -> Floats:
    """What the caller passed as `field`, as an array."""
    try:
        with np.errstate(over="ignore"):
            return np.asarray(values, np.float32)
    except (TypeError, ValueError):
        raise InputError(f"{field}: {values!r} must be an array of numbers.") from None
