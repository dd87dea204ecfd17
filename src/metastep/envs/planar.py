"""The physics of planar robots in JAX, HalfCheetah among them: those of `mj_step` for a tree of bodies in one plane.

Every quantity is a scalar, nothing is an array of a few numbers: batched, a step is a few elementwise programs over all episodes,
which suits compilers and GPUs. A step has smooth forces, constraint forces by Newton's method, and implicitly damped Euler steps.

Bodies form a planar chain, each with one hinge; the first one also slides. A body's motion is that of its hinge and its spin; a
body's load is a force and its torque about the hinge. A `Stiffness` maps the one to the other: that of a mass maps accelerations
to forces, and that of contacts has the same form, so that one function makes the mass matrix and the Hessian of the constraint
solver. Matrices hold the entries (i, j) with j = i or j among the joints that carry i: with feet eliminated first, all there are.

Contacts with the floor and limits of the hinges are soft constraints, as MuJoCo has them. Every row of a constraint wants its
residual, an acceleration, to be at least zero, and pays weight * residual^2 / 2 where it is not. A contact has four rows, the
sides of its friction pyramid: normal ± friction * tangent for the tangents within and across the plane. Nothing moves across
the plane, so that the last two are the normal's row, twice.
"""

from collections.abc import Callable, Sequence
from itertools import combinations_with_replacement
from operator import add
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import custom_vmap

from metastep._core.numerics import sincos

Scalar = Any  # a traced scalar, or a constant
Scalars = tuple[Array, ...]
Nearest = Callable[[Array], Array]  # whole number
Matrix = dict[tuple[int, int], Scalar]

_LANES = 128  # environments of a block of a GPU's kernel
NUM_SLIDES = 2  # forward and up; the torso's hinge and six more follow, one for each body


class Point(NamedTuple):
    """Forward and up; numbers of the model or traced scalars."""

    x: Any
    z: Any


class Impedance(NamedTuple):
    """How stiff a constraint is, by how deep it is violated (MuJoCo's solimp and solref)."""

    least: float
    most: float
    width: float
    middle: float
    power: int
    stiffness: float
    damping: float


class Sphere(NamedTuple):
    """One end of a capsule, which may touch the floor."""

    body: int
    centre: Point  # from the body's hinge, in the body's frame
    radius: float
    friction: float
    inverse_weight: float  # of a row of the friction pyramid, before the impedance
    impedance: Impedance


class Body(NamedTuple):
    """A body and the hinge that it turns about; angles count from the parent's, positive from up to forward."""

    parent: int | None
    hinge: Point  # from the parent's hinge, in the parent's frame; the torso's from the origin
    centre: Point  # of mass, from the hinge, in the body's frame
    mass: float
    inertia: float  # about the centre of mass
    armature: float
    stiffness: float
    damping: float
    gear: float | None  # torque of a full action; the torso has no motor
    limits: tuple[float, float] | None
    inverse_weight: float  # of a limit, before the impedance
    impedance: Impedance  # of a limit


class Cheetah(NamedTuple):
    """The whole model."""

    bodies: tuple[Body, ...]  # parents first
    spheres: tuple[Sphere, ...]
    timestep: float
    gravity: float


class Motion(NamedTuple):
    """Rate of the hinge and of the angle: a velocity, an acceleration or a direction of search."""

    x: Scalar
    z: Scalar
    spin: Scalar

    def at(self, lever: Point) -> Point:
        """The rate of a point that the body carries along."""
        return Point(self.x + self.spin * lever.z, self.z - self.spin * lever.x)


class Load(NamedTuple):
    """A force and its torque about the hinge."""

    x: Scalar
    z: Scalar
    torque: Scalar

    def moved(self, lever: Point) -> "Load":
        """The same load about a hinge from which this one's is a lever away."""
        return self._replace(torque=self.torque + lever.z * self.x - lever.x * self.z)


class Stiffness(NamedTuple):
    """A symmetric matrix from motions to loads."""

    xx: Scalar
    xz: Scalar
    zz: Scalar
    xt: Scalar
    zt: Scalar
    tt: Scalar

    def moved(self, lever: Point) -> "Stiffness":
        """The same about a hinge from which this one's is a lever away."""
        x, z = lever.z, -lever.x  # where a unit of spin moves this hinge to
        xt, zt = self.xt + self.xx * x + self.xz * z, self.zt + self.xz * x + self.zz * z
        return self._replace(xt=xt, zt=zt, tt=self.tt + x * (self.xt + xt) + z * (self.zt + zt))


def plus(left: Any, right: Any) -> Any:
    """Add two loads, or two stiffnesses."""
    return jax.tree.map(add, left, right)


class Placed(NamedTuple):
    """Where a body is, in directions of the world."""

    angle: Scalar
    sin: Scalar
    cos: Scalar
    hinge: Point  # from the parent's hinge
    height: Scalar  # of the hinge

    def turned(self, point: Point) -> Point:
        """A point of the body's frame, from its hinge."""
        return Point(self.cos * point.x + self.sin * point.z, self.cos * point.z - self.sin * point.x)


Pose = list[Placed]


def pose_of(cheetah: Cheetah, position: Scalars, nearest: Nearest = jnp.round) -> Pose:
    """Where the bodies are."""
    pose: Pose = []
    for body, angle in zip(cheetah.bodies, position[NUM_SLIDES:], strict=True):
        hinge, height = body.hinge, position[1]
        if body.parent is not None:
            parent = pose[body.parent]
            angle, hinge, height = angle + parent.angle, parent.turned(hinge), parent.height
        sin, cos = sincos(angle, nearest) if angle.dtype == jnp.float32 else (jnp.sin(angle), jnp.cos(angle))
        pose.append(Placed(angle, sin, cos, hinge, height + hinge.z))
    return pose


def motions(cheetah: Cheetah, pose: Pose, rates: Sequence[Scalar]) -> list[Motion]:
    """The motion of every body, given the rates of slides and hinges."""
    found: list[Motion] = []
    for body, placed, rate in zip(cheetah.bodies, pose, rates[NUM_SLIDES:], strict=True):
        if body.parent is None:
            found.append(Motion(rates[0], rates[1], rate))
        else:
            base = found[body.parent]
            found.append(Motion(*base.at(placed.hinge), base.spin + rate))
    return found


def joint_forces(cheetah: Cheetah, pose: Pose, loads: Sequence[Load]) -> list[Scalar]:
    """What loads on the bodies are for slides and hinges: the transpose of `motions`."""
    total = list(loads)
    for index, body in reversed(list(enumerate(cheetah.bodies))):
        if body.parent is not None:
            total[body.parent] = plus(total[body.parent], total[index].moved(pose[index].hinge))
    return [total[0].x, total[0].z, *(load.torque for load in total)]


def inertias(cheetah: Cheetah, pose: Pose) -> list[Stiffness]:
    """What maps accelerations of the bodies to forces."""
    found = []
    for body, placed in zip(cheetah.bodies, pose, strict=True):
        mass, (x, z), centre = body.mass, body.centre, placed.turned(body.centre)
        found.append(Stiffness(mass, 0.0, mass, mass * centre.z, -mass * centre.x, body.inertia + mass * (x**2 + z**2)))
    return found


def assemble(cheetah: Cheetah, pose: Pose, parts: Sequence[Stiffness], diagonal: Sequence[Scalar]) -> Matrix:
    """The matrix of the joints, from the stiffness of every body and a diagonal of the hinges."""
    total = list(parts)
    matrix: Matrix = {}
    for index, body in reversed(list(enumerate(cheetah.bodies))):
        row, part = NUM_SLIDES + index, total[index]
        matrix[row, row] = part.tt + diagonal[index]
        matrix[row, 0], matrix[row, 1] = part.xt, part.zt
        carrier, torque, hinge = body.parent, part.tt, pose[index].hinge
        while carrier is not None:
            # A unit of the carrier's spin turns this body and moves its hinge.
            torque = torque + hinge.z * part.xt - hinge.x * part.zt
            matrix[row, NUM_SLIDES + carrier] = torque
            hinge, carrier = pose[carrier].hinge, cheetah.bodies[carrier].parent
        if body.parent is not None:
            total[body.parent] = plus(total[body.parent], part.moved(pose[index].hinge))
    matrix[0, 0], matrix[1, 0], matrix[1, 1] = total[0].xx, total[0].xz, total[0].zz
    return matrix


def solve(matrix: Matrix, right: Sequence[Scalar]) -> Scalars:
    """The solution of a linear system, by L and the inverse of D with matrix = L' D L, L of unit diagonal."""
    left, factors, found = dict(matrix), Matrix(), list(right)
    carriers = [[column for column in range(row) if (row, column) in matrix] for row in range(len(found))]
    for row in reversed(range(len(found))):
        factors[row, row] = 1.0 / left[row, row]
        for column in carriers[row]:
            factors[row, column] = left[row, column] * factors[row, row]
            found[column] = found[column] - factors[row, column] * found[row]
        for column, other in combinations_with_replacement(carriers[row], 2):
            left[other, column] = left[other, column] - factors[row, other] * left[row, column]
    for row in range(len(found)):
        found[row] = found[row] * factors[row, row]
        for column in carriers[row]:
            found[row] = found[row] - factors[row, column] * found[column]
    return tuple(found)


class CheetahState(NamedTuple):
    """What one physics step hands to the next; each a tuple of nine scalars."""

    position: Scalars
    velocity: Scalars
    warmstart: Scalars  # the last accelerations, where the constraint solver begins


class Contact(NamedTuple):
    """A sphere and the floor; where they do not touch, the weight is zero."""

    lever: Point  # of the middle of the overlap, from the body's hinge
    normal: Scalar  # residual of a body that is not accelerated
    tangent: Scalar  # the same of the tangent, times the friction
    weight: Scalar


class Limit(NamedTuple):
    """The limit of a hinge that is nearest; within it, the weight is zero."""

    side: Scalar  # 1 at the lower limit, -1 at the upper one
    residual: Scalar  # of a hinge that is not accelerated
    weight: Scalar


Constraints = tuple[list[Contact], dict[int, Limit]]  # limits by their bodies


def _weigh(kind: Impedance, inverse_weight: float, distance: Scalar) -> tuple[Scalar, Scalar]:
    """The acceleration that pushes back, negative, and the weight."""
    x = jnp.clip(-distance * (1.0 / kind.width), 0.0, 1.0)
    rising = x**kind.power * kind.middle ** (1.0 - kind.power)
    falling = 1.0 - (1.0 - x) ** kind.power * (1.0 - kind.middle) ** (1.0 - kind.power)
    impedance = kind.least + jnp.where(x <= kind.middle, rising, falling) * (kind.most - kind.least)
    weight = impedance / (inverse_weight - inverse_weight * impedance)
    return kind.stiffness * impedance * distance, jnp.where(distance < 0.0, weight, 0.0)


def constraints_of(cheetah: Cheetah, pose: Pose, position: Scalars, velocity: Scalars) -> Constraints:
    """What may act in a state."""
    bodies = motions(cheetah, pose, velocity)
    contacts, limits = [], {}
    for sphere in cheetah.spheres:
        centre = pose[sphere.body].turned(sphere.centre)
        distance = pose[sphere.body].height + centre.z - sphere.radius
        lever = Point(centre.x, centre.z - sphere.radius - 0.5 * distance)
        speed = bodies[sphere.body].at(lever)
        push, weight = _weigh(sphere.impedance, sphere.inverse_weight, distance)
        damping = sphere.impedance.damping
        contacts.append(Contact(lever, damping * speed.z + push, sphere.friction * damping * speed.x, weight))
    for index, body in enumerate(cheetah.bodies):
        if body.limits is None:
            continue
        joint = NUM_SLIDES + index
        above, below = position[joint] - body.limits[0], body.limits[1] - position[joint]
        side = jnp.where(above < below, 1.0, -1.0).astype(above.dtype)
        push, weight = _weigh(body.impedance, body.inverse_weight, jnp.minimum(above, below))
        limits[index] = Limit(side, side * body.impedance.damping * velocity[joint] + push, weight)
    return contacts, limits


def active_at(
    cheetah: Cheetah, constraints: Constraints, bodies: Sequence[Motion], rates: Sequence[Scalar]
) -> tuple[list[Stiffness], list[Load], list[Scalar], list[Scalar]]:
    """The quadratic that the rows pay whose residuals are negative at an acceleration, given for bodies and for hinges.

    Returned are its curvature and minus its slope at rest: of bodies, stiffness and loads; of hinges, stiffness and torques.
    """
    contacts, limits = constraints
    parts = [Stiffness(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)] * len(cheetah.bodies)
    loads = [Load(0.0, 0.0, 0.0)] * len(cheetah.bodies)
    for sphere, contact in zip(cheetah.spheres, contacts, strict=True):
        moved = bodies[sphere.body].at(contact.lever)
        normal, tangent = moved.z + contact.normal, sphere.friction * moved.x + contact.tangent
        rows = (normal + tangent, normal - tangent, normal)
        ahead, behind, straight = (jnp.where(row < 0.0, contact.weight, 0.0) for row in rows)
        friction, both, uneven = sphere.friction, ahead + behind, ahead - behind
        upright = both + 2.0 * straight
        own = Stiffness(friction**2 * both, friction * uneven, upright, 0.0, 0.0, 0.0)
        push = -upright * contact.normal - uneven * contact.tangent
        drag = -friction * (uneven * contact.normal + both * contact.tangent)
        parts[sphere.body] = plus(parts[sphere.body], own.moved(contact.lever))
        loads[sphere.body] = plus(loads[sphere.body], Load(drag, push, 0.0).moved(contact.lever))
    diagonal: list[Scalar] = [0.0] * len(cheetah.bodies)
    torques: list[Scalar] = [0.0] * len(cheetah.bodies)
    for index, limit in limits.items():
        residual = limit.side * rates[NUM_SLIDES + index] + limit.residual
        diagonal[index] = jnp.where(residual < 0.0, limit.weight, 0.0)
        torques[index] = -diagonal[index] * limit.side * limit.residual
    return parts, loads, diagonal, torques


def smooth_forces(cheetah: Cheetah, pose: Pose, position: Scalars, velocity: Scalars, action: Scalars) -> list[Scalar]:
    """All forces on slides and hinges but those of the constraints."""
    # What it takes to move on with no acceleration of slides and hinges: against gravity, and round the curves.
    loads: list[Load] = []
    hinges: list[Point] = []  # their accelerations
    spins = [motion.spin**2 for motion in motions(cheetah, pose, velocity)]
    for index, body in enumerate(cheetah.bodies):
        if body.parent is None:
            at = Point(0.0, cheetah.gravity)
        else:
            base, lever, turning = hinges[body.parent], pose[index].hinge, spins[body.parent]
            at = Point(base.x - turning * lever.x, base.z - turning * lever.z)
        hinges.append(at)
        centre = pose[index].turned(body.centre)
        x, z = at.x - spins[index] * centre.x, at.z - spins[index] * centre.z
        loads.append(Load(body.mass * x, body.mass * z, 0.0).moved(centre))
    smooth = [-force for force in joint_forces(cheetah, pose, loads)]
    motors = iter(action)
    for joint, body in enumerate(cheetah.bodies, NUM_SLIDES):
        torque: Scalar = 0.0 if body.gear is None else body.gear * next(motors)
        if body.stiffness or body.damping:
            torque = torque - body.stiffness * position[joint] - body.damping * velocity[joint]
        smooth[joint] += torque
    return smooth


def step(
    cheetah: Cheetah, state: CheetahState, action: Scalars, iterations: int, nearest: Nearest = jnp.round
) -> CheetahState:
    """One physics step.

    The accelerations minimise the square of the difference from the smooth acceleration, measured by the mass matrix, plus what
    the rows of the constraints pay. Newton's method needs no line search here; `HalfCheetahVelPlanar` says how many steps.
    """
    position, velocity, start = state
    pose = pose_of(cheetah, position, nearest)
    constraints = constraints_of(cheetah, pose, position, velocity)
    smooth = smooth_forces(cheetah, pose, position, velocity, action)

    def accelerations(parts: Sequence[Stiffness], diagonal: Sequence[Scalar], force: Sequence[Scalar]) -> Scalars:
        armature = [a + body.armature for a, body in zip(diagonal, cheetah.bodies, strict=True)]
        return solve(assemble(cheetah, pose, parts, armature), force)

    def improve(_: int, acceleration: Scalars) -> Scalars:
        """Move to the minimum, were the rows that act now those that act there."""
        bodies = motions(cheetah, pose, acceleration)
        parts, loads, diagonal, torques = active_at(cheetah, constraints, bodies, acceleration)
        force = [a + b for a, b in zip(smooth, joint_forces(cheetah, pose, loads), strict=True)]
        for joint, torque in enumerate(torques, NUM_SLIDES):
            force[joint] += torque
        return accelerations([*map(plus, inertias(cheetah, pose), parts)], diagonal, force)

    acceleration = lax.fori_loop(0, iterations, improve, start)
    # Dampers see the velocity after the step: (M + hD) rates = M acceleration, which is all forces.
    dampers = [cheetah.timestep * body.damping for body in cheetah.bodies]
    braked = [0.0] * NUM_SLIDES + [a * b for a, b in zip(dampers, acceleration[NUM_SLIDES:], strict=True)]
    saved = accelerations(inertias(cheetah, pose), dampers, braked)
    after = tuple(v + cheetah.timestep * (a - b) for v, a, b in zip(velocity, acceleration, saved, strict=True))
    moved = tuple(a + cheetah.timestep * b for a, b in zip(position, after, strict=True))
    return CheetahState(moved, after, acceleration)


def _in_a_loop(
    cheetah: Cheetah, row: CheetahState, torque: Scalars, steps: int, iterations: int, nearest: Nearest = jnp.round
) -> CheetahState:
    return lax.fori_loop(0, steps, lambda _, before: step(cheetah, before, torque, iterations, nearest), row)


def in_one_kernel(
    cheetah: Cheetah, row: CheetahState, torque: Scalars, steps: int, iterations: int, *, interpret: bool = False
) -> CheetahState:
    """The same as a kernel in which every thread has one environment: a GPU keeps all between two actions in registers."""
    from jax.experimental import pallas  # only where it is needed: its backends change with versions of JAX
    from jax.experimental.pallas import triton

    before, form = jax.tree.flatten((row, torque))
    size, num = len(before[0]), len(jax.tree.leaves(row))
    whole = -(-size // _LANES) * _LANES

    def kernel(*refs: Any) -> None:
        state, torque = jax.tree.unflatten(form, [ref[...] for ref in refs[: len(before)]])
        # Kernels have no `jnp.round`.
        state = _in_a_loop(cheetah, state, torque, steps, iterations, lambda number: jnp.floor(number + 0.5))
        for ref, value in zip(refs[len(before) :], jax.tree.leaves(state), strict=True):
            ref[...] = value

    lanes = pallas.BlockSpec((_LANES,), lambda index: (index,))
    call = pallas.pallas_call(
        kernel,
        [jax.ShapeDtypeStruct((whole,), jnp.float32)] * num,
        grid=(whole // _LANES,),
        in_specs=[lanes] * len(before),
        out_specs=[lanes] * num,
        interpret=interpret,
        compiler_params=None if interpret else triton.CompilerParams(num_warps=_LANES // 32, num_stages=1),
    )
    found = call(*(jnp.pad(each, (0, whole - size)) for each in before))
    return jax.tree.unflatten(jax.tree.structure(row), [each[:size] for each in found])


def advance(
    cheetah: Cheetah, state: CheetahState, action: Scalars, steps: int, iterations: int, *, kernel: bool = True
) -> CheetahState:
    """So many physics steps with one action; on a GPU in one kernel, unless that is unwanted."""

    # A batch is computed as one long row: CPUs make vectors along the last axis, and a rollout may have few learners there.
    @custom_vmap
    def run(state: CheetahState, action: Scalars) -> CheetahState:
        shape = state.position[0].shape
        is_for_gpu = jax.default_backend() == "gpu" and action[0].dtype == jnp.float32
        move: Any = in_one_kernel if kernel and is_for_gpu else _in_a_loop
        after = move(cheetah, *jax.tree.map(jnp.ravel, (state, action)), steps, iterations)
        return jax.tree.map(lambda part: part.reshape(shape), after)

    @run.def_vmap
    def run_batch(size: int, is_batched: list[Any], *lanes: Any) -> tuple[CheetahState, CheetahState]:
        def repeat(part: Array, is_there: bool) -> Array:
            return part if is_there else jnp.broadcast_to(part, (size, *part.shape))

        state, action = jax.tree.map(repeat, lanes, tuple(is_batched))
        return run(state, action), jax.tree.map(lambda _: True, state)

    return run(state, action)
