"""One physics step: smooth forces, constraint forces by Newton's method, and Euler's method with implicit damping."""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from metastep.envs.planar.chain import (
    Load,
    Motion,
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
from metastep.envs.planar.constraints import Constraints, along, constraints_of, curvature, forces, residuals, slopes
from metastep.envs.planar.model import NUM_SLIDES, Cheetah, Point

_TINY = 1e-30  # keeps the quotient of two zeros zero


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


def _inertial(cheetah: Cheetah, pose: Pose, bodies: Sequence[Motion]) -> list[Load]:
    """The loads that accelerate the bodies."""
    loads = []
    for body, motion, centre in zip(cheetah.bodies, bodies, pose.centre, strict=True):
        at = motion.at(centre)
        loads.append(Load(body.mass * at.x, body.mass * at.z, body.inertia * motion.spin).moved(centre))
    return loads


def _dot(one: Sequence[Scalar], other: Sequence[Scalar]) -> Scalar:
    return sum(a * b for a, b in zip(one, other, strict=True))


def constraint_forces(cheetah: Cheetah, problem: Problem, acceleration: Sequence[Scalar]) -> list[Scalar]:
    """What the constraints make of an acceleration."""
    bodies = motions(cheetah, problem.pose, acceleration)
    rows = residuals(problem.constraints, along(cheetah, problem.constraints, bodies, acceleration))
    loads, torques = forces(cheetah, problem.constraints, rows)
    found = joint_forces(cheetah, problem.pose, loads)
    return [*found[:NUM_SLIDES], *(a + b for a, b in zip(found[NUM_SLIDES:], torques, strict=True))]


def improve(cheetah: Cheetah, problem: Problem, acceleration: Scalars, line_search: int) -> Scalars:
    """One iteration of Newton's method, to the minimum along its direction.

    What is minimised is the square of the difference from the smooth acceleration, measured by the mass matrix, plus what the
    rows of the constraints pay.
    """
    pose, constraints, smooth = problem
    armature = [body.armature for body in cheetah.bodies]
    bodies = motions(cheetah, pose, acceleration)
    rows = residuals(constraints, along(cheetah, constraints, bodies, acceleration))
    unforced = [a - b for a, b in zip(joint_forces(cheetah, pose, _inertial(cheetah, pose, bodies)), smooth, strict=True)]
    for index, inertia in enumerate(armature):
        unforced[NUM_SLIDES + index] += inertia * acceleration[NUM_SLIDES + index]
    loads, torques = forces(cheetah, constraints, rows)
    gradient = [a - b for a, b in zip(unforced, joint_forces(cheetah, pose, loads), strict=True)]
    for index, torque in enumerate(torques):
        gradient[NUM_SLIDES + index] -= torque

    parts, diagonal = curvature(cheetah, constraints, rows)
    stiffness = [a + b for a, b in zip(inertias(cheetah, pose), parts, strict=True)]
    hessian = assemble(cheetah, pose, stiffness, [a + b for a, b in zip(diagonal, armature, strict=True)])
    direction = solve(cheetah, factorise(cheetah, hessian), [-slope for slope in gradient])

    moved = motions(cheetah, pose, direction)
    step = along(cheetah, constraints, moved, direction)
    slope = _dot(direction, unforced)
    bend = _dot(armature, [rate**2 for rate in direction[NUM_SLIDES:]])
    for body, motion, centre in zip(cheetah.bodies, moved, pose.centre, strict=True):
        at = motion.at(centre)
        bend = bend + body.mass * (at.x**2 + at.z**2) + body.inertia * motion.spin**2

    size = jnp.ones_like(bend)
    low, high = jnp.zeros_like(bend), jnp.full_like(bend, jnp.inf)
    for _ in range(line_search):
        first, second = slopes(constraints, rows, step, size)
        first, second = slope + size * bend + first, bend + second
        low, high = jnp.where(first < 0.0, size, low), jnp.where(first < 0.0, high, size)
        newton = size - first / (second + _TINY)
        # Newton's method for the slope, piecewise linear, may jump to and fro; halving what is left always ends.
        size = jnp.where((newton >= low) & (newton <= high), newton, 0.5 * (low + high))
    return tuple(a + size * b for a, b in zip(acceleration, direction, strict=True))


def step(
    cheetah: Cheetah, state: CheetahState, action: Scalars, iterations: int, line_search: int
) -> CheetahState:
    """One physics step."""
    position, velocity, start = state
    problem = problem_of(cheetah, position, velocity, action)
    acceleration = lax.fori_loop(
        0, iterations, lambda _, best: improve(cheetah, problem, best, line_search), start
    )
    force = [a + b for a, b in zip(problem.smooth, constraint_forces(cheetah, problem, acceleration), strict=True)]
    damped = [body.armature + cheetah.timestep * body.damping for body in cheetah.bodies]
    matrix = assemble(cheetah, problem.pose, inertias(cheetah, problem.pose), damped)
    rates = solve(cheetah, factorise(cheetah, matrix), force)
    after = tuple(a + cheetah.timestep * b for a, b in zip(velocity, rates, strict=True))
    moved = tuple(a + cheetah.timestep * b for a, b in zip(position, after, strict=True))
    return CheetahState(moved, after, acceleration)


def advance(
    cheetah: Cheetah, state: CheetahState, action: Scalars, steps: int, iterations: int, line_search: int
) -> CheetahState:
    """So many physics steps with one action."""
    return lax.fori_loop(0, steps, lambda _, before: step(cheetah, before, action, iterations, line_search), state)
