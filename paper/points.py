"""What the paper leaves open for each environment: the points, the choices at each, and the readings that they make up.

The first choice at every point is what was taken before the readings were screened; a preset keeps it as `[readings.first]`.
"""

from collections.abc import Mapping
from itertools import product
from typing import NamedTuple

_RELATIVE = ("rollout.fisher=closed", "rollout.damping_kind=relative", "meta.rule.damping=0.001")
_ITERATED = ("rollout.fisher=truncated", "rollout.damping_kind=absolute", "rollout.cg_iterations=10")


class Point(NamedTuple):
    """One thing that the paper leaves open."""

    name: str
    says: str  # what there is in the paper about it
    choices: Mapping[str, tuple[str, ...]]  # overrides of the preset, by a short name


class Reading(NamedTuple):
    """A choice at every point."""

    environment: str
    choices: tuple[str, ...]  # in the order of the points
    overrides: tuple[str, ...]

    @property
    def name(self) -> str:
        """Short names of the choices, joined."""
        return "+".join(self.choices)


def _spread(number: str, variance: str, square: str) -> Point:
    """The second number of N(0, v)."""
    choices = {"variance": (f"initial.variance={variance}",), "deviation": (f"initial.variance={square}",)}
    says = f"First policies are N(0, {number}); whether that is the variance or the standard deviation is not said."
    return Point("theta_0", says, choices)


_NATURAL = Point(
    "natural gradient",
    "Natural gradients may be had with some steps of conjugate gradient, and the code is based on Baselines, whose own takes 10 "
    "with an absolute damping of 0.1 (its MuJoCo settings) or 0.01; neither solver nor damping is said.",
    {
        "exact": _RELATIVE,
        "cg-0.1": (*_ITERATED, "meta.rule.damping=0.1"),
        "cg-0.01": (*_ITERATED, "meta.rule.damping=0.01"),
    },
)

POINTS: dict[str, tuple[Point, ...]] = {
    "nav2d": (
        Point(
            "goals",
            "Goals are U(-1, 1) in the description and U(-0.5, 0.5) in the list of parameters.",
            {"half": ("env.options.goal_range=0.5",), "whole": ("env.options.goal_range=1.0",)},
        ),
        _spread("0.1", "0.1", "0.01"),
        _NATURAL,
    ),
    "minigolf": (
        Point(
            "noise",
            "The noise of a stroke is N(0, 0.25); whether that is the variance or the standard deviation is not said.",
            {"variance": ("env.options.noise_scale=0.5",), "deviation": ("env.options.noise_scale=0.25",)},
        ),
        Point(
            "theta_0",
            "Slope and intercept (w, b) are U((-1, 2), (-2, 3.5)); policies are written with the intercept first.",
            {
                "slope-first": ("initial.low=[-2.0, -1.0]", "initial.high=[3.5, 2.0]"),
                "intercept-first": ("initial.low=[-1.0, -2.0]", "initial.high=[2.0, 3.5]"),
            },
        ),
        _NATURAL,
    ),
    "cartpole": (
        Point(
            "force",
            "An action between 0 and 1 pushes the cart left or right with 10 N; the policy is Gaussian.",
            {name: (f"env.options.force={name}",) for name in ("bang-bang", "continuous", "newtons")},
        ),
        _spread("0.01", "0.01", "0.0001"),
        _NATURAL,
    ),
    "swingup": (
        Point(
            "start",
            "The environment is that of Duan et al. (rllab), which starts in a wide range; the paper has no word on it.",
            {"hanging": ("env.options.start=hanging",), "wide": ("env.options.start=wide",)},
        ),
        Point(
            "action",
            "rllab scales actions in [-1, 1] to the forces there are; the paper has no word on it.",
            {"newtons": ("env.options.action_scale=1.0",), "scaled": ("env.options.action_scale=10.0",)},
        ),
        _spread("0.1", "0.1", "0.01"),
        _NATURAL,
    ),
    "halfcheetah": (
        Point(
            "control cost",
            "The reward is that of MAML's environment; whether it charges the clipped action is not said.",
            {"clipped": ("env.options.cost_of=clipped",), "unclipped": ("env.options.cost_of=unclipped",)},
        ),
        _spread("0.1", "0.1", "0.01"),
        _NATURAL,
    ),
}

FOLLOWED: Mapping[str, tuple[str, ...]] = {
    "nav2d": ("half", "deviation", "cg-0.01"),
    "minigolf": ("deviation", "slope-first", "cg-0.01"),
    "cartpole": ("newtons", "deviation", "cg-0.01"),
    "swingup": ("hanging", "newtons", "deviation", "exact"),
    "halfcheetah": ("unclipped", "deviation", "cg-0.1"),
}
"""The choices that the presets follow, in the order of the points."""


def readings(environment: str) -> tuple[Reading, ...]:
    """The readings of an environment, every combination of choices, the first one first."""
    points = POINTS[environment]
    return tuple(
        Reading(
            environment,
            chosen,
            tuple(override for point, name in zip(points, chosen, strict=True) for override in point.choices[name]),
        )
        for chosen in product(*(point.choices for point in points))
    )
