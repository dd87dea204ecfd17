"""The arm moves as SymPy's Lagrangian and MuJoCo say, and keeps its energy where nothing brakes or drives it."""

from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from scipy.stats import kstest

from pretraining.families.reacher import Reacher, ReacherState, derivative

ENV = Reacher()
SPACE = ENV.context_space
NUM_CASES = 100


def cases() -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(7)
    tasks = rng.uniform(SPACE.low, SPACE.high, (NUM_CASES, 6))
    states = rng.uniform((-9, -9, -8, -8, -0.2, -0.2), (9, 9, 8, 8, 0.2, 0.2), (NUM_CASES, 6))
    return tuple(array.astype(np.float32) for array in (tasks, states, rng.normal(0.0, 1.0, (NUM_CASES, 2))))


def test_accelerations_are_those_of_the_lagrangian() -> None:
    sympy = pytest.importorskip("sympy")
    time, *symbols = sympy.symbols("t m1 m2 l1 l2 d u1 u2")
    mass_1, mass_2, length_1, length_2, damping, *torques = symbols
    angles = [sympy.Function(name)(time) for name in ("a", "b")]

    def along(*parts: Any) -> Any:
        """Where links of these lengths at these angles lead."""
        return sympy.Matrix([sum(f(angle) * length for length, angle in parts) for f in (sympy.cos, sympy.sin)])

    turns, energy = (angles[0], angles[0] + angles[1]), 0
    centres = along((length_1 / 2, turns[0])), along((length_1, turns[0]), (length_2 / 2, turns[1]))
    for mass, length, centre, turn in zip((mass_1, mass_2), (length_1, length_2), centres, turns, strict=True):
        speed, spin = centre.diff(time), turn.diff(time)
        energy += mass * speed.dot(speed) / 2 + mass * length**2 / 12 * spin**2 / 2  # a rod about its centre
    pulls = [
        energy.diff(angle.diff(time)).diff(time) - energy.diff(angle) + damping * angle.diff(time) - torque
        for angle, torque in zip(angles, torques, strict=True)
    ]
    names = sympy.symbols("A B p q s1 s2")
    swaps = [(angle.diff(time, 2), name) for angle, name in zip(angles, names[:2], strict=True)]
    swaps += [(angle.diff(time), name) for angle, name in zip(angles, names[2:4], strict=True)]
    swaps += list(zip(angles, names[4:], strict=True))
    plain = sympy.Matrix([pull.subs(swaps) for pull in pulls])
    matrix, rest = plain.jacobian(names[:2]), plain.subs(dict.fromkeys(names[:2], 0))
    of_numbers = sympy.lambdify([*symbols, *names[2:]], [matrix, rest])
    tasks, states, actions = cases()
    for task, state, action in zip(tasks, states, actions, strict=True):
        context = SPACE.unpack(jnp.asarray(task))
        torque = tuple(context.torque * part for part in action)
        found = derivative(context, ReacherState(*map(jnp.float32, state)), torque)
        numbers = [*task[:5].astype(float), *(float(part) for part in torque), *state[[2, 3, 0, 1]].astype(float)]
        left, right = of_numbers(*numbers)
        expected = np.linalg.solve(left, -np.ravel(right))
        np.testing.assert_allclose((found.first_speed, found.second_speed), expected, rtol=2e-3, atol=2e-2)


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


def test_without_damping_and_torque_energy_is_kept() -> None:
    tasks, states, _ = cases()
    free = tasks * (1, 1, 1, 1, 0, 1)

    def energy(task: Any, state: Any) -> Any:
        """Kinetic: half the squared speed of every point of the links; two points of a rod give its mean."""
        mass_1, mass_2, length_1, length_2 = task[:4]
        speeds = np.array([state[2], state[2] + state[3]])
        elbow = length_1 * speeds[0] * np.array([-np.sin(state[0]), np.cos(state[0])])
        total = mass_1 * (length_1 * speeds[0]) ** 2 / 6
        for place in (0.5 - 0.5 / np.sqrt(3), 0.5 + 0.5 / np.sqrt(3)):  # Gauss's points: exact for a rod
            angle = state[0] + state[1]
            there = elbow + place * length_2 * speeds[1] * np.array([-np.sin(angle), np.cos(angle)])
            total += mass_2 / 2 * (there @ there) / 2
        return total

    def go(task: Any, state: Any) -> Any:
        context, idle = SPACE.unpack(task), (jnp.float32(0.0),) * 2
        step = lambda now, _: (ENV.step(context, now, idle, ()).state, None)  # noqa: E731
        return jax.lax.scan(step, ReacherState(*state), None, length=100)[0]

    after = np.stack(jax.jit(jax.vmap(go))(free.astype(np.float32), 0.5 * states), axis=1).astype(float)
    start, end = ([energy(*pair) for pair in zip(free, each, strict=True)] for each in (0.5 * states, after))
    np.testing.assert_allclose(end, start, rtol=2e-3)
    assert np.abs(after[:, :2] - 0.5 * states[:, :2]).mean() > 1.0


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
