"""HalfCheetah that has to run at a goal velocity (paper, appendix B.4; after MAML), on MuJoCo's C engine.

Model, observation, frame skip and start are those of Gymnasium's HalfCheetah-v5; the model file is read from the installed
gymnasium package. Every step pays

    -|v - v_goal| - 0.05 sum a^2

with v the forward displacement over the duration of the step and a the action clipped to ±1. An episode never
ends early.
"""

import importlib.util
import math
import warnings
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep._core.errors import InputError
from metastep._core.numerics import to_uniform
from metastep._core.parallel import count_threads
from metastep.envs.contexts import ContextSpace
from metastep.envs.host.base import Bools, Floats, HostStep, Seeds

NUM_JOINTS = 9  # the forward position comes first; it is not observed
NUM_MOTORS = 6
GOAL_VELOCITY = ContextSpace(("goal_velocity",), (0.0,), (2.0,), ("m/s",))

CostOf = Literal["clipped", "unclipped"]

_MISSING = 'env: halfcheetah needs MuJoCo and Gymnasium, install them with pip install "metastep[mujoco]".'


@cache
def load_model() -> Any:
    """The MuJoCo model (`mujoco.MjModel`) of HalfCheetah-v5, or one sentence about what is not installed."""
    try:
        import mujoco
    except ImportError:
        raise InputError(_MISSING) from None
    try:
        package = importlib.util.find_spec("gymnasium")
    except ValueError:  # a module without a specification
        package = None
    if package is None or package.origin is None:
        raise InputError(_MISSING)
    path = Path(package.origin).parent / "envs" / "mujoco" / "assets" / "half_cheetah.xml"
    with warnings.catch_warnings():
        # Through MjSpec, because MjModel.from_xml_path writes the same warning into a log file in the working directory.
        warnings.filterwarnings("ignore", message=".*settotalmass.*")
        return mujoco.MjSpec.from_file(str(path)).compile()


def check_cost(cost_of: str) -> None:
    """Refuse a word that means nothing."""
    if cost_of not in get_args(CostOf):
        raise InputError(f"env.cost_of: {cost_of!r} must be one of {', '.join(get_args(CostOf))}.")


@jax.jit
def _unit_uniform(noise: Array) -> Array:
    return to_uniform(noise, -1.0, 1.0)


@dataclass(frozen=True)
class HalfCheetahVel:
    """Run at the goal velocity; float64 physics in C, all lanes on a pool of threads.

    Args:
        frame_skip: physics steps an action.
        control_cost: the weight of sum a^2.
        cost_of: whether a^2 is that of the "clipped" action, which the motors obey, or of the policy's own, "unclipped". The
            paper does not say.
        reset_scale: bound of the uniform noise on the initial positions and standard deviation of that on the velocities.
        num_threads: threads that share the lanes; 0 takes every processor. No result depends on it.
    """

    context_space: ContextSpace = GOAL_VELOCITY
    frame_skip: int = 5
    control_cost: float = 0.05
    cost_of: CostOf = "clipped"
    reset_scale: float = 0.1
    num_threads: int = field(default=0, compare=False)

    name: ClassVar[str] = "halfcheetah"
    packages: ClassVar[tuple[str, ...]] = ("mujoco", "gymnasium")  # the engine and the model file
    num_observations, num_actions = 2 * NUM_JOINTS - 1, NUM_MOTORS
    reset_noise, step_noise = 2 * NUM_JOINTS, 0

    def __post_init__(self) -> None:
        if self.frame_skip < 1:
            raise InputError(f"env.frame_skip: {self.frame_skip} must be at least 1.")
        check_cost(self.cost_of)
        if self.num_threads < 0:
            raise InputError(f"env.num_threads: {self.num_threads} must be at least 1, or 0 for every processor.")

    def start_episodes(
        self, context: NDArray[np.float32], noise: NDArray[np.float32], seeds: Seeds
    ) -> "_CheetahEpisodes":
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
