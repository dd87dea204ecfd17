"""An actor and a critic, two networks in one flat theta with named parts, and the distributions of the next action.

All but `initial` is written for one learner, theta (parameters,), to be batched with `jax.vmap`. Distributions take any leading
axes; the last one holds the numbers of an action, or the choices.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep._core.numerics import to_uniform
from metastep._core.settings import Count, Float, Layers, check_fields

Parts = dict[str, Array]

_LOG_ROOT_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class Normal(NamedTuple):
    """Independent normal numbers, with standard deviations that are the same in all states."""

    mean: Array  # (..., actions)
    log_std: Array  # (actions,)

    def sample(self, normals: Array) -> Array:
        """Draw actions (..., actions) from as many standard normals."""
        return self.mean + jnp.exp(self.log_std) * normals

    def log_density(self, action: Array) -> Array:
        """Return log pi(action): (...,)."""
        standard = (action - self.mean) * jnp.exp(-self.log_std)
        return jnp.sum(-0.5 * standard**2 - self.log_std - _LOG_ROOT_TWO_PI, axis=-1)

    def entropy(self) -> Array:
        """Return the entropy in nats: (...,)."""
        return jnp.broadcast_to(jnp.sum(self.log_std + 0.5 + _LOG_ROOT_TWO_PI), self.mean.shape[:-1])

    def divergence(self, other: Any) -> Array:
        """Return KL(self, other), the other of the same kind: (...,)."""
        shift = (self.mean - other.mean) * jnp.exp(-other.log_std)
        ratio = self.log_std - other.log_std
        return jnp.sum(0.5 * (jnp.exp(2.0 * ratio) + shift**2 - 1.0) - ratio, axis=-1)


class Categorical(NamedTuple):
    """One of several choices; an action is its position, in an axis of length 1."""

    logits: Array  # (..., choices)

    @property
    def _log_shares(self) -> Array:
        return jax.nn.log_softmax(self.logits, axis=-1)

    def sample(self, normals: Array) -> Array:
        """Draw choices (..., 1): a uniform number, from the normal, falls into one of the shares."""
        bounds = jnp.cumsum(jnp.exp(self._log_shares), axis=-1)[..., :-1]
        return jnp.sum(to_uniform(normals, 0.0, 1.0) > bounds, axis=-1, keepdims=True, dtype=jnp.int32)

    def log_density(self, action: Array) -> Array:
        """Compare rather than index: the derivative needs no scatter, and there are few choices."""
        chosen = action == jnp.arange(self.logits.shape[-1], dtype=jnp.int32)
        return jnp.sum(jnp.where(chosen, self._log_shares, 0.0), axis=-1)

    def entropy(self) -> Array:
        """Return the entropy in nats: (...,)."""
        log_shares = self._log_shares
        return -jnp.sum(jnp.exp(log_shares) * log_shares, axis=-1)

    def divergence(self, other: Any) -> Array:
        """Return KL(self, other), the other of the same kind: (...,)."""
        log_shares = self._log_shares
        return jnp.sum(jnp.exp(log_shares) * (log_shares - other._log_shares), axis=-1)


Distribution = Normal | Categorical


@dataclass(frozen=True)
class ActorCritic:
    """Two networks: one for the next action, normal or among choices, and one for the value of a state.

    theta has the actor, each layer's weights (inputs first) and bias, then log standard deviations of numbers, then the critic.

    Args:
        hidden: sizes of the hidden layers of either network.
        log_std: of numbers, logarithm of their first standard deviation, which is learned and the same in all states.
        activation: of the hidden layers.
    """

    num_observations: Count  # numbers the policy sees
    num_actions: Count  # numbers it chooses
    num_choices: Count | None = None  # of a discrete action; None where actions are numbers
    hidden: Layers = (64, 64)
    log_std: Float = 0.0
    activation: Literal["tanh", "relu"] = field(default="tanh", metadata={"newer": "0.3"})

    def __post_init__(self) -> None:
        check_fields(self, "policy")

    @property
    def is_discrete(self) -> bool:
        """Whether an action is one of several choices."""
        return self.num_choices is not None

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The parts of theta by name, in its order."""
        found: dict[str, tuple[int, ...]] = {}
        for network, outputs in (("actor", self.num_choices or self.num_actions), ("critic", 1)):
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

    @cached_property
    def is_critic(self) -> NDArray[np.bool_]:
        """Which entries of theta are the critic's."""
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        return np.repeat([name.startswith("critic.") for name in self.shapes], sizes)

    def split(self, theta: Array) -> Parts:
        """Return the parts of theta (..., parameters) by name, each (..., *shape)."""
        ends = np.cumsum([0, *map(math.prod, self.shapes.values())]).tolist()
        named = zip(self.shapes.items(), (theta[..., start:end] for start, end in pairwise(ends)), strict=True)
        return {name: part.reshape(*theta.shape[:-1], *shape) for (name, shape), part in named}

    def join(self, parts: Parts) -> Array:
        """Invert `split`."""
        flat = [parts[name].reshape(*parts[name].shape[: -len(shape)], -1) for name, shape in self.shapes.items()]
        return jnp.concatenate(flat, axis=-1)

    def initial(self, key: Array, num: int) -> Array:
        """Draw first parameters of `num` learners, (num, parameters): orthogonal weights, biases of zero."""
        parts = {}
        for index, (name, shape) in enumerate(self.shapes.items()):
            network, _, kind = name.partition(".")
            if not kind.endswith("weight"):
                parts[name] = jnp.full((num, *shape), self.log_std if name == "log_std" else 0.0, jnp.float32)
                continue
            gain = math.sqrt(2.0)
            if kind.startswith(f"{len(self.hidden)}."):  # the last layer
                gain = 0.01 if network == "actor" else 1.0  # so that all actions begin alike
            draws = jax.random.normal(jax.random.fold_in(key, index), (num, *shape), jnp.float32)
            is_tall = shape[0] >= shape[1]
            columns, triangle = jnp.linalg.qr(draws if is_tall else jnp.swapaxes(draws, -1, -2))
            signs = jnp.sign(jnp.diagonal(triangle, axis1=-2, axis2=-1))  # without them the distribution is not even
            columns = np.float32(gain) * (columns * signs[..., None, :])
            parts[name] = columns if is_tall else jnp.swapaxes(columns, -1, -2)
        return self.join(parts)

    def act(self, parts: Parts, observation: Array) -> Distribution:
        """Return the distribution of the action at (..., observations)."""
        outputs = self._forward("actor", parts, observation)
        return Categorical(outputs) if self.is_discrete else Normal(outputs, parts["log_std"])

    def value(self, parts: Parts, observation: Array) -> Array:
        """Return the critic's values of states (..., observations): (...,)."""
        return self._forward("critic", parts, observation)[..., 0]

    def _forward(self, network: str, parts: Parts, observation: Array) -> Array:
        values, last = observation, len(self.hidden)
        activate = jnp.tanh if self.activation == "tanh" else jax.nn.relu
        for index in range(last + 1):
            values = values @ parts[f"{network}.{index}.weight"] + parts[f"{network}.{index}.bias"]
            values = values if index == last else activate(values)
        return values
