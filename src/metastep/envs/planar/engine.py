"""One physics step: smooth forces, constraint forces by Newton's method, and Euler's method with implicit damping."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from metastep.envs.planar.chain import (
    Load,
    Pose,
    Scalar,
    Scalars,
    assemble,
    factorise,
    inertias,
    joint_forces,
    motions,
    pose_of,
    solve,
)
from metastep.envs.planar.constraints import Constraints, active_at, constraints_of
from metastep.envs.planar.model import NUM_SLIDES, Cheetah, Point


class CheetahState(NamedTuple):
    """What one physics step hands to the next; each a tuple of nine scalars."""

    position: Scalars
    velocity: Scalars
    warmstart: Scalars  # the last accelerations, where the constraint solver begins


class Problem(NamedTuple):
    """All that the accelerations of one step depend on."""

    pose: Pose
    constraints: Constraints
    smooth: list[Scalar]  # forces but for those of the constraints


def bias_forces(cheetah: Cheetah, pose: Pose, velocity: Scalars) -> list[Scalar]:
    """What it takes to move on with no acceleration of slides and hinges: against gravity, and round the curves."""
    loads: list[Load] = []
    hinges: list[Point] = []  # their accelerations
    spins = [motion.spin**2 for motion in motions(cheetah, pose, velocity)]
    for index, body in enumerate(cheetah.bodies):
        if body.parent is None:
            at = Point(0.0, cheetah.gravity)
        else:
            base, lever, turning = hinges[body.parent], pose.hinge[index], spins[body.parent]
            at = Point(base.x - turning * lever.x, base.z - turning * lever.z)
        hinges.append(at)
        centre = pose.centre[index]
        x, z = at.x - spins[index] * centre.x, at.z - spins[index] * centre.z
        loads.append(Load(body.mass * x, body.mass * z, 0.0).moved(centre))
    return joint_forces(cheetah, pose, loads)


def own_forces(cheetah: Cheetah, position: Scalars, velocity: Scalars, action: Scalars) -> list[Scalar]:
    """Springs, dampers and motors of the hinges."""
    torques: list[Scalar] = []
    motors = iter(action)
    for body, angle, speed in zip(cheetah.bodies, position[NUM_SLIDES:], velocity[NUM_SLIDES:], strict=True):
        torque: Scalar = 0.0 if body.gear is None else body.gear * next(motors)
        if body.stiffness or body.damping:
            torque = torque - body.stiffness * (angle - body.rest) - body.damping * speed
        torques.append(torque)
    return torques


def problem_of(cheetah: Cheetah, position: Scalars, velocity: Scalars, action: Scalars) -> Problem:
    """What is to be solved in a state."""
    pose = pose_of(cheetah, position)
    smooth = [-force for force in bias_forces(cheetah, pose, velocity)]
    for index, torque in enumerate(own_forces(cheetah, position, velocity, action)):
        smooth[NUM_SLIDES + index] += torque
    return Problem(pose, constraints_of(cheetah, pose, position, velocity), smooth)


def improve(cheetah: Cheetah, problem: Problem, acceleration: Scalars) -> Scalars:
    """One iteration of Newton's method: the minimum, were the rows that act now those that act there.

    What is minimised is the square of the difference from the smooth acceleration, measured by the mass matrix, plus what the
    rows of the constraints pay. Full steps need no line search here: of a million physics steps with random torques, six of
    them leave one in which the accelerations would still move by a thousandth, and eight none.
    """
    pose = problem.pose
    bodies = motions(cheetah, pose, acceleration)
    parts, loads, diagonal, torques = active_at(cheetah, problem.constraints, bodies, acceleration)
    force = [a + b for a, b in zip(problem.smooth, joint_forces(cheetah, pose, loads), strict=True)]
    for index, torque in enumerate(torques):
        force[NUM_SLIDES + index] += torque
    stiffness = [a + b for a, b in zip(inertias(cheetah, pose), parts, strict=True)]
    armature = [a + body.armature for a, body in zip(diagonal, cheetah.bodies, strict=True)]
    return tuple(solve(cheetah, factorise(cheetah, assemble(cheetah, pose, stiffness, armature)), force))


def step(cheetah: Cheetah, state: CheetahState, action: Scalars, iterations: int) -> CheetahState:
    """One physics step."""
    position, velocity, start = state
    problem = problem_of(cheetah, position, velocity, action)
    acceleration = lax.fori_loop(0, iterations, lambda _, best: improve(cheetah, problem, best), start)
    # Dampers see the velocity after the step: (M + hD) rates = M acceleration, which is all forces.
    dampers = [cheetah.timestep * body.damping for body in cheetah.bodies]
    braked = [0.0] * NUM_SLIDES + [a * b for a, b in zip(dampers, acceleration[NUM_SLIDES:], strict=True)]
    damped = [a + body.armature for a, body in zip(dampers, cheetah.bodies, strict=True)]
    matrix = assemble(cheetah, problem.pose, inertias(cheetah, problem.pose), damped)
    saved = solve(cheetah, factorise(cheetah, matrix), braked)
    after = tuple(v + cheetah.timestep * (a - b) for v, a, b in zip(velocity, acceleration, saved, strict=True))
    moved = tuple(a + cheetah.timestep * b for a, b in zip(position, after, strict=True))
    return CheetahState(moved, after, acceleration)


def advance(cheetah: Cheetah, state: CheetahState, action: Scalars, steps: int, iterations: int) -> CheetahState:
    """So many physics steps with one action.

    A batch is computed as one long row, whatever its axes are: on CPUs vectors are made along the last axis, and that of
    a rollout, its learners, may be short.
    """

    @custom_vmap
    def run(state: CheetahState, action: Scalars) -> CheetahState:
        shape = state.position[0].shape
        row, torque = jax.tree.map(jnp.ravel, (state, action))
        after = lax.fori_loop(0, steps, lambda _, before: step(cheetah, before, torque, iterations), row)
        return jax.tree.map(lambda part: part.reshape(shape), after)

    @run.def_vmap
    def run_batch(size: int, is_batched: list[Any], *lanes: Any) -> tuple[CheetahState, CheetahState]:
        state, action = jax.tree.map(
            lambda part, is_there: part if is_there else jnp.broadcast_to(part, (size, *part.shape)),
            lanes,
            tuple(is_batched),
        )
        return run(state, action), jax.tree.map(lambda _: True, state)

    return run(state, action)
