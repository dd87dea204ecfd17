"""Environments that are not JAX: MuJoCo's C engine, any Gymnasium environment, or your own."""

from metastep.envs.host.base import Episodes, HostEnv, HostStep

__all__ = ["Episodes", "HostEnv", "HostStep"]
