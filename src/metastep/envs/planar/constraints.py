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

_LEAST_REGULARISATION = 1e-15  # MuJoCo's mjMINVAL


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


class Rows(NamedTuple):
    """A number for every row: residuals, or what a direction adds to them."""

    contacts: list[tuple[Scalar, Scalar]]  # normal; tangent times friction
    limits: list[Scalar]


class Constraints(NamedTuple):
    """All that may act in one state, with the bodies they act on."""

    contacts: list[Contact]
    limits: dict[int, Limit]


def _impedance(kind: Impedance, depth: Scalar) -> Scalar:
    x = depth / kind.width
    rising = x**kind.power / kind.middle ** (kind.power - 1.0)
    falling = 1.0 - (1.0 - x) ** kind.power / (1.0 - kind.middle) ** (kind.power - 1.0)
    share = jnp.where(x <= kind.middle, rising, falling)
    return jnp.where(x >= 1.0, kind.most, kind.least + share * (kind.most - kind.least))


def _weigh(kind: Impedance, inverse_weight: float, distance: Scalar) -> tuple[Scalar, Scalar]:
    """The acceleration that pushes back, negative, and the weight."""
    impedance = _impedance(kind, jnp.maximum(-distance, 0.0))
    regularisation = jnp.maximum((1.0 - impedance) / impedance * inverse_weight, _LEAST_REGULARISATION)
    return kind.stiffness * impedance * distance, jnp.where(distance < 0.0, 1.0 / regularisation, 0.0)


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


def along(cheetah: Cheetah, constraints: Constraints, bodies: Sequence[Motion], rates: Sequence[Scalar]) -> Rows:
    """What a direction adds to the residuals: the product with the Jacobian."""
    contacts = []
    for sphere, contact in zip(cheetah.spheres, constraints.contacts, strict=True):
        moved = bodies[sphere.body].at(contact.lever)
        contacts.append((moved.z, sphere.friction * moved.x))
    return Rows(contacts, [limit.side * rates[NUM_SLIDES + index] for index, limit in constraints.limits.items()])


def residuals(constraints: Constraints, added: Rows) -> Rows:
    """The residuals of an acceleration, given what it adds to those of none."""
    contacts = [
        (normal + contact.normal, tangent + contact.tangent)
        for (normal, tangent), contact in zip(added.contacts, constraints.contacts, strict=True)
    ]
    limits = [row + limit.residual for row, limit in zip(added.limits, constraints.limits.values(), strict=True)]
    return Rows(contacts, limits)


def _missing(residual: Scalar) -> Scalar:
    return jnp.minimum(residual, 0.0)


def forces(cheetah: Cheetah, constraints: Constraints, rows: Rows) -> tuple[list[Load], list[Scalar]]:
    """The loads that residuals cause on the bodies, and the torques on the hinges."""
    loads = [Load(0.0, 0.0, 0.0)] * len(cheetah.bodies)
    torques: list[Scalar] = [0.0] * len(cheetah.bodies)
    for sphere, contact, (normal, tangent) in zip(cheetah.spheres, constraints.contacts, rows.contacts, strict=True):
        ahead, behind = _missing(normal + tangent), _missing(normal - tangent)
        up = -contact.weight * (ahead + behind + 2.0 * _missing(normal))
        loads[sphere.body] += Load(contact.weight * sphere.friction * (behind - ahead), up, 0.0).moved(contact.lever)
    for (index, limit), row in zip(constraints.limits.items(), rows.limits, strict=True):
        torques[index] = -limit.side * limit.weight * _missing(row)
    return loads, torques


def curvature(cheetah: Cheetah, constraints: Constraints, rows: Rows) -> tuple[list[Stiffness], list[Scalar]]:
    """How the loads on the bodies and the torques on the hinges change with the acceleration, negated."""
    parts = [Stiffness(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)] * len(cheetah.bodies)
    diagonal: list[Scalar] = [0.0] * len(cheetah.bodies)
    for sphere, contact, (normal, tangent) in zip(cheetah.spheres, constraints.contacts, rows.contacts, strict=True):
        ahead, behind, straight = (
            jnp.where(row < 0.0, contact.weight, 0.0) for row in (normal + tangent, normal - tangent, normal)
        )
        both, friction = ahead + behind, sphere.friction
        own = Stiffness(friction**2 * both, friction * (ahead - behind), both + 2.0 * straight, 0.0, 0.0, 0.0)
        parts[sphere.body] += own.moved(contact.lever)
    for (index, limit), row in zip(constraints.limits.items(), rows.limits, strict=True):
        diagonal[index] = jnp.where(row < 0.0, limit.weight, 0.0)
    return parts, diagonal


def slopes(constraints: Constraints, start: Rows, step: Rows, size: Scalar) -> tuple[Scalar, Scalar]:
    """First and second derivative of what the rows pay at `start + size * step`, with respect to the size."""
    first: Scalar = 0.0
    second: Scalar = 0.0

    def add(weight: Scalar, residual: Scalar, change: Scalar) -> None:
        nonlocal first, second
        pull = jnp.where(residual + size * change < 0.0, weight * change, 0.0)
        first = first + pull * (residual + size * change)
        second = second + pull * change

    for contact, (normal, tangent), (up, aside) in zip(constraints.contacts, start.contacts, step.contacts, strict=True):
        add(contact.weight, normal + tangent, up + aside)
        add(contact.weight, normal - tangent, up - aside)
        add(2.0 * contact.weight, normal, up)
    for limit, residual, change in zip(constraints.limits.values(), start.limits, step.limits, strict=True):
        add(limit.weight, residual, change)
    return first, second


def cost(constraints: Constraints, rows: Rows) -> Scalar:
    """What all rows pay."""
    total: Scalar = 0.0
    for contact, (normal, tangent) in zip(constraints.contacts, rows.contacts, strict=True):
        squares = _missing(normal + tangent) ** 2 + _missing(normal - tangent) ** 2 + 2.0 * _missing(normal) ** 2
        total = total + 0.5 * contact.weight * squares
    for limit, row in zip(constraints.limits.values(), rows.limits, strict=True):
        total = total + 0.5 * limit.weight * _missing(row) ** 2
    return total
