"""Serve one of three queues at a time."""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, Step, to_uniform

MOST = 10.0  # in a queue; more are sent away


class QueuesState(NamedTuple):
    """How many wait."""

    first: Array
    second: Array
    third: Array


@dataclass(frozen=True)
class Queues:
    """Choose the queue to serve; a step pays minus a tenth of the sum of those who wait, each times the cost of its queue.

    Somebody arrives at queue i with the probability `arrival_i`, and a served one leaves with `service_i`.
    """

    context_space: ContextSpace = ContextSpace(
        ("arrival_1", "arrival_2", "arrival_3", "service_1", "service_2", "service_3", "cost_1", "cost_2"),
        (0.1, 0.1, 0.1, 0.4, 0.4, 0.4, 0.2, 0.2),
        (0.35, 0.35, 0.35, 1.0, 1.0, 1.0, 3.0, 3.0),
    )

    name, packages = "queues", ()
    num_observations, num_actions, reset_noise, step_noise = 3, 1, 3, 4
    num_choices = 3

    def reset(self, context: Context, noise: tuple[Array, ...]) -> QueuesState:
        return QueuesState(*(jnp.floor(to_uniform(normal, 0.0, 5.0)) for normal in noise))

    def observe(self, context: Context, state: QueuesState) -> tuple[Array, ...]:
        return tuple(waiting / MOST for waiting in state)

    def step(self, context: Context, state: QueuesState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        arrivals, services = (
            (context.arrival_1, context.arrival_2, context.arrival_3),
            (context.service_1, context.service_2, context.service_3),
        )
        *chances, luck = (to_uniform(normal, 0.0, 1.0) for normal in noise)
        waiting = []
        for number, (now, rate, skill, chance) in enumerate(zip(state, arrivals, services, chances, strict=True)):
            leaves = (action[0] == number) & (luck < skill)
            come = jnp.where(chance < rate, 1.0, 0.0)
            waiting.append(jnp.clip(now - leaves.astype(jnp.float32) + come, 0.0, MOST))
        costs = (context.cost_1, context.cost_2, 1.0)
        reward = -0.1 * sum(cost * each for cost, each in zip(costs, waiting, strict=True))
        return Step(QueuesState(*waiting), reward, jnp.bool_(False))
