"""The constants of HalfCheetah, as Python numbers."""

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from metastep.envs.host.halfcheetah import load_model

NUM_SLIDES = 2  # forward and up; the torso's hinge and six more follow, one for each body
_SMALLEST_IMPEDANCE, _LARGEST_IMPEDANCE = 0.0001, 0.9999  # MuJoCo's mjMINIMP and mjMAXIMP


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
    power: float | int  # an int where it is one: products are cheaper than powers
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
    rest: float  # where the spring pulls to
    damping: float
    gear: float | None  # torque of a full action; the torso has no motor
    limits: tuple[float, float] | None
    inverse_weight: float  # of a limit, before the impedance
    impedance: Impedance  # of a limit


class Cheetah(NamedTuple):
    """The whole model."""

    bodies: tuple[Body, ...]  # parents first
    spheres: tuple[Sphere, ...]
    start: tuple[float, ...]  # positions of slides and hinges
    timestep: float
    gravity: float

    @property
    def num_joints(self) -> int:
        """Slides and hinges."""
        return NUM_SLIDES + len(self.bodies)


def _impedance(solref: Any, solimp: Any, timestep: float) -> Impedance:
    least, most, width, middle, power = map(float, solimp)
    least, most, middle = np.clip((least, most, middle), _SMALLEST_IMPEDANCE, _LARGEST_IMPEDANCE).tolist()
    duration, damping_ratio = max(float(solref[0]), 2.0 * timestep), float(solref[1])
    stiffness = 1.0 / (most * duration * damping_ratio) ** 2
    power = max(power, 1.0)
    power = int(power) if power.is_integer() else power
    return Impedance(least, most, width, middle, power, stiffness, 2.0 / (most * duration))


def _point(vector: Any) -> Point:
    return Point(float(vector[0]), float(vector[2]))


def _rotation(quaternion: Any) -> Any:
    import mujoco

    matrix = np.zeros(9)
    mujoco.mju_quat2Mat(matrix, quaternion)
    return matrix.reshape(3, 3)


def _spheres(model: Any) -> list[Sphere]:
    spheres = []
    floor = 0
    for geom in range(1, model.ngeom):
        axis = _rotation(model.geom_quat[geom])[:, 2] * model.geom_size[geom, 1]
        friction = float(max(model.geom_friction[[floor, geom], 0]))
        body = int(model.geom_bodyid[geom])
        inverse_weight = float(model.body_invweight0[[0, body], 0].sum())
        # The four rows of a pyramid have the regularisation of its first row times 2 mu^2.
        weight = 2.0 * friction**2 * (1.0 + friction**2) * inverse_weight
        solref, solimp = (mix[[floor, geom]].mean(axis=0) for mix in (model.geom_solref, model.geom_solimp))
        impedance = _impedance(solref, solimp, model.opt.timestep)
        for sign in (1.0, -1.0):
            centre = _point(model.geom_pos[geom] + sign * axis)
            spheres.append(Sphere(body - 1, centre, float(model.geom_size[geom, 0]), friction, weight, impedance))
    return spheres


@cache
def read_model() -> Cheetah:
    """The model of Gymnasium's HalfCheetah-v5, as MuJoCo compiles it."""
    model = load_model()
    gears = {
        int(joint): float(gear)
        for joint, gear in zip(model.actuator_trnid[:, 0], model.actuator_gear[:, 0], strict=True)
    }
    bodies = []
    for index in range(1, model.nbody):
        joint = index - 1 + NUM_SLIDES
        axes = _rotation(model.body_iquat[index])
        parent = int(model.body_parentid[index]) - 1
        bodies.append(
            Body(
                parent=None if parent < 0 else parent,
                hinge=_point(model.body_pos[index]),
                centre=_point(model.body_ipos[index]),
                mass=float(model.body_mass[index]),
                inertia=float(axes[1] ** 2 @ model.body_inertia[index]),
                armature=float(model.dof_armature[joint]),
                stiffness=float(model.jnt_stiffness[joint]),
                rest=float(model.qpos_spring[joint]),
                damping=float(model.dof_damping[joint]),
                gear=gears.get(joint),
                limits=tuple(model.jnt_range[joint].tolist()) if model.jnt_limited[joint] else None,
                inverse_weight=float(model.dof_invweight0[joint]),
                impedance=_impedance(model.jnt_solref[joint], model.jnt_solimp[joint], model.opt.timestep),
            )
        )
    start = tuple(map(float, model.qpos0))
    return Cheetah(
        tuple(bodies), tuple(_spheres(model)), start, float(model.opt.timestep), -float(model.opt.gravity[2])
    )
