"""Settings of a controller: one number for all learners, or one for each so that a whole grid runs in lockstep."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep._core.errors import InputError
from metastep._core.settings import FLOAT32, fits_float32

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
    """The setting of every learner: (learners, 1)."""
    array = np.asarray(value, np.float32).reshape(-1, 1)
    if len(array) not in (1, num_learners):
        raise InputError(f"{field}: {len(array)} numbers, but a block has {num_learners} learners.")
    return jnp.broadcast_to(jnp.asarray(array), (num_learners, 1))
