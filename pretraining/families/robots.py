"""Planar robots with random limbs on the library's planar engine: hopper, walker, runner, worm and swimmer."""

from functools import reduce
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from metastep.envs import Context, ContextSpace, Step, to_uniform
from metastep.envs import planar as engine
from metastep.envs.planar import NUM_SLIDES, Body, Cheetah, CheetahState, Impedance, Load, Point, Sphere
from pretraining.families.base import Family, Scalars, clipped

DT, SKIP, ITERATIONS = 0.01, 4, 4  # s, physics steps an action, and Newton steps of each
RADIUS, DENSITY = 0.05, 4.0  # m, of limbs, and kg/m
SOFT = Impedance(0.8, 0.95, 0.01, 0.5, 2, 1.0 / (0.95 * 0.02) ** 2, 2.0 / (0.95 * 0.02))
MAX_SPEED = 20.0  # m/s and rad/s


class Limb(NamedTuple):
    """A rod; its length is a coordinate of the task."""

    name: str
    parent: int | None  # by number
    at_end: bool  # of the parent, or at its hinge
    x: float  # direction with all angles at zero, forward and up
    z: float
    limits: tuple[float, float] | None = None  # of the hinge, positive from up to forward


def _leg(hip: int, first: int, *, at_end: bool = False) -> tuple[Limb, ...]:
    """Return thigh, shin and foot, of numbers from `first` on."""
    shin = Limb("shin", first, True, 0.0, -1.0, (-0.2, 1.5))
    foot = Limb("foot", first + 1, True, 1.0, 0.0, (-0.7, 0.7))
    return Limb("thigh", hip, at_end, 0.0, -1.0, (-0.8, 1.0)), shin, foot


_TORSO, _TRUNK = Limb("torso", None, False, 0.0, 1.0), Limb("torso", None, False, 1.0, 0.0)
_LINKS = tuple(Limb(f"link_{n}", n - 1 if n else None, True, 1.0, 0.0, (-1.5, 1.5) if n else None) for n in range(4))
LIMBS = {
    "hopper": (_TORSO, *_leg(0, 1)),
    "walker": (_TORSO, *_leg(0, 1), *_leg(0, 4)),
    "runner": (_TRUNK, *_leg(0, 1)[:2], *_leg(0, 3, at_end=True)[:2]),
    "worm": _LINKS,
    "swimmer": _LINKS[:3],
}
LENGTHS = {"torso": (0.3, 0.6), "thigh": (0.25, 0.45), "shin": (0.3, 0.5), "foot": (0.15, 0.3)}


def _space(kind: str) -> ContextSpace:
    names = tuple(dict.fromkeys(limb.name for limb in LIMBS[kind]))
    low, high = zip(*(LENGTHS.get(name, (0.2, 0.5)) for name in names), strict=True)
    motor, other = ((1.0, 4.0), ("drag", 5.0, 15.0)) if kind == "swimmer" else ((10.0, 40.0), ("friction", 0.6, 1.4))
    return ContextSpace((*names, "gear", other[0]), (*low, motor[0], other[1]), (*high, motor[1], other[2]))


class Robot(Family):
    """Move forward: a step pays the speed, less 0.05 times the mean squared torque, plus 1 where falling ends episodes.

    Torques at all hinges but the root's are from -1 to 1 times `gear`. A robot falls where it leans by more than 0.8 rad or its
    root is below 0.6 of its height at the start.
    """

    context_space: Any = None  # by default that of the limbs
    falls: bool = False

    joint: ClassVar = 0.2, 0.0, 1.5  # armature, stiffness and damping of the hinges
    limbs = property(lambda self: LIMBS[self.name])
    num_actions = property(lambda self: len(self.limbs) - 1)
    num_observations = property(lambda self: 2 * (NUM_SLIDES + len(self.limbs)) - 1)
    reset_noise = property(lambda self: self.num_observations - 1)

    def __init_subclass__(cls) -> None:
        cls.name = cls.__name__.lower()
        cls.__annotations__ = {"context_space": ContextSpace} | cls.__annotations__  # a default of its own
        cls.context_space = _space(cls.name)
        super().__init_subclass__()

    def model(self, context: Context) -> Cheetah:
        """Return the robot of a task."""
        lengths = [getattr(context, limb.name) for limb in self.limbs]
        ends = [Point(limb.x * length, limb.z * length) for limb, length in zip(self.limbs, lengths, strict=True)]
        bodies = []
        for (_, parent, at_end, *_, limits), length, end in zip(self.limbs, lengths, ends, strict=True):
            hinge = ends[parent] if at_end and parent is not None else Point(0.0, 0.0)
            mass, size, centre = DENSITY * (length + RADIUS), length + RADIUS, Point(0.5 * end.x, 0.5 * end.z)
            inertia, own = mass * size**2 / 12.0, (0.0, 0.0, 0.0) if parent is None else self.joint
            gear = None if parent is None else context.gear
            bodies.append(Body(parent, hinge, centre, mass, inertia, *own, gear, limits, 5.0, SOFT))
        if self.name == "swimmer":
            return Cheetah(tuple(bodies), (), DT, 0.0)
        weight = 8.0 * context.friction**2 * (1.0 + context.friction**2) / sum(body.mass for body in bodies)
        tips = *enumerate(ends), (0, Point(0.0, 0.0))
        spheres = (Sphere(number, tip, RADIUS, context.friction, weight, SOFT) for number, tip in tips)
        return Cheetah(tuple(bodies), tuple(spheres), DT, 9.81)

    def height(self, context: Context) -> Array:
        """Return how high the root is where all angles are zero and the lowest limb touches the floor."""
        robot = self.model(context)
        nothing = (jnp.zeros_like(context.gear),) * (NUM_SLIDES + len(robot.bodies))
        pose = engine.pose_of(robot, nothing)
        tips = [pose[sphere.body].height + pose[sphere.body].turned(sphere.centre).z for sphere in robot.spheres]
        return RADIUS - reduce(jnp.minimum, tips, jnp.zeros_like(context.gear))

    def reset(self, context: Context, noise: Scalars) -> CheetahState:
        """Near its rest, which touches the floor."""
        half = len(noise) // 2
        angles, speeds = (tuple(to_uniform(z, -0.05, 0.05) for z in part) for part in (noise[:half], noise[half:]))
        zero, height = jnp.zeros_like(context.gear), self.height(context) + angles[0]
        return CheetahState((zero, height, *angles[1:]), (zero, *speeds), (zero,) * (half + 1))

    def observe(self, context: Context, state: CheetahState) -> Scalars:
        """Height, angles and speeds, cut off at 10."""
        return (*state.position[1:], *(jnp.clip(speed, -10.0, 10.0) for speed in state.velocity))

    def step(self, context: Context, state: CheetahState, action: Scalars, noise: Scalars) -> Step:
        robot, torques = self.model(context), clipped(action)

        def advance(_: int, state: CheetahState) -> CheetahState:
            after = self.physics(context, robot, state, torques)
            return after._replace(velocity=tuple(jnp.clip(speed, -MAX_SPEED, MAX_SPEED) for speed in after.velocity))

        after = lax.fori_loop(0, SKIP, advance, state)
        speed = (after.position[0] - state.position[0]) / (SKIP * DT)
        reward = speed - 0.05 * sum(torque**2 for torque in torques) / len(torques) + float(self.falls)
        if not self.falls:
            return Step(after, reward, jnp.bool_(False))
        fallen = (jnp.abs(after.position[2]) > 0.8) | (after.position[1] < 0.6 * self.height(context))
        return Step(after, reward, fallen)

    def physics(self, context: Context, robot: Cheetah, state: CheetahState, torques: Scalars) -> CheetahState:
        """Return the state after one physics step."""
        return engine.step(robot, state, torques, ITERATIONS)


class Hopper(Robot):
    """One leg with a foot."""

    falls: bool = True


class Walker(Robot):
    """Two legs with feet."""

    falls: bool = True


class Runner(Robot):
    """A trunk between two legs without feet."""


class Worm(Robot):
    """A chain of four links on the floor."""


class Swimmer(Robot):
    """Three links in a fluid, seen from above, which resists motion across a link ten times as much as along it."""

    joint = 0.01, 1.0, 0.05

    def physics(self, context: Context, robot: Cheetah, state: CheetahState, torques: Scalars) -> CheetahState:
        pose, loads = engine.pose_of(robot, state.position), []
        motions = engine.motions(robot, pose, state.velocity)
        for limb, body, placed, motion in zip(self.limbs, robot.bodies, pose, motions, strict=True):
            centre, along = placed.turned(body.centre), placed.turned(Point(limb.x, limb.z))
            speed, length = motion.at(centre), getattr(context, limb.name)
            slides = 0.9 * (speed.x * along.x + speed.z * along.z)
            force = Point(-(speed.x - slides * along.x), -(speed.z - slides * along.z))
            spun, drag = -motion.spin * length**2 / 12.0, context.drag * length
            loads.append(Load(drag * force.x, drag * force.z, drag * spun).moved(centre))
        forces = engine.smooth_forces(robot, pose, state.position, state.velocity, torques)
        forces = [a + b for a, b in zip(forces, engine.joint_forces(robot, pose, loads), strict=True)]
        hinges = [body.armature + DT * body.damping for body in robot.bodies]
        rates = engine.solve(engine.assemble(robot, pose, engine.inertias(robot, pose), hinges), forces)
        velocity = tuple(speed + DT * rate for speed, rate in zip(state.velocity, rates, strict=True))
        position = tuple(at + DT * speed for at, speed in zip(state.position, velocity, strict=True))
        return CheetahState(position, velocity, rates)
