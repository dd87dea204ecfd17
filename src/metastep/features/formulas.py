"""The features that come with metastep: one formula each, in one sentence."""

from collections.abc import Callable
from functools import partial
from itertools import combinations
from operator import itemgetter
from typing import Any

import numpy as np

from metastep.features import diagnostics as of
from metastep.features.diagnostics import LOWEST_EXPLAINED, REGISTRY, SMALLEST, Feature, Seen, first_of, log10, over

Formula = Callable[[Seen], Any]


def _feature(
    *needs: str, name: str = "", sentence: str = "", columns: Any = None, bounds: Any = None
) -> Callable[[Formula], Formula]:
    """Register a function, under its own name, as the class that a feature of one's own would be.

    Without `columns(name, mdp)` the feature is one number; `bounds(mdp)` are any finite ones.
    """

    def register(formula: Formula) -> Formula:
        own = name or formula.__name__
        members: dict[str, Any] = {"name": own, "needs": needs, "__doc__": sentence or formula.__doc__}
        members["__call__"] = lambda self, seen: formula(seen)
        if columns:
            members["columns"] = lambda self, mdp: columns(own, mdp)
            members["size"] = lambda self, mdp: len(columns(own, mdp))
        if bounds:
            members["bounds"] = lambda self, mdp: bounds(mdp)
        REGISTRY.register(own, type(own, (Feature,), members))
        return formula

    return register


def _per_parameter(name: str, mdp: Any) -> tuple[str, ...]:
    return tuple(f"{name}[{index}]" for index in range(mdp.num_parameters))


def _per_direction(name: str, mdp: Any) -> tuple[str, ...]:
    return tuple(f"{name}[{direction}]" for direction in mdp.directions)


def norm(vectors: Any, xp: Any) -> Any:
    """Return the lengths of the last axis, scaled by its largest entry first: squares of float32 numbers leave its range."""
    largest = xp.max(xp.abs(vectors), axis=-1)
    safe = xp.where(largest > 0.0, largest, 1.0)
    return largest * xp.sqrt(xp.sum((vectors / safe[..., None]) ** 2, axis=-1))


def _cosine(first: Any, second: Any, xp: Any) -> Any:
    """Return cosines of the angles between vectors of the last axis; 0 where one of them is zero."""
    lengths = ((vectors, norm(vectors, xp)) for vectors in (first, second))
    units = (vectors / xp.where(length > 0.0, length, 1.0)[..., None] for vectors, length in lengths)
    return xp.clip(xp.sum(xp.prod(xp.stack(xp.broadcast_arrays(*units)), axis=0), axis=-1), -1.0, 1.0)


def _logarithm(need: str, seen: Seen) -> Any:
    return log10(seen[need], seen.xp)


_OF_CONTEXTS = {
    "columns": lambda name, mdp: mdp.context_space.names,
    "bounds": lambda mdp: (mdp.context_space.low, mdp.context_space.high),
}
_SEVERAL: dict[str, Any] = {"context": _OF_CONTEXTS, "curvatures": {"columns": _per_direction}}
_SEVERAL |= {name: {"columns": _per_parameter} for name in ("theta", "gradient", "natural_gradient")}

for _name, _need, _sentence in (
    ("context", "context", "The task."),
    ("theta", "theta", "The policy's parameters."),
    ("gradient", "gradient", "The plain gradient of the return."),
    ("natural_gradient", "natural_gradient", "The natural gradient, with the damping of the rule."),
    ("return", "mean_return", "The mean return of the current batch."),
    ("return_error", "return_error", "The standard error of the mean return."),
    ("clip_fraction", "clip_fraction", "Share of ratios that the last update clipped, over all minibatches."),
    ("last_clip_fraction", "last_clip_fraction", "Share of ratios that the last update clipped in its last epoch."),
    ("step_cosine", "step_cosine", "Cosine between the last step and the one before it; 0 before the second."),
):
    _feature(_need, name=_name, sentence=_sentence, **_SEVERAL.get(_name, {}))(itemgetter(_need))

for _name, _need, _sentence in (
    ("curvatures", "curvature", "v'Fv along every direction v: twice the divergence of a step of length 1."),
    ("last_step", "step_norm", "the length of the last step."),
    ("last_divergence", "approx_kl", "the divergence that the last step cost."),
    ("last_rate", "rate", "the learning rate, or bound, that the last update was made with; -6 before the first."),
):
    _feature(_need, name=_name, sentence=f"Decimal logarithm of {_sentence}", **_SEVERAL.get(_name, {}))(
        partial(_logarithm, _need)
    )


# Of simulated learners: the updates they may make. Loops give them by name.


@_feature(
    "steps",
    columns=lambda name, mdp: tuple(f"step[{d}][{i}]" for d in mdp.directions for i in range(mdp.num_parameters)),
)
def steps(seen: Seen) -> Any:
    """What an update adds to theta at h = 1, along every direction."""
    return seen["steps"].reshape(*seen["steps"].shape[:-2], -1)


@_feature(
    "gradient", "natural_gradient", columns=lambda name, mdp: ("log_norm[gradient]", "log_norm[natural_gradient]")
)
def log_norms(seen: Seen) -> Any:
    """Decimal logarithms of the norms of the gradient and of the natural gradient."""
    return log10(norm(seen.xp.stack([seen["gradient"], seen["natural_gradient"]], axis=-2), seen.xp), seen.xp)


@_feature("steps", "gradient", columns=_per_direction)
def slopes(seen: Seen) -> Any:
    """v'g along every direction v: how much the return grows at first, for each unit of h."""
    return seen.xp.sum(seen["steps"] * seen["gradient"][..., None, :], axis=-1)


@_feature("steps", "gradient", "curvature", "return_error", columns=_per_direction)
def gains(seen: Seen) -> Any:
    """Decimal logarithm of v'g / sqrt(v'Fv) over the return's standard error: the slope per root of divergence, in errors."""
    xp = seen.xp
    error = xp.sqrt(xp.maximum(seen["curvature"], 0.0)) * seen["return_error"][..., None]
    return log10(xp.where(error > 0.0, slopes(seen) / xp.where(error > 0.0, error, 1.0), 0.0), xp)


@_feature(
    "steps",
    "gradient",
    columns=lambda name, mdp: tuple(f"cosine[{a}, {b}]" for a, b in combinations((*mdp.directions, "gradient"), 2)),
)
def cosines(seen: Seen) -> Any:
    """Cosines of the angles between all directions, including the plain gradient."""
    vectors = seen.xp.concatenate([seen["steps"], seen["gradient"][..., None, :]], axis=-2)
    first, second = map(np.asarray, zip(*combinations(range(vectors.shape[-2]), 2), strict=True))
    return _cosine(vectors[..., first, :], vectors[..., second, :], seen.xp)


@_feature("steps", "step", columns=_per_direction)
def last_cosines(seen: Seen) -> Any:
    """Cosines of the angles between every direction and the last step; 0 before the first."""
    return _cosine(seen["steps"], seen["step"][..., None, :], seen.xp)


# Of numbers that any training loop can report; most have no unit.


@_feature("mean_return")
def return_change(seen: Seen) -> Any:
    """How much the last update changed the mean return; 0 before the first."""
    return seen.xp.where(seen.memory.sound > 0, seen["mean_return"] - seen.memory.mean_return, 0.0)


@_feature("mean_return", "return_error")
def change_in_errors(seen: Seen) -> Any:
    """How much the last update changed the mean return, in standard errors; 0 before the first."""
    return over(return_change(seen), seen["return_error"], seen.xp)


@_feature("mean_return", "return_error")
def relative_error(seen: Seen) -> Any:
    """Decimal logarithm of the return's standard error over the return's absolute value."""
    return log10(seen["return_error"] / seen.xp.maximum(seen.xp.abs(seen["mean_return"]), SMALLEST), seen.xp)


@_feature()
def update(seen: Seen) -> Any:
    """How many updates were made."""
    return seen.memory.updates


@_feature("budget", bounds=lambda mdp: ((0.0,), (1.0,)))
def budget(seen: Seen) -> Any:
    """Share of a learner's updates that were made; 1 also beyond."""
    return seen.xp.minimum(seen.memory.updates / seen["budget"], 1.0)


@_feature("entropy")
def entropy_change(seen: Seen) -> Any:
    """Entropy of the policy on the current batch minus that on the first one, in nats."""
    return seen.xp.where(seen.memory.sound > 0, seen["entropy"] - seen.memory.first_entropy, 0.0)


@_feature("entropy")
def first_entropy(seen: Seen) -> Any:
    """Entropy of the policy on the first batch, in nats, to a tenth: what kind of actions there are, and how many.

    It is rounded so that policies of the same kind are alike whatever their first weights are.
    """
    first = seen.xp.where(seen.memory.sound > 0, seen.memory.first_entropy, seen["entropy"])
    return seen.xp.round(10.0 * first) / 10.0


@_feature("explained_variance", bounds=lambda mdp: ((LOWEST_EXPLAINED,), (1.0,)))
def explained_variance(seen: Seen) -> Any:
    """1 - Var(target - value) / Var(target) of the critic on the current batch, at least -1."""
    return seen.xp.maximum(seen["explained_variance"], LOWEST_EXPLAINED)


@_feature("step_norm")
def step_ratio(seen: Seen) -> Any:
    """Decimal logarithm of the length of the last step over that of the one before it; 0 before the second."""
    ratio = over(seen["step_norm"], seen.memory.step_norm, seen.xp)
    return seen.xp.where(ratio <= 0.0, 0.0, log10(ratio, seen.xp))


@_feature("step_norm", "parameter_norm")
def relative_step(seen: Seen) -> Any:
    """Decimal logarithm of the length of the last step over that of the parameters; -6 before the first."""
    return log10(over(seen["step_norm"], seen["parameter_norm"], seen.xp), seen.xp)


@_feature("gradient_norm")
def gradient_change(seen: Seen) -> Any:
    """Decimal logarithm of the gradient's norm over that of the first update; 0 before it.

    A ratio of two norms of the same loss: with the critic's error in it, the norm itself has the unit of the rewards, squared.
    """
    first = first_of(seen.memory.first_gradient_norm, seen["gradient_norm"], seen.xp)
    ratio = over(seen["gradient_norm"], first, seen.xp)
    return seen.xp.where(first > 0.0, log10(ratio, seen.xp), 0.0)


@_feature("actor_gradient_norm", "parameter_norm")
def actor_gradient(seen: Seen) -> Any:
    """Decimal logarithm of the norm of the actor's gradient times that of all parameters; -6 before the first update.

    The product, since a gradient has the inverse unit of the parameters: it is how much the actor's loss changes for a relative
    change of the parameters. With standardised advantages that loss has no unit either.
    """
    return log10(seen["actor_gradient_norm"] * seen["parameter_norm"], seen.xp)


@_feature("target_std")
def target_change(seen: Seen) -> Any:
    """Decimal logarithm of the standard deviation of the critic's targets over that on the first batch.

    Relative to the first batch, not to the mean return, which may be zero: rewards in another unit change neither.
    """
    first = first_of(seen.memory.first_target_std, seen["target_std"], seen.xp)
    ratio = over(seen["target_std"], first, seen.xp)
    return seen.xp.where(first > 0.0, log10(ratio, seen.xp), 0.0)


@_feature("mean_return", "return_error")
def smoothed_change(seen: Seen) -> Any:
    """Moving average of the changes of the mean return, the last one weighing a fifth, in standard errors of the return."""
    return over(of.smoothed_change(seen.memory, seen["mean_return"], seen.xp), seen["return_error"], seen.xp)


@_feature("mean_return", "return_error")
def drop_in_errors(seen: Seen) -> Any:
    """How far the mean return is below the best one so far, in standard errors; 0 where it is the best."""
    best = of.best_return(seen.memory, seen["mean_return"], seen.xp)
    return over(best - seen["mean_return"], seen["return_error"], seen.xp)


@_feature("gradient_steps")
def gradient_steps(seen: Seen) -> Any:
    """Decimal logarithm of how many gradient steps the last update made; 0 before the first."""
    return seen.xp.log10(seen.xp.maximum(seen["gradient_steps"], 1.0))
