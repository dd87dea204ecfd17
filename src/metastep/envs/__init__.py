"""Contextual MDPs, most of them in pure JAX, and the registry that names them."""

from typing import Any

from metastep._core.numerics import runge_kutta, sincos, to_truncated_normal, to_uniform, wrap
from metastep._core.settings import Registry
from metastep.envs.base import Context, Env, Step, choices_of, range_of
from metastep.envs.cartpole import CartPole, CartPoleV1, SwingUp
from metastep.envs.contexts import ContextSpace
from metastep.envs.halfcheetah import half_cheetah
from metastep.envs.host import HostEnv
from metastep.envs.small import LQR, Acrobot, Minigolf, MountainCar, Nav2D, Pendulum

# The context space has a setting of its own, and no value that a file could hold.
REGISTRY: Registry[Env | HostEnv] = Registry("env.name", "env.options", hidden=("context_space",))
register, names, make = REGISTRY.register, REGISTRY.names, REGISTRY.make

_families: tuple[Any, ...] = (Nav2D, Minigolf, CartPole, SwingUp, LQR, Pendulum, Acrobot, MountainCar)
for _family in _families:
    register(_family.name, _family, label=_family.__name__)
register("halfcheetah", half_cheetah, label="HalfCheetah")
register("cartpole-v1", CartPoleV1, label="CartPole-v1")


def make_env(name: str, **options: Any) -> Env | HostEnv:
    """Build a registered environment, or `module:name`, which imports the module first; options are its class's fields."""
    return make(name, **options)


__all__ = ["LQR", "Acrobot", "CartPole", "CartPoleV1", "Context", "ContextSpace", "Env", "HostEnv", "Minigolf"]
__all__ += ["MountainCar", "Nav2D", "Pendulum", "Step", "SwingUp", "choices_of", "half_cheetah", "range_of"]
# Functions for environments of your own, faster on a CPU than those of JAX.
__all__ += ["runge_kutta", "sincos", "to_truncated_normal", "to_uniform", "wrap"]
__all__ += ["REGISTRY", "make", "make_env", "names", "register"]
