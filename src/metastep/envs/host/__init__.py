"""Environments that are not JAX: MuJoCo's C engine, any Gymnasium environment, or your own."""

from metastep.envs.host.base import Episodes, HostEnv, HostStep, Restartable
from metastep.envs.host.gymnasium_env import GymnasiumEnv
from metastep.envs.host.halfcheetah import HalfCheetahVel

__all__ = ["Episodes", "GymnasiumEnv", "HalfCheetahVel", "HostEnv", "HostStep", "Restartable"]
