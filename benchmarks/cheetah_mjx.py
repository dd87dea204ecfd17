"""HalfCheetah on MJX (the package mujoco-mjx), a peer of the planar engine: the same task, starts and observations."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from metastep.envs.base import Context, Step
from metastep.envs.halfcheetah import HalfCheetahVelPlanar
from metastep.envs.host.halfcheetah import load_model
from metastep.envs.planar import CheetahState, Scalars


class _Physics(NamedTuple):
    model: Any  # mjx.Model
    data: Any  # mjx.Data, a template
    step: Any  # mjx.step


@lru_cache(maxsize=8)
def _physics(iterations: int, line_search: int) -> _Physics:
    host_model = load_model()
    # MJX prints on import that an engine it does not need here is missing.
    with contextlib.redirect_stdout(io.StringIO()):
        from mujoco import mjx
    options = host_model.opt
    kept = options.iterations, options.ls_iterations
    try:
        options.iterations, options.ls_iterations = iterations, line_search
        # The first call may come from within a trace, but what is kept must be plain arrays.
        with jax.ensure_compile_time_eval(), jax.numpy_dtype_promotion("standard"):
            model, data = mjx.put_model(host_model, impl="jax"), mjx.make_data(host_model, impl="jax")
    finally:
        options.iterations, options.ls_iterations = kept
    return _Physics(model, data, mjx.step)


@dataclass(frozen=True)
class HalfCheetahVelMJX(HalfCheetahVelPlanar):
    """Run at the goal velocity, on MJX.

    Args:
        iterations, line_search: most iterations of the constraint solver and of its line search. The model's own are 100
            and 50; 4 and 8 are three times faster and just as near to the C engine. With 2 and 4 the returns are off.
    """

    iterations: int = 4
    line_search: int = 8

    def step(self, context: Context, state: CheetahState, action: Scalars, noise: Scalars) -> Step:
        physics = _physics(self.iterations, self.line_search)
        torque = jnp.clip(jnp.stack(action), -1.0, 1.0)
        # MJX relies on JAX's standard promotion of types; GPUs must not round the factors of its products to 10 bits.
        with jax.numpy_dtype_promotion("standard"), jax.default_matmul_precision("highest"):
            start = physics.data.replace(
                qpos=jnp.stack(state.position),
                qvel=jnp.stack(state.velocity),
                qacc_warmstart=jnp.stack(state.warmstart),
                ctrl=torque,
            )
            end = lax.fori_loop(0, self.frame_skip, lambda _, data: physics.step(physics.model, data), start)
        after = CheetahState(tuple(end.qpos), tuple(end.qvel), tuple(end.qacc_warmstart))
        velocity = (end.qpos[0] - state.position[0]) / (load_model().opt.timestep * self.frame_skip)
        reward = -jnp.abs(velocity - context.goal_velocity) - self.control_cost * jnp.sum(torque**2)
        return Step(after, reward, jnp.bool_(False))
