"""The arm moves as MuJoCo says."""

from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from scipy.stats import kstest

from pretraining.families.motion import Reacher, ReacherState

ENV = Reacher()
SPACE = ENV.context_space
NUM_CASES = 100


def cases() -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(7)
    tasks = rng.uniform(SPACE.low, SPACE.high, (NUM_CASES, 6))
    states = rng.uniform((-9, -9, -8, -8, -0.2, -0.2), (9, 9, 8, 8, 0.2, 0.2), (NUM_CASES, 6))
    return tuple(array.astype(np.float32) for array in (tasks, states, rng.normal(0.0, 1.0, (NUM_CASES, 2))))


ARM = """
<mujoco><option integrator="RK4" timestep="0.02" gravity="0 0 -9.81"><flag contact="disable"/></option>
<worldbody><body><inertial mass="{mass_1}" pos="{half_1} 0 0" diaginertia="{turn_1} {turn_1} {turn_1}"/>
<joint type="hinge" axis="0 0 1" damping="{damping}" name="first"/>
<body pos="{length_1} 0 0"><inertial mass="{mass_2}" pos="{half_2} 0 0" diaginertia="{turn_2} {turn_2} {turn_2}"/>
<joint type="hinge" axis="0 0 1" damping="{damping}" name="second"/><site name="tip" pos="{length_2} 0 0"/>
</body></body></worldbody>
<actuator><motor joint="first" gear="{torque}"/><motor joint="second" gear="{torque}"/></actuator></mujoco>
"""


def test_a_step_is_that_of_mujoco() -> None:
    tasks, states, actions = cases()
    after = jax.jit(
        jax.vmap(lambda task, state, action: ENV.step(SPACE.unpack(task), ReacherState(*state), tuple(action), ()))
    )(tasks, states, actions)
    found = np.stack(after.state, axis=1)
    for index in range(0, NUM_CASES, 5):
        task = dict(zip(SPACE.names, tasks[index].astype(float), strict=True))
        for link in ("1", "2"):
            length = task[f"length_{link}"]
            task |= {f"half_{link}": length / 2, f"turn_{link}": task[f"mass_{link}"] * length**2 / 12}
        model = mujoco.MjModel.from_xml_string(ARM.format(**task))
        data, state = mujoco.MjData(model), states[index].astype(float)
        data.qpos, data.qvel, data.ctrl = state[:2], state[2:4], np.clip(actions[index], -1.0, 1.0)
        mujoco.mj_step(model, data)
        np.testing.assert_allclose(found[index, :4], [*data.qpos, *data.qvel], rtol=2e-4, atol=2e-4)
        mujoco.mj_forward(model, data)
        distance = np.linalg.norm(data.site("tip").xpos[:2] - state[4:])
        assert float(after.reward[index]) == pytest.approx(-distance - 0.1 * np.sum(data.ctrl**2), abs=1e-4)
    np.testing.assert_array_equal(found[:, 4:], states[:, 4:])  # the target stays
    assert not np.any(after.terminated)


def test_targets_are_uniform_on_the_disc_that_the_stretched_arm_reaches() -> None:
    normals = jax.random.normal(jax.random.key(0), (6, 4000), jnp.float32)
    context = SPACE.unpack(jnp.asarray((1.0, 1.0, 0.08, 0.12, 0.005, 0.05), jnp.float32))
    start = jax.vmap(lambda *noise: ENV.reset(context, noise))(*normals)
    radius = np.hypot(start.target_x, start.target_y) / 0.2
    assert kstest(radius**2, "uniform").pvalue > 1e-3
    assert kstest(np.arctan2(start.target_y, start.target_x), "uniform", (-np.pi, 2 * np.pi)).pvalue > 1e-3
    seen = np.stack(ENV.observe(context, jax.tree.map(lambda array: array[0], start)))
    angles = np.array([start.first[0], start.first[0] + start.second[0]])
    at = 0.8 * np.array([np.cos(angles[0]), np.sin(angles[0])]) + 1.2 * np.array([np.cos(angles[1]), np.sin(angles[1])])
    np.testing.assert_allclose(seen[8:], at - seen[6:8], atol=1e-5)
