"""The constants of HalfCheetah, as Python numbers."""

import warnings
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from metastep._core.errors import InputError

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


@cache
def load_model() -> Any:
    """The MuJoCo model (`mujoco.MjModel`) of Gymnasium's HalfCheetah-v5, or one sentence about what is not installed."""
    try:
        import gymnasium
        import mujoco
    except ImportError:
        needed = 'MuJoCo and Gymnasium, install them with pip install "metastep[mujoco]"'
        raise InputError(f"env: halfcheetah needs {needed}.") from None
    path = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets" / "half_cheetah.xml"
    with warnings.catch_warnings():
        # Through MjSpec, because MjModel.from_xml_path writes the same warning into a log file in the working directory.
        warnings.filterwarnings("ignore", message=".*settotalmass.*")
        return mujoco.MjSpec.from_file(str(path)).compile()


def _impedance(solref: Any, solimp: Any, timestep: float) -> Impedance:
    least, most, width, middle, power = map(float, solimp)
    least, most, middle = np.clip((least, most, middle), 0.0001, 0.9999).tolist()  # mjMINIMP, mjMAXIMP
    duration, damping_ratio = max(float(solref[0]), 2.0 * timestep), float(solref[1])
    stiffness = 1.0 / (most * duration * damping_ratio) ** 2
    return Impedance(least, most, width, middle, int(power), stiffness, 2.0 / (most * duration))


def _point(vector: Any) -> Point:
    return Point(float(vector[0]), float(vector[2]))


def _rotation(quaternion: Any) -> Any:
    import mujoco

    matrix = np.zeros(9)
    mujoco.mju_quat2Mat(matrix, quaternion)
    return matrix.reshape(3, 3)


@cache
def read_model() -> Cheetah:
    """The constants of the model as MuJoCo compiles it."""
    model = load_model()
    import mujoco

    # The tests compare all that this engine takes for granted; this is for a model of a later Gymnasium.
    found = (model.nq, model.nbody, model.ngeom, model.nu, int(model.opt.cone), int(model.opt.integrator))
    if found != (9, 8, 9, 6, int(mujoco.mjtCone.mjCONE_PYRAMIDAL), int(mujoco.mjtIntegrator.mjINT_EULER)):
        raise InputError('env.engine: "planar" does not know the installed model of HalfCheetah; allowed is "c".')
    gears = dict(zip(model.actuator_trnid[:, 0].tolist(), model.actuator_gear[:, 0].tolist(), strict=True))
    bodies = []
    for index in range(1, model.nbody):
        joint, parent = index - 1 + NUM_SLIDES, int(model.body_parentid[index]) - 1
        bodies.append(
            Body(
                parent=None if parent < 0 else parent,
                hinge=_point(model.body_pos[index]),
                centre=_point(model.body_ipos[index]),
                mass=float(model.body_mass[index]),
                inertia=float(_rotation(model.body_iquat[index])[1] ** 2 @ model.body_inertia[index]),
                armature=float(model.dof_armature[joint]),
                stiffness=float(model.jnt_stiffness[joint]),
                damping=float(model.dof_damping[joint]),
                gear=gears.get(joint),
                limits=tuple(model.jnt_range[joint].tolist()) if model.jnt_limited[joint] else None,
                inverse_weight=float(model.dof_invweight0[joint]),
                impedance=_impedance(model.jnt_solref[joint], model.jnt_solimp[joint], model.opt.timestep),
            )
        )
    spheres = []
    for geom in range(1, model.ngeom):  # the first one is the floor
        axis = _rotation(model.geom_quat[geom])[:, 2] * model.geom_size[geom, 1]
        friction = float(max(model.geom_friction[[0, geom], 0]))
        body = int(model.geom_bodyid[geom])
        inverse_weight = float(model.body_invweight0[[0, body], 0].sum())
        # The four rows of a pyramid have the regularisation of its first row times 2 mu^2.
        weight = 2.0 * friction**2 * (1.0 + friction**2) * inverse_weight
        solref, solimp = (mix[[0, geom]].mean(axis=0) for mix in (model.geom_solref, model.geom_solimp))
        impedance = _impedance(solref, solimp, model.opt.timestep)
        for sign in (1.0, -1.0):
            centre = _point(model.geom_pos[geom] + sign * axis)
            spheres.append(Sphere(body - 1, centre, float(model.geom_size[geom, 0]), friction, weight, impedance))
    return Cheetah(tuple(bodies), tuple(spheres), float(model.opt.timestep), -float(model.opt.gravity[2]))
