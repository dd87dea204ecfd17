"""Motion, forces and inertia of a planar chain of bodies, each with one hinge; the first one also slides.

A body's motion is that of its hinge and its spin; a body's load is a force and its torque about the hinge. A `Stiffness` maps
the one to the other: that of a mass maps accelerations to forces, and that of contacts has the same form, so that one function
makes the mass matrix and the Hessian of the constraint solver. Matrices hold the entries (i, j) with j = i or j among
the joints that carry i; eliminated from the feet to the torso, they have no others.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep._core.numerics import sincos
from metastep.envs.planar.model import NUM_SLIDES, Cheetah, Point

Scalar = Any  # a traced scalar, or a constant
Scalars = tuple[Array, ...]
Matrix = dict[tuple[int, int], Scalar]


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

    def __add__(self, other: Any) -> "Load":
        return Load(self.x + other.x, self.z + other.z, self.torque + other.torque)

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

    def __add__(self, other: Any) -> "Stiffness":
        return Stiffness(*(a + b for a, b in zip(self, other, strict=True)))

    def moved(self, lever: Point) -> "Stiffness":
        """The same about a hinge from which this one's is a lever away."""
        x, z = lever.z, -lever.x  # where a unit of spin moves this hinge to
        xt, zt = self.xt + self.xx * x + self.xz * z, self.zt + self.xz * x + self.zz * z
        return self._replace(xt=xt, zt=zt, tt=self.tt + x * (self.xt + xt) + z * (self.zt + zt))


class Pose(NamedTuple):
    """Where the bodies are, one entry for each, in directions of the world."""

    sin: Scalars
    cos: Scalars
    hinge: tuple[Point, ...]  # from the parent's hinge
    centre: tuple[Point, ...]  # of mass, from the hinge
    height: Scalars  # of the hinge

    def turned(self, body: int, point: Point) -> Point:
        """A point of the body's frame."""
        sin, cos = self.sin[body], self.cos[body]
        return Point(cos * point.x + sin * point.z, cos * point.z - sin * point.x)


def pose_of(cheetah: Cheetah, position: Scalars) -> Pose:
    """Where the bodies are."""
    pose = Pose((), (), (), (), ())
    angles: list[Array] = []
    for index, body in enumerate(cheetah.bodies):
        angle = position[NUM_SLIDES + index]
        if body.parent is None:
            hinge, height = body.hinge, position[1] + body.hinge.z
        else:
            angle = angle + angles[body.parent]
            hinge = pose.turned(body.parent, body.hinge)
            height = pose.height[body.parent] + hinge.z
        sin, cos = sincos(angle) if angle.dtype == jnp.float32 else (jnp.sin(angle), jnp.cos(angle))
        angles.append(angle)
        pose = Pose((*pose.sin, sin), (*pose.cos, cos), (*pose.hinge, hinge), pose.centre, (*pose.height, height))
        pose = pose._replace(centre=(*pose.centre, pose.turned(index, body.centre)))
    return pose


def motions(cheetah: Cheetah, pose: Pose, rates: Sequence[Scalar]) -> list[Motion]:
    """The motion of every body, given the rates of slides and hinges."""
    found: list[Motion] = []
    for body, hinge, rate in zip(cheetah.bodies, pose.hinge, rates[NUM_SLIDES:], strict=True):
        if body.parent is None:
            found.append(Motion(rates[0], rates[1], rate))
        else:
            base = found[body.parent]
            found.append(Motion(*base.at(hinge), base.spin + rate))
    return found


def joint_forces(cheetah: Cheetah, pose: Pose, loads: Sequence[Load]) -> list[Scalar]:
    """What loads on the bodies are for slides and hinges: the transpose of `motions`."""
    total = list(loads)
    for index, body in reversed(list(enumerate(cheetah.bodies))):
        if body.parent is not None:
            total[body.parent] += total[index].moved(pose.hinge[index])
    return [total[0].x, total[0].z, *(load.torque for load in total)]


def inertias(cheetah: Cheetah, pose: Pose) -> list[Stiffness]:
    """What maps accelerations of the bodies to forces."""
    found = []
    for body, centre in zip(cheetah.bodies, pose.centre, strict=True):
        mass, (x, z) = body.mass, body.centre
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
        carrier, torque, hinge = body.parent, part.tt, pose.hinge[index]
        while carrier is not None:
            # A unit of the carrier's spin turns this body and moves its hinge.
            torque = torque + hinge.z * part.xt - hinge.x * part.zt
            matrix[row, NUM_SLIDES + carrier] = torque
            hinge, carrier = pose.hinge[carrier], cheetah.bodies[carrier].parent
        if body.parent is not None:
            total[body.parent] += part.moved(pose.hinge[index])
    matrix[0, 0], matrix[1, 0], matrix[1, 1] = total[0].xx, total[0].xz, total[0].zz
    return matrix


def _carriers(matrix: Matrix, row: int) -> list[int]:
    return [column for column in range(row) if (row, column) in matrix]


def factorise(cheetah: Cheetah, matrix: Matrix) -> Matrix:
    """L and the inverse of D with matrix = L' D L, L of unit diagonal."""
    left, factors = dict(matrix), {}
    for row in reversed(range(NUM_SLIDES + len(cheetah.bodies))):
        columns = _carriers(matrix, row)
        factors[row, row] = 1.0 / left[row, row]
        for column in columns:
            factors[row, column] = left[row, column] * factors[row, row]
        for column in columns:
            for other in columns:
                if other <= column:
                    left[column, other] = left[column, other] - factors[row, column] * left[row, other]
    return factors


def solve(factors: Matrix, right: Sequence[Scalar]) -> Scalars:
    """The solution of a linear system whose matrix is factorised."""
    found = list(right)
    for row in reversed(range(len(found))):
        for column in _carriers(factors, row):
            found[column] = found[column] - factors[row, column] * found[row]
    for row in range(len(found)):
        found[row] = found[row] * factors[row, row]
        for column in _carriers(factors, row):
            found[row] = found[row] - factors[row, column] * found[column]
    return tuple(found)
