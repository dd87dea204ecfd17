"""The constants of HalfCheetah, as Python numbers."""

import importlib.util
import warnings
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from metastep._core.errors import InputError

NUM_SLIDES = 2  # forward and up; the torso's hinge and six more follow, one for each body
_SMALLEST_IMPEDANCE, _LARGEST_IMPEDANCE = 0.0001, 0.9999  # MuJoCo's mjMINIMP and mjMAXIMP
_FLOOR = 0  # the geom
_UPRIGHT = (1.0, 0.0, 0.0, 0.0)  # the quaternion of no rotation


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


@cache
def load_model() -> Any:
    """The MuJoCo model (`mujoco.MjModel`) of Gymnasium's HalfCheetah-v5, or one sentence about what is not installed."""
    missing = InputError(
        'env: halfcheetah needs MuJoCo and Gymnasium, install them with pip install "metastep[mujoco]".'
    )
    try:
        import mujoco

        package = importlib.util.find_spec("gymnasium")
    except (ImportError, ValueError):  # a module without a specification
        raise missing from None
    if package is None or package.origin is None:
        raise missing
    path = Path(package.origin).parent / "envs" / "mujoco" / "assets" / "half_cheetah.xml"
    with warnings.catch_warnings():
        # Through MjSpec, because MjModel.from_xml_path writes the same warning into a log file in the working directory.
        warnings.filterwarnings("ignore", message=".*settotalmass.*")
        return mujoco.MjSpec.from_file(str(path)).compile()


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


@cache
def read_model() -> Cheetah:
    """The constants of the model as MuJoCo compiles it."""
    model = load_model()
    import mujoco

    # What this engine takes for granted.
    capsules, joints = slice(1, None), np.arange(model.nbody - 1 + NUM_SLIDES)
    types = [mujoco.mjtJoint.mjJNT_SLIDE] * NUM_SLIDES + [mujoco.mjtJoint.mjJNT_HINGE] * (model.nbody - 1)
    turned, axes = np.maximum(joints - NUM_SLIDES + 1, 1), [(1, 0, 0), (0, 0, 1), *[(0, 1, 0)] * (model.nbody - 1)]
    expected = {
        "the first geom is the floor": model.geom_type[_FLOOR] == mujoco.mjtGeom.mjGEOM_PLANE
        and model.geom_bodyid[_FLOOR] == 0
        and not model.geom_pos[_FLOOR].any()
        and np.array_equal(model.geom_quat[_FLOOR], _UPRIGHT),
        "all geoms but the floor are capsules": (model.geom_type[capsules] == mujoco.mjtGeom.mjGEOM_CAPSULE).all(),
        "capsules touch nothing but the floor": not (
            np.bitwise_or.reduce(model.geom_contype[capsules]) & np.bitwise_or.reduce(model.geom_conaffinity[capsules])
        ),
        "friction cones are pyramids": model.opt.cone == mujoco.mjtCone.mjCONE_PYRAMIDAL
        and (model.geom_condim == 3).all(),
        "the torso slides forward and up, and every body has one hinge": np.array_equal(model.jnt_type, types)
        and np.array_equal(model.jnt_bodyid, turned),
        "joints are at the origins of their bodies": not model.jnt_pos.any() and not model.qpos0.any(),
        "hinges turn from up to forward": np.array_equal(model.jnt_axis, axes),
        "bodies are upright at the start": (model.body_quat == _UPRIGHT).all(),
        "motors come in the order of their hinges": (model.actuator_trntype == mujoco.mjtTrn.mjTRN_JOINT).all()
        and (np.diff(model.actuator_trnid[:, 0]) > 0).all(),
        "the integrator is Euler's": model.opt.integrator == mujoco.mjtIntegrator.mjINT_EULER,
    }
    for assumption, holds in expected.items():
        if not holds:
            unlike = f"the installed model of HalfCheetah, of which it is not true that {assumption}"
            raise InputError(f'env.engine: "planar" does not know {unlike}; allowed is "c".')
    gears = dict(zip(model.actuator_trnid[:, 0].tolist(), model.actuator_gear[:, 0].tolist(), strict=True))
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
    spheres = []
    for geom in range(1, model.ngeom):
        axis = _rotation(model.geom_quat[geom])[:, 2] * model.geom_size[geom, 1]
        friction = float(max(model.geom_friction[[_FLOOR, geom], 0]))
        body = int(model.geom_bodyid[geom])
        inverse_weight = float(model.body_invweight0[[0, body], 0].sum())
        # The four rows of a pyramid have the regularisation of its first row times 2 mu^2.
        weight = 2.0 * friction**2 * (1.0 + friction**2) * inverse_weight
        solref, solimp = (mix[[_FLOOR, geom]].mean(axis=0) for mix in (model.geom_solref, model.geom_solimp))
        impedance = _impedance(solref, solimp, model.opt.timestep)
        for sign in (1.0, -1.0):
            centre = _point(model.geom_pos[geom] + sign * axis)
            spheres.append(Sphere(body - 1, centre, float(model.geom_size[geom, 0]), friction, weight, impedance))
    start = tuple(map(float, model.qpos0))
    return Cheetah(tuple(bodies), tuple(spheres), start, float(model.opt.timestep), -float(model.opt.gravity[2]))
