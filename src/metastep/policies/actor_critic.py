"""An actor and a critic: two tanh networks in one flat theta with named parts.

Everything but `initial` is written for one learner, theta (parameters,); learners are batched with `jax.vmap`.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from metastep._core.errors import InputError
from metastep._core.settings import Count, Float, check_fields
from metastep.policies.distributions import Categorical, Distribution, Normal

Parts = dict[str, Array]

_HIDDEN_GAIN = math.sqrt(2.0)
_LAST_GAINS = {"actor": 0.01, "critic": 1.0}


@dataclass(frozen=True)
class ActorCritic:
    """Two tanh networks: one for the next action, normal or among choices, and one for the value of a state.

    theta begins with the actor, each layer's weights (inputs first) and bias, then the logarithms of the standard deviations
    where actions are numbers, then the critic.

    Args:
        num_observations: numbers the policy sees.
        num_actions: numbers it chooses.
        num_choices: of discrete actions, how many there are; None where actions are numbers.
        hidden: sizes of the hidden layers of either network.
        log_std: of numbers, logarithm of their first standard deviation, which is learned and the same in all states.
    """

    num_observations: Count
    num_actions: Count
    num_choices: Count | None = None
    hidden: tuple[int, ...] = (64, 64)
    log_std: Float = 0.0

    def __post_init__(self) -> None:
        check_fields(self, "policy")
        if not self.hidden or min(self.hidden) < 1:
            raise InputError(f"policy.hidden: {list(self.hidden)} must be one or more positive layer sizes.")

    @property
    def is_discrete(self) -> bool:
        """Whether an action is one of several choices."""
        return self.num_choices is not None

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The parts of theta by name, in its order."""
        networks = {"actor": self.num_choices or self.num_actions, "critic": 1}
        found: dict[str, tuple[int, ...]] = {}
        for network, outputs in networks.items():
            for index, (inputs, units) in enumerate(pairwise((self.num_observations, *self.hidden, outputs))):
                found[f"{network}.{index}.weight"] = inputs, units
                found[f"{network}.{index}.bias"] = (units,)
            if network == "actor" and not self.is_discrete:
                found["log_std"] = (self.num_actions,)
        return found

    @cached_property
    def num_parameters(self) -> int:
        """Length of theta."""
        return sum(map(math.prod, self.shapes.values()))

    def split(self, theta: Array) -> Parts:
        """Return the parts of theta (..., parameters) by name, each (..., *shape)."""
        found, start = {}, 0
        for name, shape in self.shapes.items():
            end = start + math.prod(shape)
            found[name] = theta[..., start:end].reshape(*theta.shape[:-1], *shape)
            start = end
        return found

    def join(self, parts: Parts) -> Array:
        """Invert `split`."""
        flat = [parts[name].reshape(*parts[name].shape[: -len(shape)], -1) for name, shape in self.shapes.items()]
        return jnp.concatenate(flat, axis=-1)

    def initial(self, key: Array, num: int) -> Array:
        """Draw first parameters of `num` learners, (num, parameters): orthogonal weights, biases of zero.

        The gain is the root of 2 in hidden layers, 0.01 for actions, so that all begin alike, and 1 for values.
        """
        parts = {}
        for index, (name, shape) in enumerate(self.shapes.items()):
            network, _, kind = name.partition(".")
            if not kind.endswith("weight"):
                value = self.log_std if network == "log_std" else 0.0
                parts[name] = jnp.full((num, *shape), value, jnp.float32)
                continue
            is_last = kind.startswith(f"{len(self.hidden)}.")
            gain = _LAST_GAINS[network] if is_last else _HIDDEN_GAIN
            draws = jax.random.normal(jax.random.fold_in(key, index), (num, *shape), jnp.float32)
            parts[name] = np.float32(gain) * _orthogonal(draws)
        return self.join(parts)

    def act(self, parts: Parts, observation: Array) -> Distribution:
        """Return the distribution of the action at (..., observations)."""
        outputs = self._forward("actor", parts, observation)
        return Categorical(outputs) if self.is_discrete else Normal(outputs, parts["log_std"])

    def value(self, parts: Parts, observation: Array) -> Array:
        """Return the critic's values of states (..., observations): (...,)."""
        return self._forward("critic", parts, observation)[..., 0]

    def _forward(self, network: str, parts: Parts, observation: Array) -> Array:
        values = observation
        for index in range(len(self.hidden) + 1):
            values = values @ parts[f"{network}.{index}.weight"] + parts[f"{network}.{index}.bias"]
            values = values if index == len(self.hidden) else jnp.tanh(values)
        return values


def _orthogonal(draws: Array) -> Array:
    """Turn matrices of normals (..., inputs, outputs) into uniformly distributed ones whose shorter side is orthonormal."""
    inputs, outputs = draws.shape[-2:]
    tall = draws if inputs >= outputs else jnp.swapaxes(draws, -1, -2)
    columns, triangle = jnp.linalg.qr(tall)
    signs = jnp.sign(jnp.diagonal(triangle, axis1=-2, axis2=-1))  # without them the distribution is not even
    columns = columns * signs[..., None, :]
    return columns if inputs >= outputs else jnp.swapaxes(columns, -1, -2)
