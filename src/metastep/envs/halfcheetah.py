"""HalfCheetah that has to run at a goal velocity (paper, appendix B.4; after MAML), on MuJoCo's C engine or in JAX.

Model, observation, frame skip and start are those of the installed Gymnasium's HalfCheetah-v5. Every step pays

    -|v - v_goal| - 0.05 sum a^2

with v the forward displacement over the duration of the step and a the action clipped to ±1. No episode ends early.

In JAX (`metastep.envs.planar`) the physics are those of the C engine in float32. The motion is chaotic: what float32 rounds away
grows to other episodes within some tens of steps, with the same distribution.
"""

import math
import warnings
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from metastep._core.errors import InputError
from metastep._core.numerics import to_uniform
from metastep._core.parallel import count_threads
from metastep._core.settings import Count, check_fields, check_options
from metastep.envs.base import Context, Step
from metastep.envs.contexts import ContextSpace
from metastep.envs.host import Bools, Floats, HostStep, Restartable, Seeds
from metastep.envs.planar import NUM_SLIDES, Body, Cheetah, CheetahState, Impedance, Point, Scalars, Sphere, advance

NUM_JOINTS = 9  # the forward position comes first; it is not observed
NUM_MOTORS = 6

_unit_uniform = jax.jit(lambda noise: to_uniform(noise, -1.0, 1.0))


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
        body = Body(
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
        bodies.append(body)
    spheres = []
    for geom in range(1, model.ngeom):  # the first one is the floor
        axis = _rotation(model.geom_quat[geom])[:, 2] * model.geom_size[geom, 1]
        friction = float(max(model.geom_friction[[0, geom], 0]))
        owner = int(model.geom_bodyid[geom])
        inverse_weight = float(model.body_invweight0[[0, owner], 0].sum())
        # The four rows of a pyramid have the regularisation of its first row times 2 mu^2.
        weight = 2.0 * friction**2 * (1.0 + friction**2) * inverse_weight
        solref, solimp = (mix[[0, geom]].mean(axis=0) for mix in (model.geom_solref, model.geom_solimp))
        impedance = _impedance(solref, solimp, model.opt.timestep)
        for sign in (1.0, -1.0):
            centre = _point(model.geom_pos[geom] + sign * axis)
            spheres.append(Sphere(owner - 1, centre, float(model.geom_size[geom, 0]), friction, weight, impedance))
    return Cheetah(tuple(bodies), tuple(spheres), float(model.opt.timestep), -float(model.opt.gravity[2]))


@dataclass(frozen=True)
class _HalfCheetah:
    """What both engines have in common."""

    context_space: ContextSpace = ContextSpace(("goal_velocity",), (0.0,), (2.0,), ("m/s",))
    frame_skip: Count = 5  # physics steps an action
    control_cost: float = 0.05  # the weight of sum a^2
    # Whether a^2 is of the clipped action, which motors obey, or of the policy's. The paper does not say.
    cost_of: Literal["clipped", "unclipped"] = "clipped"
    reset_scale: float = 0.1  # bound of the uniform noise on first positions, standard deviation of that on velocities

    name, packages = "halfcheetah", ("mujoco", "gymnasium")  # the engine and the model file
    num_observations, num_actions, reset_noise, step_noise = 2 * NUM_JOINTS - 1, NUM_MOTORS, 2 * NUM_JOINTS, 0

    def __post_init__(self) -> None:
        check_fields(self, "env")


@dataclass(frozen=True)
class HalfCheetahVel(_HalfCheetah):
    """Run at the goal velocity; float64 physics in C, all lanes on a pool of threads."""

    # Threads that share the lanes; 0 takes every processor. No result depends on it.
    num_threads: Annotated[int, Ge(0)] = field(default=0, compare=False)

    def start_episodes(self, context: NDArray[np.float32], noise: NDArray[np.float32], seeds: Seeds) -> Restartable:
        """Near the model's rest position; the noise says where, the seeds are not needed."""
        return _CheetahEpisodes(self, context, noise)


class _CheetahEpisodes:
    """Lanes of one `mujoco.batch.Batch`, (episodes, learners) in row-major order."""

    def __init__(self, env: HalfCheetahVel, context: NDArray[np.float32], noise: NDArray[np.float32]) -> None:
        model = load_model()  # or a sentence on what is missing
        from mujoco import mjtWarning
        from mujoco.batch import Batch

        self._env, self._shape = env, noise.shape[:2]
        self._goal = context[:, 0].astype(np.float64)
        self._duration = model.opt.timestep * env.frame_skip
        self._batch = Batch(model, nsim=math.prod(self._shape), nthread=count_threads(env.num_threads or None))
        self._position, self._velocity, self._control = (self._batch.bind(name) for name in ("qpos", "qvel", "ctrl"))
        self._begin(None, noise)
        unstable = (mjtWarning.mjWARN_BADQPOS, mjtWarning.mjWARN_BADQVEL, mjtWarning.mjWARN_BADQACC)
        self._unstable = [int(kind) for kind in unstable]

    def _begin(self, lanes: NDArray[np.intp] | None, noise: NDArray[np.float32]) -> None:
        """Put these lanes, or all, where the noise of all says."""
        from mujoco import mjtStage

        which, scale = slice(None) if lanes is None else lanes, self._env.reset_scale
        flat = noise.reshape(-1, self._env.reset_noise)
        shift = np.asarray(_unit_uniform(flat[:, :NUM_JOINTS]), np.float64)
        self._batch.reset(lanes, stage=mjtStage.mjSTAGE_NONE)
        self._position[which] = load_model().qpos0 + scale * shift[which]
        self._velocity[which] = scale * flat[which, NUM_JOINTS:].astype(np.float64)
        # As in Gymnasium: the forward pass gives the solver of the first step its warm start.
        self._batch.forward(lanes)

    def restart(self, which: Bools, noise: NDArray[np.float32], seeds: Seeds) -> None:
        self._begin(np.flatnonzero(which), noise)

    def observe(self) -> Floats:
        seen = np.concatenate([self._position[:, 1:], self._velocity], axis=1)
        return seen.reshape(*self._shape, self._env.num_observations)

    def step(self, action: Floats, noise: Floats, alive: Bools) -> HostStep:
        wanted = action.reshape(-1, NUM_MOTORS).astype(np.float64)
        torque = np.clip(wanted, -1.0, 1.0)
        before = self._position[:, 0].copy()
        # A NaN stays in the reward, where it flags the learner; MuJoCo would write it into a log file.
        self._control[:] = np.where(np.isnan(torque), 0.0, torque)
        moving = None if alive.all() else np.flatnonzero(alive)
        self._batch.step(moving, nstep=self._env.frame_skip)
        velocity = ((self._position[:, 0] - before) / self._duration).reshape(self._shape)
        paid = torque if self._env.cost_of == "clipped" else wanted
        cost = self._env.control_cost * np.sum(paid**2, axis=1).reshape(self._shape)
        reward = -np.abs(velocity - self._goal) - cost
        # MuJoCo silently starts an unstable simulation afresh; its learner is flagged instead.
        broken = (self._batch.warning[:, self._unstable, 1] > 0).any(axis=1).reshape(self._shape)
        return HostStep(np.where(broken, np.nan, reward), np.zeros(self._shape, np.bool_))


@dataclass(frozen=True)
class HalfCheetahVelPlanar(_HalfCheetah):
    """Run at the goal velocity; float32 physics in JAX, written for this model (`metastep.envs.planar`)."""

    # Of the constraint solver in every physics step: of a million steps with random torques four leave 101 in which one more
    # would move the accelerations by a thousandth, five 5, six 1, and eight none in a third more time.
    iterations: Count = field(default=6, metadata={"of": "engine"})  # another number is the same environment
    # Whether a GPU computes the physics of an action in one kernel; without it, XLA makes many slower programs.
    kernel: bool = field(default=True, metadata={"of": "engine"})

    def reset(self, context: Context, noise: Scalars) -> CheetahState:
        position = tuple(to_uniform(normal, -self.reset_scale, self.reset_scale) for normal in noise[:NUM_JOINTS])
        velocity = tuple(self.reset_scale * normal for normal in noise[NUM_JOINTS:])
        return CheetahState(position, velocity, tuple(jnp.zeros_like(speed) for speed in velocity))

    def observe(self, context: Context, state: CheetahState) -> Scalars:
        """Positions without the forward one, then velocities."""
        return (*state.position[1:], *state.velocity)

    def step(self, context: Context, state: CheetahState, action: Scalars, noise: Scalars) -> Step:
        cheetah = read_model()
        torque = tuple(jnp.clip(wanted, -1.0, 1.0) for wanted in action)
        after = advance(cheetah, state, torque, self.frame_skip, self.iterations, kernel=self.kernel)
        velocity = (after.position[0] - state.position[0]) / (cheetah.timestep * self.frame_skip)
        paid = torque if self.cost_of == "clipped" else action
        cost = self.control_cost * sum(force**2 for force in paid)
        return Step(after, -jnp.abs(velocity - context.goal_velocity) - cost, jnp.bool_(False))


def half_cheetah(
    engine: Literal["auto", "c", "planar"] = "auto", **options: Any
) -> HalfCheetahVel | HalfCheetahVelPlanar:
    """HalfCheetah on MuJoCo's C engine or on the planar one; "auto" is planar where JAX runs on a GPU and C otherwise."""
    kinds: dict[str, Any] = {"c": HalfCheetahVel, "planar": HalfCheetahVelPlanar}
    if engine not in ("auto", *kinds):
        raise InputError(f"env.engine: {engine!r} must be auto, c or planar.")
    kind = kinds.get(engine) or kinds["c" if jax.default_backend() == "cpu" else "planar"]
    own = [entry.name for entry in fields(kind)]
    # "auto" takes the options of both and leaves out those of the engine it does not take.
    both = {entry.name for each in kinds.values() for entry in fields(each)} if engine == "auto" else {*own}
    known = ["engine", *sorted(both.difference(own)), *(name for name in own if name != "context_space")]
    check_options(f"halfcheetah on engine {engine!r}", options, kind, known, "env.options")
    return kind(**{name: value for name, value in options.items() if name in own})
