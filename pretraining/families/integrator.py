"""Chains of integrators: steer a place by its speed, its acceleration or the change of that."""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, Step, to_uniform

DT = 0.1


class IntegratorState(NamedTuple):
    """For every axis the place and its derivatives, and the time."""

    axes: tuple[tuple[Array, ...], ...]
    time: Array


@dataclass(frozen=True)
class Integrator:
    """Follow a target that moves on a circle; a step pays minus the mean squared distance, less 0.01 times the squared action.

    Args:
        order: which derivative of the place the action is, up to `gain`.
        axes: how many there are.
        ends: whether being 3 away from the origin along an axis, where place and derivatives are cut off, ends and costs 20.
    """

    context_space: ContextSpace = ContextSpace(
        ("gain", "drag", "radius", "pace"), (1.0, 0.0, 0.0, 0.2), (3.0, 1.0, 0.8, 1.0)
    )
    order: int = 2
    axes: int = 1
    ends: bool = False

    name, packages, step_noise, action_range = "integrator", (), 0, (-1.0, 1.0)
    num_observations = property(lambda self: self.axes * (self.order + 1))
    num_actions = property(lambda self: self.axes)
    reset_noise = property(lambda self: self.axes)

    def reset(self, context: Context, noise: tuple[Array, ...]) -> IntegratorState:
        """At rest."""
        rest = (jnp.zeros_like(noise[0]),) * (self.order - 1)
        return IntegratorState(
            tuple((to_uniform(normal, -1.0, 1.0), *rest) for normal in noise), jnp.zeros_like(noise[0])
        )

    def targets(self, context: Context, time: Array) -> list[Array]:
        """Return where the place should be along each axis."""
        return [context.radius * jnp.sin(context.pace * time + 1.5 * axis) for axis in range(self.axes)]

    def observe(self, context: Context, state: IntegratorState) -> tuple[Array, ...]:
        """Place, derivatives and the way to the target, axis by axis."""
        targets = self.targets(context, state.time)
        return tuple(x for axis, target in zip(state.axes, targets, strict=True) for x in (*axis, target - axis[0]))

    def step(
        self, context: Context, state: IntegratorState, action: tuple[Array, ...], noise: tuple[Array, ...]
    ) -> Step:
        pushes = [jnp.clip(part, *self.action_range) for part in action]
        axes = []
        for axis, push in zip(state.axes, pushes, strict=True):
            rates = *axis[1:], context.gain * push - context.drag * axis[-1]
            axes.append(tuple(jnp.clip(value + DT * rate, -3.0, 3.0) for value, rate in zip(axis, rates, strict=True)))
        time = state.time + DT
        targets = self.targets(context, time)
        missed = sum(((axis[0] - target) ** 2 for axis, target in zip(axes, targets, strict=True)), jnp.float32(0.0))
        reward = -(missed + 0.01 * sum(push**2 for push in pushes)) / self.axes
        after = IntegratorState(tuple(axes), time)
        if not self.ends:
            return Step(after, reward, jnp.bool_(False))
        is_out = jnp.any(jnp.stack([jnp.abs(axis[0]) >= 3.0 for axis in axes]))
        return Step(after, jnp.where(is_out, -20.0, reward), is_out)
