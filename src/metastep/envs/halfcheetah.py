"""HalfCheetah that has to run at a goal velocity on MJX, and the choice between the two engines.

See `metastep.envs.host.halfcheetah` for the task. Here the physics are JAX in float32: made for GPUs with tens of thousands of
episodes at once. On a CPU the same program is 25 to 100 times slower than the C engine. On a GPU the order of its sums is not
fixed, and the motion is chaotic: the same key gives the same tasks and starts, but not the same episodes to the bit.
"""

import contextlib
import dataclasses
import io
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from metastep.contexts import ContextSpace
from metastep.envs.base import Context, Step
from metastep.envs.host.halfcheetah import (
    GOAL_VELOCITY,
    NUM_JOINTS,
    NUM_MOTORS,
    CostOf,
    HalfCheetahVel,
    check_cost,
    load_model,
)
from metastep.envs.planar import CheetahState, Scalars, advance, read_model
from metastep.errors import InputError
from metastep.noise import to_uniform
from metastep.registry import check_options

Engine = Literal["auto", "c", "mjx", "planar"]

_OF_THE_ENGINE = {"of": "engine"}  # these do not make it another environment
_OPTIONS, _HIDDEN = "env.options", ("context_space",)


class _Physics(NamedTuple):
    model: Any  # mjx.Model
    data: Any  # mjx.Data, a template
    step: Any  # mjx.step
    rest: tuple[float, ...]  # initial positions
    timestep: float


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
    return _Physics(model, data, mjx.step, tuple(map(float, host_model.qpos0)), float(options.timestep))


@dataclass(frozen=True)
class HalfCheetahVelMJX:
    """Run at the goal velocity; float32 physics in JAX, for GPUs.

    Args:
        frame_skip, control_cost, cost_of, reset_scale: as of `HalfCheetahVel`.
        iterations, line_search: most iterations of the constraint solver and of its line search. The model's own are 100
            and 50; 4 and 8 are three times faster, because a batch waits for its slowest episode, and just as near to the
            C engine (`benchmarks/cheetah.py --gpu`). With 2 and 4 the returns are off.
        allow_cpu: MJX on a CPU is refused unless this is set.
    """

    context_space: ContextSpace = GOAL_VELOCITY
    frame_skip: int = 5
    control_cost: float = 0.05
    cost_of: CostOf = "clipped"
    reset_scale: float = 0.1
    iterations: int = field(default=4, metadata=_OF_THE_ENGINE)
    line_search: int = field(default=8, metadata=_OF_THE_ENGINE)
    allow_cpu: bool = field(default=False, metadata=_OF_THE_ENGINE)

    name: ClassVar[str] = "halfcheetah"
    packages: ClassVar[tuple[str, ...]] = (*HalfCheetahVel.packages, "mujoco-mjx")
    num_observations, num_actions = 2 * NUM_JOINTS - 1, NUM_MOTORS
    reset_noise, step_noise = 2 * NUM_JOINTS, 0

    def __post_init__(self) -> None:
        check_cost(self.cost_of)
        for option in ("frame_skip", "iterations", "line_search"):
            value = getattr(self, option)
            if value < 1:
                raise InputError(f"env.{option}: {value} must be at least 1.")

    def reset(self, context: Context, noise: Scalars) -> CheetahState:
        # Here and not on construction: a run of a GPU can be looked at anywhere, as long as nothing is simulated.
        if not self.allow_cpu and jax.default_backend() == "cpu":
            raise InputError(
                "env.engine: 'mjx' is 25 to 100 times slower than the C engine on a CPU and may seem to hang, "
                "allowed here are 'c' and 'auto' (or allow_cpu = true)."
            )
        rest = _physics(self.iterations, self.line_search).rest
        spread = (to_uniform(normal, -self.reset_scale, self.reset_scale) for normal in noise[:NUM_JOINTS])
        position = tuple(at + offset for at, offset in zip(rest, spread, strict=True))
        velocity = tuple(self.reset_scale * normal for normal in noise[NUM_JOINTS:])
        return CheetahState(position, velocity, tuple(jnp.zeros_like(speed) for speed in velocity))

    def observe(self, context: Context, state: CheetahState) -> Scalars:
        """Positions without the forward one, then velocities."""
        return (*state.position[1:], *state.velocity)

    def step(self, context: Context, state: CheetahState, action: Scalars, noise: Scalars) -> Step:
        physics = _physics(self.iterations, self.line_search)
        wanted = jnp.stack(action)
        torque = jnp.clip(wanted, -1.0, 1.0)
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
        velocity = (after.position[0] - state.position[0]) / (physics.timestep * self.frame_skip)
        paid = torque if self.cost_of == "clipped" else wanted
        reward = -jnp.abs(velocity - context.goal_velocity) - self.control_cost * jnp.sum(paid**2)
        return Step(after, reward, jnp.bool_(False))


@dataclass(frozen=True)
class HalfCheetahVelPlanar:
    """Run at the goal velocity; float32 physics in JAX, written for this model (`metastep.envs.planar`).

    Args:
        frame_skip, control_cost, cost_of, reset_scale: as of `HalfCheetahVel`.
        iterations: of the constraint solver in every physics step. Of a million steps of wild motion one is not solved to
            rounding by six, 26 by five and 380 by four.
    """

    context_space: ContextSpace = GOAL_VELOCITY
    frame_skip: int = 5
    control_cost: float = 0.05
    cost_of: CostOf = "clipped"
    reset_scale: float = 0.1
    iterations: int = field(default=6, metadata=_OF_THE_ENGINE)

    name: ClassVar[str] = "halfcheetah"
    packages: ClassVar[tuple[str, ...]] = HalfCheetahVel.packages  # the model comes from them
    num_observations, num_actions = 2 * NUM_JOINTS - 1, NUM_MOTORS
    reset_noise, step_noise = 2 * NUM_JOINTS, 0

    def __post_init__(self) -> None:
        check_cost(self.cost_of)
        for option in ("frame_skip", "iterations"):
            value = getattr(self, option)
            if value < 1:
                raise InputError(f"env.{option}: {value} must be at least 1.")

    def reset(self, context: Context, noise: Scalars) -> CheetahState:
        spread = (to_uniform(normal, -self.reset_scale, self.reset_scale) for normal in noise[:NUM_JOINTS])
        position = tuple(at + offset for at, offset in zip(read_model().start, spread, strict=True))
        velocity = tuple(self.reset_scale * normal for normal in noise[NUM_JOINTS:])
        return CheetahState(position, velocity, tuple(jnp.zeros_like(speed) for speed in velocity))

    def observe(self, context: Context, state: CheetahState) -> Scalars:
        """Positions without the forward one, then velocities."""
        return (*state.position[1:], *state.velocity)

    def step(self, context: Context, state: CheetahState, action: Scalars, noise: Scalars) -> Step:
        cheetah = read_model()
        torque = tuple(jnp.clip(wanted, -1.0, 1.0) for wanted in action)
        after = advance(cheetah, state, torque, self.frame_skip, self.iterations)
        velocity = (after.position[0] - state.position[0]) / (cheetah.timestep * self.frame_skip)
        paid = torque if self.cost_of == "clipped" else action
        cost = self.control_cost * sum(force**2 for force in paid)
        return Step(after, -jnp.abs(velocity - context.goal_velocity) - cost, jnp.bool_(False))


def half_cheetah(engine: Engine = "auto", **options: Any) -> HalfCheetahVel | HalfCheetahVelMJX | HalfCheetahVelPlanar:
    """HalfCheetah on MuJoCo's C engine, on the planar one or on MJX; "auto" is planar where JAX runs on a GPU and C otherwise.

    All start every episode alike and differ by the rounding of float32 (see the tests for how much). "auto" takes the
    options of all and leaves out those of the engines it does not take.
    """
    kinds: dict[str, type[HalfCheetahVel | HalfCheetahVelMJX | HalfCheetahVelPlanar]]
    kinds = {"c": HalfCheetahVel, "mjx": HalfCheetahVelMJX, "planar": HalfCheetahVelPlanar}
    if engine not in ("auto", *kinds):
        raise InputError(f"env.engine: {engine!r} must be auto, c, mjx or planar.")
    if engine != "auto":
        kind = kinds[engine]
        check_options(
            f"halfcheetah on engine {engine!r}", options, kind, field=_OPTIONS, more=("engine",), hidden=_HIDDEN
        )
        return kind(**options)
    known = {kind: {entry.name for entry in dataclasses.fields(kind)} for kind in kinds.values()}
    kind = kinds["c" if jax.default_backend() == "cpu" else "planar"]
    others = set().union(*known.values()) - known[kind]
    check_options("halfcheetah", options, kind, field=_OPTIONS, more=("engine", *sorted(others)), hidden=_HIDDEN)
    return kind(**{name: value for name, value in options.items() if name not in others})
