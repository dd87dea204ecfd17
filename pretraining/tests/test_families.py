"""All settings of the table keep the contract of environments; physics and games obey their laws and rules."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metastep import InputError, load_experiment, make_env
from metastep.envs import planar as engine
from metastep.envs.cartpole import CartPoleState
from metastep.envs.planar import CheetahState
from metastep.testing import check_env
from pretraining.families import SETTINGS, TEST, TRAINING, build, robots
from pretraining.families.__main__ import main, play
from pretraining.families.games import Breakout, BreakoutState, Freeway, FreewayState
from pretraining.families.motion import Springs, SpringsState, TwoPoles, TwoPolesState
from pretraining.families.robots import DT, Hopper, Swimmer
from pretraining.families.systems import Prey, PreyState
from pretraining.families.tables import Number, Tabular

PRESETS = sorted((Path(__file__).parents[1] / "presets").glob("*.toml"))
# In every run a share of the table, with each wrapper at least once; all of it in `make soak`.
SHARE = ("swimmer", "springs-late", "two-poles-noisy", "grid-limited", "breakout", "door-open", "integrator-discrete")
SHARE += ("beam-late", "tanks-late", "tabular-sparse", "bandit-continuous", "catch-sticky", "river", "stock")


def task_of(env: Any, *values: float) -> Any:
    return env.context_space.unpack(jnp.asarray(values, jnp.float32))


def numbers(*values: Any) -> Any:
    return jax.tree.map(jnp.float32, values)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in SHARE else [pytest.mark.soak]) for n in SETTINGS])
def test_settings_keep_the_contract(name: str) -> None:
    """Random returns differ between tasks, too, and episodes do not end at once."""
    env = build(name)
    assert env.name == name
    check_env(env)
    returns, lengths, _ = play(env, SETTINGS[name].horizon, num=64)
    assert np.isfinite(returns).all()
    assert np.unique(returns).size > 1
    assert np.median(lengths) > 3


def test_the_table_is_large_and_its_test_half_shares_no_family_with_training() -> None:
    assert len(TRAINING) >= 40
    assert len(TEST) == 10
    assert not {s.family for s in TRAINING.values()} & {s.family for s in TEST.values()}
    for table in (TRAINING, TEST):
        discrete = [build(name).num_choices is not None for name in table]
        assert 0.3 < np.mean(discrete) < 0.7
    used = {getattr(each, "func", each) for setting in map(SETTINGS.get, SHARE) for each in setting.wrappers}
    assert used == {getattr(each, "func", each) for setting in SETTINGS.values() for each in setting.wrappers}


def test_configurations_name_settings_and_unknown_ones_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert make_env("pretraining.families:river") == build("river")
    with pytest.raises(InputError, match=r"'rivers' is not in the table; allowed are hopper, "):
        build("rivers")
    main(["river"])
    assert capsys.readouterr().out.splitlines()[1].split()[:5] == ["river", "8", "1", "of", "2"]


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
@pytest.mark.parametrize("scale", ["quick", "full"])
def test_presets_name_a_family(preset: Path, scale: str) -> None:
    config = load_experiment(preset, scale)
    assert type(make_env(config.env.name)) in {setting.family for setting in SETTINGS.values()}
    assert config.learner == "search"


def test_a_hopper_in_the_air_moves_as_in_mujoco() -> None:
    mujoco = pytest.importorskip("mujoco")
    env, lengths = Hopper(), {"torso": 0.5, "thigh": 0.3, "shin": 0.4, "foot": 0.2}
    task = task_of(env, *lengths.values(), 20.0, 1.0)
    inside, motors = "", ""
    for body, (name, parent, *_) in reversed([*zip(env.model(task).bodies, env.limbs, strict=True)]):
        place = "0 0 5" if parent is None else f"{body.hinge.x} 0 {body.hinge.z}"
        slides = '<joint type="slide" axis="1 0 0"/><joint type="slide" axis="0 0 1"/>' if parent is None else ""
        hinge = f'<joint name="{name}" axis="0 1 0" armature="{body.armature}" damping="{body.damping}"/>'
        own = f'<inertial pos="{body.centre.x} 0 {body.centre.z}" mass="{body.mass}" diaginertia="1 {body.inertia} 1"/>'
        inside = f'<body pos="{place}">{slides}{hinge}{own}{inside}</body>'
        motors = motors if parent is None else f'<motor joint="{name}" gear="20"/>{motors}'
    head = f'<option timestep="{DT}"/><compiler inertiafromgeom="false" balanceinertia="true"/>'
    text = f"<mujoco>{head}<worldbody>{inside}</worldbody><actuator>{motors}</actuator></mujoco>"
    model = mujoco.MjModel.from_xml_string(text)
    data = mujoco.MjData(model)
    start, speeds, torques = [0.0, 0.0, 0.1, 0.1, 0.3, -0.1], [0.5, 1.0, 0.3, -0.4, 0.2, 0.1], [0.3, -0.2, 0.1]
    data.qpos[:], data.qvel[:], data.ctrl[:] = start, speeds, torques
    state = CheetahState(numbers(0.0, 5.0, *start[2:]), numbers(*speeds), numbers(*[0.0] * 6))
    move = jax.jit(lambda state: env.physics(task, env.model(task), state, numbers(*torques)))
    for _ in range(8):
        mujoco.mj_step(model, data)
        state = move(state)
    np.testing.assert_allclose(np.array(state.velocity), data.qvel, atol=2e-4)
    np.testing.assert_allclose(np.array(state.position) - [0, 5, 0, 0, 0, 0], data.qpos, atol=1e-5)


def test_a_chain_of_links_without_drag_keeps_its_momentum_and_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over one second they drift by a few percent, and by an eighth of that with an eighth of the time step."""
    env = Swimmer()
    task, drifts = task_of(env, 0.3, 0.4, 0.35, 2.0, 0.0), []
    start = CheetahState(numbers(0.0, 0.0, 0.2, 0.4, -0.3), numbers(0.3, -0.2, 0.5, 0.6, -0.4), numbers(*[0.0] * 5))
    for steps in (100, 800):
        monkeypatch.setattr(robots, "DT", 1.0 / steps)
        robot = env.model(task)._replace(bodies=tuple(body._replace(damping=0.0) for body in env.model(task).bodies))

        def laws(state: CheetahState, robot: Any = robot) -> Any:
            pose = engine.pose_of(robot, state.position)
            matrix = engine.assemble(
                robot, pose, engine.inertias(robot, pose), [body.armature for body in robot.bodies]
            )
            masses = jnp.stack(
                [jnp.stack([jnp.asarray(matrix[max(i, j), min(i, j)]) for j in range(5)]) for i in range(5)]
            )
            speeds, bends = jnp.stack(state.velocity), zip(robot.bodies, state.position[2:], strict=True)
            spring = sum(0.5 * body.stiffness * angle**2 for body, angle in bends)
            return jnp.stack([*(masses @ speeds)[:2], 0.5 * speeds @ masses @ speeds + spring])

        def move(_: int, state: CheetahState, robot: Any = robot) -> CheetahState:
            return env.physics(task, robot, state, numbers(0.0, 0.0))

        after = jax.jit(lambda laws=laws, move=move, steps=steps: laws(jax.lax.fori_loop(0, steps, move, start)))()
        drifts.append(np.abs(np.asarray(after - laws(start))))
    assert (drifts[0] < 0.1 * np.abs(laws(start))).all()
    np.testing.assert_array_less(drifts[1], 0.3 * drifts[0])


def test_free_springs_and_populations_keep_what_their_equations_keep() -> None:
    """Springs keep their energy; Lotka and Volterra's equations without hunting keep d (x - log x) + g (y - log y)."""
    springs, prey = Springs(), Prey()
    loose, wild = task_of(springs, 1.0, 4.0, 0.0, 1.0, 0.0), task_of(prey, 0.8, 1.2, 0.7, 1.0)

    def energy(state: SpringsState) -> Any:
        ends = (jnp.float32(0.0), *state[:3], jnp.float32(0.0))
        stretched = sum((right - left) ** 2 for left, right in pairwise(ends))
        return 0.5 * 4.0 * stretched + 0.5 * sum(speed**2 for speed in state[3:])

    def kept(state: PreyState) -> Any:
        return 1.2 * (state.prey - jnp.log(state.prey)) + 0.8 * (state.predators - jnp.log(state.predators))

    def move(states: Any, _: None) -> Any:
        first = springs.step(loose, states[0], numbers(0.0), ()).state
        second = prey.step(wild, states[1], numbers(-1.0, -1.0), numbers(0.0, 0.0)).state
        return (first, second), (energy(states[0]), kept(states[1]))

    start = SpringsState(*numbers(0.2, -0.1, 0.3, 0.1, 0.0, -0.2)), PreyState(*numbers(1.5, 0.6))
    for found in jax.jit(lambda: jax.lax.scan(move, start, None, length=100)[1])():
        np.testing.assert_allclose(found, found[0], rtol=5e-3)


def test_a_pole_without_mass_leaves_the_other_one_as_in_cartpole() -> None:
    """Accelerations are those of an Euler step of CartPole-v1 over its time."""
    poles, one = TwoPoles(), make_env("cartpole-v1")
    task, other = task_of(poles, 0.8, 0.1, 0.0, 0.5, 0.1, 9.0), task_of(one, 0.8, 0.1, 0.5, 9.0)
    position, speed, angle, spin, idle = (jnp.float32(value) for value in (0.3, -0.5, 0.2, 0.7, 0.0))
    found = poles.derivative(task, TwoPolesState(position, angle, idle, speed, spin, idle), task.force)
    after = one.step(other, CartPoleState(position, speed, angle, spin), (jnp.int32(1),), ()).state
    expected = (after.velocity - speed) / 0.02, (after.angular_velocity - spin) / 0.02
    np.testing.assert_allclose((found.speed, found.spin_1), expected, rtol=1e-4)


def test_rows_of_tables_sum_to_one_and_say_how_often_states_are_reached() -> None:
    env = Tabular(states=5, num_choices=2)
    task, state = task_of(env, 0.37), Number(jnp.int32(3))
    _, row = env.row(task, state, jnp.int32(1))
    noise = jax.random.normal(jax.random.key(0), (4000,))
    reached = jax.vmap(lambda z: env.step(task, state, (jnp.int32(1),), (z,)).state.number)(noise)
    assert float(row.sum()) == pytest.approx(1.0, abs=1e-6)
    np.testing.assert_allclose(np.bincount(reached, minlength=5) / 4000, row, atol=4 * 0.5 / 4000**0.5)


def test_breakout_obeys_its_rules() -> None:
    """An episode by hand: caught, a brick, caught where the paddle follows, and missed where it does not."""
    env = Breakout()
    task, full = task_of(env, 0.0, 0.0), int(env.reset(task_of(env, 0.0, 0.0), numbers(0.1, 0.1)).bricks)
    state = BreakoutState(*numbers(5.0, 3.0, 7.0, 1.0, 1.0), jnp.int32(full))

    def follow(actions: Sequence[int]) -> Any:
        nonlocal state
        for action in actions:
            after = env.step(task, state, (jnp.int32(action),), numbers(0.0))
            state = after.state
        return [float(value) for value in state[:5]], float(after.reward), bool(after.terminated)

    assert follow([1]) == ([5.0, 4.0, 8.0, 1.0, 1.0], 0.0, False)
    assert follow([1]) == ([5.0, 5.0, 8.0, 1.0, -1.0], 0.0, False)  # caught in the last row, and on the way up
    assert follow([1, 1, 1, 1]) == ([5.0, 9.0, 4.0, 1.0, -1.0], 0.0, False)
    assert follow([2]) == ([6.0, 9.0, 4.0, -1.0, 1.0], 1.0, False)  # the wall, and a brick of the lowest row
    assert int(state.bricks) == full - 2**29
    assert follow([0] * 4) == ([2.0, 5.0, 8.0, -1.0, 1.0], 0.0, False)
    assert follow([2]) == ([3.0, 4.0, 9.0, -1.0, 1.0], 0.0, True)
    last = BreakoutState(*numbers(5.0, 4.0, 8.0, 1.0, 1.0), jnp.int32(0))
    assert int(env.step(task, last, (jnp.int32(1),), numbers(0.0)).state.bricks) == full


def test_freeway_pays_on_the_other_side_and_cars_lead_back() -> None:
    env = Freeway()
    task = task_of(env, 0.5, 0.0, 1.0)
    away = FreewayState(jnp.float32(8.0), numbers(*[3.0] * 8))
    hit = away._replace(row=jnp.float32(2.0), cars=numbers(3.0, 3.0, 0.6, *[3.0] * 5))
    over, back = (env.step(task, state, (jnp.int32(2),), ()) for state in (away, hit))
    assert (float(over.reward), float(over.state.row)) == (1.0, 0.0)
    assert (float(back.reward), float(back.state.row)) == (0.0, 0.0)
    assert float(env.step(task, hit, (jnp.int32(1),), ()).state.row) == 2.0  # the car is in the next lane
