"""Contacts with the floor and limits of the hinges: soft constraints, as MuJoCo has them.

Every row of a constraint wants its residual, an acceleration, to be at least zero, and pays weight * residual^2 / 2 where it is
not. A contact has four rows, the sides of its friction pyramid: normal ± friction * tangent for the tangents within and across
the plane. Nothing moves across the plane, so that the last two are the normal's row, twice.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp

from metastep.envs.planar.chain import Load, Motion, Pose, Scalar, Scalars, Stiffness, motions
from metastep.envs.planar.model import NUM_SLIDES, Cheetah, Impedance, Point


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


class Constraints(NamedTuple):
    """All that may act in one state, with the bodies they act on."""

    contacts: list[Contact]
    limits: dict[int, Limit]


def _impedance(kind: Impedance, depth: Scalar) -> Scalar:
    x = jnp.clip(depth * (1.0 / kind.width), 0.0, 1.0)
    rising = x**kind.power * kind.middle ** (1.0 - kind.power)
    falling = 1.0 - (1.0 - x) ** kind.power * (1.0 - kind.middle) ** (1.0 - kind.power)
    return kind.least + jnp.where(x <= kind.middle, rising, falling) * (kind.most - kind.least)


def _weigh(kind: Impedance, inverse_weight: float, distance: Scalar) -> tuple[Scalar, Scalar]:
    """The acceleration that pushes back, negative, and the weight."""
    impedance = _impedance(kind, -distance)
    weight = impedance / (inverse_weight - inverse_weight * impedance)
    return kind.stiffness * impedance * distance, jnp.where(distance < 0.0, weight, 0.0)


def constraints_of(cheetah: Cheetah, pose: Pose, position: Scalars, velocity: Scalars) -> Constraints:
    """What may act in a state."""
    bodies = motions(cheetah, pose, velocity)
    contacts, limits = [], {}
    for sphere in cheetah.spheres:
        centre = pose.turned(sphere.body, sphere.centre)
        distance = pose.height[sphere.body] + centre.z - sphere.radius
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
    return Constraints(contacts, limits)


def active_at(
    cheetah: Cheetah, constraints: Constraints, bodies: Sequence[Motion], rates: Sequence[Scalar]
) -> tuple[list[Stiffness], list[Load], list[Scalar], list[Scalar]]:
    """The quadratic that the rows pay whose residuals are negative at an acceleration, given for bodies and for hinges.

    It is a curvature (of bodies, then of hinges) and minus the slope where nothing is accelerated; returned are the curvature
    of the bodies, the loads on them, and the curvature of the hinges and the torques about them.
    """
    parts = [Stiffness(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)] * len(cheetah.bodies)
    loads = [Load(0.0, 0.0, 0.0)] * len(cheetah.bodies)
    for sphere, contact in zip(cheetah.spheres, constraints.contacts, strict=True):
        moved = bodies[sphere.body].at(contact.lever)
        normal, tangent = moved.z + contact.normal, sphere.friction * moved.x + contact.tangent
        ahead, behind, straight = (
            jnp.where(row < 0.0, contact.weight, 0.0) for row in (normal + tangent, normal - tangent, normal)
        )
        friction, both, uneven = sphere.friction, ahead + behind, ahead - behind
        upright = both + 2.0 * straight
        own = Stiffness(friction**2 * both, friction * uneven, upright, 0.0, 0.0, 0.0)
        push = -upright * contact.normal - uneven * contact.tangent
        drag = -friction * (uneven * contact.normal + both * contact.tangent)
        parts[sphere.body] += own.moved(contact.lever)
        loads[sphere.body] += Load(drag, push, 0.0).moved(contact.lever)
    diagonal: list[Scalar] = [0.0] * len(cheetah.bodies)
    torques: list[Scalar] = [0.0] * len(cheetah.bodies)
    for index, limit in constraints.limits.items():
        residual = limit.side * rates[NUM_SLIDES + index] + limit.residual
        diagonal[index] = jnp.where(residual < 0.0, limit.weight, 0.0)
        torques[index] = -diagonal[index] * limit.side * limit.residual
    return parts, loads, diagonal, torques
