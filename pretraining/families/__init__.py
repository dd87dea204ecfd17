"""Families of tasks, and one table of settings of them: those that models are trained on, and others for the final test.

`build("hopper")` returns an environment of the table. Configurations name one as `pretraining.families:hopper`, and a family with
other options as `pretraining.families.robots:Hopper`.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from metastep import InputError
from metastep.envs import Acrobot, CartPoleV1, Env, MountainCar, Pendulum, register
from pretraining import wrappers as w
from pretraining.families.games import Asterix, Breakout, Catch, Freeway, Pursuit
from pretraining.families.motion import Beam, Integrator, Reacher, Springs, Swing, TwoPoles
from pretraining.families.navigation import Door, Grid, Key, Room
from pretraining.families.robots import Hopper, Runner, Swimmer, Walker, Worm
from pretraining.families.systems import Car, DiscreteNetwork, Drone, Lander, Prey, RandomNetwork, Stock, Tanks
from pretraining.families.tables import Bandit, ContinuousBandit, Queues, River, Tabular


class Setting(NamedTuple):
    """A family, how it is varied, and how long and at what discount it is played."""

    family: type[Any]
    horizon: int
    discount: float = 0.99
    wrappers: tuple[Callable[[Any], Env], ...] = ()  # the innermost first
    options: Mapping[str, Any] = MappingProxyType({})


# Most settings draw the scale of rewards, or of observations too, with the task.
_PAID, _BOTH = (w.ScaledRewards,), (w.ScaledRewards, w.ScaledObservations)
_NOISY, _MIXED, _DISCRETE = (w.NoisyObservations,), (w.MixedObservations,), (w.DiscreteActions,)
_hold = partial(partial, w.RepeatedActions)
_late = partial(partial, w.DelayedRewards)

TRAINING: dict[str, Setting] = {
    "hopper": Setting(Hopper, 250),
    "hopper-endless": Setting(Hopper, 200, 0.99, _BOTH, {"falls": False}),
    "runner": Setting(Runner, 200),
    "runner-falls": Setting(Runner, 250, 0.99, (*_MIXED, *_PAID), {"falls": True}),
    "worm": Setting(Worm, 200, 0.98, _PAID),
    "swimmer": Setting(Swimmer, 250, 0.995),
    "swimmer-held": Setting(Swimmer, 100, 0.98, (_hold(times=4), *_BOTH)),
    "reacher": Setting(Reacher, 100, 0.98, _PAID),
    "reacher-discrete": Setting(Reacher, 100, 0.95, (*_DISCRETE, *_BOTH)),
    "reacher-noisy": Setting(Reacher, 150, 0.99, (*_NOISY, *_PAID)),
    "springs": Setting(Springs, 100, 0.98, _BOTH),
    "springs-discrete": Setting(Springs, 100, 0.98, (*_DISCRETE, *_PAID)),
    "springs-late": Setting(Springs, 150, 0.99, (partial(w.DelayedObservations, steps=2),)),
    "two-poles": Setting(TwoPoles, 300, 0.99, _BOTH),
    "two-poles-noisy": Setting(TwoPoles, 200, 0.98, (partial(w.NoisyObservations, sigma=0.02), w.StickyActions)),
    "tabular": Setting(Tabular, 100, 0.95, _PAID),
    "tabular-small": Setting(Tabular, 50, 0.9, (), {"states": 6, "num_choices": 8}),
    "tabular-sparse": Setting(Tabular, 100, 0.97, _PAID, {"states": 32, "sparse": True}),
    "catch": Setting(Catch, 50, 0.99, _BOTH),
    "catch-sticky": Setting(Catch, 50, 0.98, (partial(w.StickyActions, chance=0.3), *_MIXED)),
    "grid": Setting(Grid, 60, 0.98, _PAID),
    "grid-limited": Setting(Grid, 60, 0.99, (partial(w.TimeLimit, steps=40), partial(w.ScaledRewards, shift=0.5))),
    "network": Setting(RandomNetwork, 100, 0.97, _BOTH),
    "network-discrete": Setting(DiscreteNetwork, 100, 0.97, _PAID),
    "network-large": Setting(RandomNetwork, 150, 0.99, _MIXED, {"size": 12}),
    "network-ends": Setting(DiscreteNetwork, 200, 0.99, _BOTH, {"size": 6, "ends": True}),
    "breakout": Setting(Breakout, 300, 0.99),
    "breakout-sticky": Setting(Breakout, 200, 0.97, (w.StickyActions, *_BOTH)),
    "freeway": Setting(Freeway, 200, 0.99, _PAID),
    "freeway-held": Setting(Freeway, 100, 0.98, (_hold(times=2),)),
    "door": Setting(Door, 150, 0.99),
    "door-dense": Setting(Door, 100, 0.98, (*_MIXED, *_PAID), {"dense": True}),
    "door-open": Setting(Door, 100, 0.99, (_late(steps=20),), {"wall": False, "dense": True}),
    "key": Setting(Key, 100, 0.98),
    "key-hurry": Setting(Key, 100, 0.99, _BOTH, {"cost": 0.02}),
    "swing": Setting(Swing, 250, 0.99),
    "swing-balance": Setting(Swing, 250, 0.99, _BOTH, {"start": 0.0}),
    "swing-discrete": Setting(Swing, 200, 0.98, (*_DISCRETE, *_PAID), {"ends": False}),
    "integrator": Setting(Integrator, 100, 0.98, _PAID),
    "integrator-jerk": Setting(Integrator, 150, 0.99, _BOTH, {"order": 3, "ends": True}),
    "integrator-plane": Setting(Integrator, 100, 0.97, (*_MIXED, *_NOISY), {"axes": 2}),
    "integrator-discrete": Setting(Integrator, 100, 0.95, (*_DISCRETE, *_BOTH), {"order": 1, "axes": 2}),
    "bandit": Setting(Bandit, 50, 0.9, _PAID),
    "bandit-continuous": Setting(ContinuousBandit, 50, 0.9, _BOTH),
    "prey": Setting(Prey, 150, 0.99, _PAID),
    "prey-discrete": Setting(Prey, 100, 0.98, (*_DISCRETE, *_NOISY)),
    "beam": Setting(Beam, 200, 0.99, _BOTH),
    "beam-late": Setting(Beam, 200, 0.99, (*_DISCRETE, partial(w.DelayedActions, steps=2))),
    "tanks": Setting(Tanks, 100, 0.98, _PAID),
    "tanks-late": Setting(Tanks, 150, 0.99, (_hold(times=2), partial(w.DelayedActions, steps=1), *_BOTH)),
    "pursuit": Setting(Pursuit, 100, 0.98, _PAID),
    "pursuit-late": Setting(Pursuit, 100, 0.99, (_late(steps=10), *_BOTH)),
    "pendulum-scaled": Setting(Pendulum, 200, 0.95, _BOTH),
    "pendulum-discrete": Setting(Pendulum, 200, 0.97, (*_DISCRETE, _late(steps=4))),
    "cartpole-scaled": Setting(CartPoleV1, 300, 0.99, _BOTH),
    "mountaincar-held": Setting(MountainCar, 100, 0.99, (_hold(times=8), *_PAID)),
}

# No class of these is in the training table.
TEST: dict[str, Setting] = {
    "lander": Setting(Lander, 300, 0.99),
    "acrobot-scaled": Setting(Acrobot, 300, 0.99, _PAID),
    "asterix": Setting(Asterix, 200, 0.99),
    "river": Setting(River, 100, 0.98),
    "queues": Setting(Queues, 100, 0.97, _PAID),
    "walker": Setting(Walker, 250, 0.99),
    "room": Setting(Room, 100, 0.98, _BOTH),
    "drone": Setting(Drone, 200, 0.99),
    "car": Setting(Car, 150, 0.99, _PAID),
    "stock": Setting(Stock, 100, 0.97, _BOTH),
}

SETTINGS: dict[str, Setting] = TRAINING | TEST


def build(name: str) -> Env:
    """Return the environment of a setting; its `name` is that of the setting."""
    if name not in SETTINGS:
        raise InputError(f"family: {name!r} is not in the table; allowed are {', '.join(SETTINGS)}.")
    setting = SETTINGS[name]
    env = setting.family(**setting.options)
    for wrapper in setting.wrappers:
        env = wrapper(env)
    return w.Named(env, name)


for _name in SETTINGS:
    register(_name, partial(build, _name))

__all__ = ["SETTINGS", "TEST", "TRAINING", "Setting", "build"]
