"""All families keep the contract of environments, and the presets name them."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from metastep import load_experiment, make_env
from metastep.envs.cartpole import CartPoleState
from metastep.testing import check_env
from pretraining.families import FAMILIES
from pretraining.families.two_poles import TwoPolesState, derivative

PRESETS = sorted((Path(__file__).parents[1] / "presets").glob("*.toml"))


@pytest.mark.parametrize("name", FAMILIES)
def test_families_keep_the_contract(name: str) -> None:
    check_env(FAMILIES[name]())


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
@pytest.mark.parametrize("scale", ["quick", "full"])
def test_presets_name_a_family(preset: Path, scale: str) -> None:
    config = load_experiment(preset, scale)
    assert type(make_env(config.env.name)) in FAMILIES.values()
    assert config.learner == "search"


def test_a_pole_without_mass_leaves_the_other_one_as_in_cartpole() -> None:
    """Accelerations are those of an Euler step of CartPole-v1 over its time."""
    tasks = [(0.8, 0.1, 0.0, 0.5, 0.1, 9.0), (0.8, 0.1, 0.5, 9.0)]
    poles, one = FAMILIES["two-poles"](), make_env("cartpole-v1")
    task, other = (env.context_space.unpack(jnp.asarray(each)) for env, each in zip((poles, one), tasks, strict=True))
    position, speed, angle, spin, idle = (jnp.float32(value) for value in (0.3, -0.5, 0.2, 0.7, 0.0))
    found = derivative(task, TwoPolesState(position, (angle, idle), speed, (spin, idle)), task.force)
    after = one.step(other, CartPoleState(position, speed, angle, spin), (jnp.int32(1),), ()).state
    expected = (after.velocity - speed) / 0.02, (after.angular_velocity - spin) / 0.02
    np.testing.assert_allclose((found.speed, found.spins[0]), expected, rtol=1e-4)
