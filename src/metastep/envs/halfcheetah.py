"""HalfCheetah that has to run at a goal velocity in JAX, and the choice between the two engines.

See `metastep.envs.host.halfcheetah` for the task and `metastep.envs.planar` for the physics, which are those of the C engine in
float32. The motion is chaotic: what float32 rounds away grows to other episodes within some tens of steps, with the same
distribution.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from metastep._core.errors import InputError
from metastep._core.numerics import to_uniform
from metastep._core.registry import check_options
from metastep.envs.base import Context, Step
from metastep.envs.contexts import ContextSpace
from metastep.envs.host.halfcheetah import GOAL_VELOCITY, NUM_JOINTS, NUM_MOTORS, CostOf, HalfCheetahVel, check_cost
from metastep.envs.planar import CheetahState, Scalars, advance, read_model

Engine = Literal["auto", "c", "planar"]

_OF_THE_ENGINE = {"of": "engine"}  # these do not make it another environment
_OPTIONS, _HIDDEN = "env.options", ("context_space",)


@dataclass(frozen=True)
class HalfCheetahVelPlanar:
    """Run at the goal velocity; float32 physics in JAX, written for this model (`metastep.envs.planar`).

    Args:
        frame_skip, control_cost, cost_of, reset_scale: as of `HalfCheetahVel`.
        iterations: of the constraint solver in every physics step. Of a million steps with random torques four leave 101 in
            which one more would move the accelerations by a thousandth, five leave 5 and six leave 1; eight leave none, but take
            a third more time.
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


def half_cheetah(engine: Engine = "auto", **options: Any) -> HalfCheetahVel | HalfCheetahVelPlanar:
    """HalfCheetah on MuJoCo's C engine or on the planar one; "auto" is planar where JAX runs on a GPU and C otherwise.

    The two start every episode alike and differ by the rounding of float32 (see the tests for how much). "auto" takes the
    options of both and leaves out those of the engine it does not take.
    """
    kinds: dict[str, type[HalfCheetahVel | HalfCheetahVelPlanar]]
    kinds = {"c": HalfCheetahVel, "planar": HalfCheetahVelPlanar}
    if engine not in ("auto", *kinds):
        raise InputError(f"env.engine: {engine!r} must be auto, c or planar.")
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
