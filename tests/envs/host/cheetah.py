"""HalfCheetah-v5 itself, started and driven like ours, and helpers that the engines' tests share."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from metastep._core.numerics import standard_normals
from metastep.envs.host.halfcheetah import HalfCheetahVel

DURATION = 0.05


def start_noise(num_lanes: int, seed: int = 0) -> np.ndarray:
    """(1, lanes, 18) standard normals: one episode a learner."""
    normals = standard_normals(jax.random.key(seed), 0, HalfCheetahVel.reset_noise, (1, num_lanes))
    return np.asarray(jnp.stack(normals, axis=-1))


def start_episodes(env: HalfCheetahVel, goals: np.ndarray, noise: np.ndarray):
    context = np.asarray(goals, np.float32)[:, None]
    return env.start_episodes(context, noise, np.zeros(noise.shape[:2], np.uint32))


def gymnasium_episode(position: np.ndarray, velocity: np.ndarray, actions: np.ndarray, goal: float):
    """Observations (steps + 1, 17) and goal-velocity rewards (steps,) of HalfCheetah-v5 from a given state."""
    env = gymnasium.make("HalfCheetah-v5").unwrapped
    env.reset(seed=0)
    env.set_state(position, velocity)
    observations, rewards = [env._get_obs()], []
    for action in actions:
        observation, _, _, _, info = env.step(action)
        observations.append(observation)
        rewards.append(-abs(info["x_velocity"] - goal) - 0.05 * np.sum(np.square(action.astype(np.float64))))
    env.close()
    return np.asarray(observations), np.asarray(rewards)
