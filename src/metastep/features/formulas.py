"""The features of this library; a function's docstring is the sentence in tables and documentation.

The parameters of a function are the diagnostics that it needs; `memory` and `xp` are those of `Seen`.
"""

from collections.abc import Callable
from inspect import signature
from itertools import combinations
from typing import Any

import numpy as np

from metastep.features import diagnostics as of
from metastep.features.diagnostics import LOWEST_EXPLAINED, REGISTRY, SMALLEST, Feature, first_of, log10, over


def norm(vectors: Any, xp: Any) -> Any:
    """Return norms over the last axis, scaled by the largest entry, because squares of float32 numbers may overflow."""
    largest = xp.max(xp.abs(vectors), axis=-1)
    safe = xp.where(largest > 0.0, largest, 1.0)
    return largest * xp.sqrt(xp.sum((vectors / safe[..., None]) ** 2, axis=-1))


def _cosine(first: Any, second: Any, xp: Any) -> Any:
    """Return cosines of the angles between vectors of the last axis; 0 where one of them is zero."""
    lengths = ((vectors, norm(vectors, xp)) for vectors in (first, second))
    units = (vectors / xp.where(length > 0.0, length, 1.0)[..., None] for vectors, length in lengths)
    return xp.clip(xp.sum(xp.prod(xp.stack(xp.broadcast_arrays(*units)), axis=0), axis=-1), -1.0, 1.0)


# Features of possible updates of simulated learners. Training loops report them by name.


def steps(steps: Any) -> Any:
    """What an update adds to theta at h = 1, along every direction."""
    return steps.reshape(*steps.shape[:-2], -1)


def log_norms(gradient: Any, natural_gradient: Any, xp: Any) -> Any:
    """Decimal logarithms of the norms of the gradient and of the natural gradient."""
    return log10(norm(xp.stack([gradient, natural_gradient], axis=-2), xp), xp)


def slopes(steps: Any, gradient: Any, xp: Any) -> Any:
    """v'g along every direction v: how much the return grows at first, for each unit of h."""
    return xp.sum(steps * gradient[..., None, :], axis=-1)


def gains(steps: Any, gradient: Any, curvature: Any, return_error: Any, xp: Any) -> Any:
    """Decimal logarithm of v'g / sqrt(v'Fv) over the return's standard error: the slope per root of divergence, in errors."""
    error = xp.sqrt(xp.maximum(curvature, 0.0)) * return_error[..., None]
    return log10(xp.where(error > 0.0, slopes(steps, gradient, xp) / xp.where(error > 0.0, error, 1.0), 0.0), xp)


def cosines(steps: Any, gradient: Any, xp: Any) -> Any:
    """Cosines of the angles between all directions, including the plain gradient."""
    vectors = xp.concatenate([steps, gradient[..., None, :]], axis=-2)
    first, second = map(np.asarray, zip(*combinations(range(vectors.shape[-2]), 2), strict=True))
    return _cosine(vectors[..., first, :], vectors[..., second, :], xp)


def last_cosines(steps: Any, step: Any, xp: Any) -> Any:
    """Cosines of the angles between every direction and the last step; 0 before the first."""
    return _cosine(steps, step[..., None, :], xp)


# Of numbers that any training loop can report; most have no unit.


def return_change(mean_return: Any, memory: Any, xp: Any) -> Any:
    """How much the last update changed the mean return; 0 before the first."""
    return xp.where(memory.sound > 0, mean_return - memory.mean_return, 0.0)


def change_in_errors(mean_return: Any, return_error: Any, memory: Any, xp: Any) -> Any:
    """How much the last update changed the mean return, in standard errors; 0 before the first."""
    return over(return_change(mean_return, memory, xp), return_error, xp)


def relative_error(mean_return: Any, return_error: Any, xp: Any) -> Any:
    """Decimal logarithm of the return's standard error over the return's absolute value."""
    return log10(return_error / xp.maximum(xp.abs(mean_return), SMALLEST), xp)


def update(memory: Any) -> Any:
    """How many updates were made."""
    return memory.updates


def budget(budget: Any, memory: Any, xp: Any) -> Any:
    """Share of a learner's updates that were made; 1 also beyond."""
    return xp.minimum(memory.updates / budget, 1.0)


def own_steps(own_steps: Any, xp: Any) -> Any:
    """Decimal logarithm of the gradient steps of an update without a model; not a number where that is not known."""
    return xp.where(own_steps > 0.0, xp.log10(xp.maximum(own_steps, 1.0)), np.nan)


def entropy_change(entropy: Any, memory: Any, xp: Any) -> Any:
    """Entropy of the policy on the current batch minus that on the first one, in nats."""
    return xp.where(memory.sound > 0, entropy - memory.first_entropy, 0.0)


def first_entropy(entropy: Any, memory: Any, xp: Any) -> Any:
    """Entropy of the policy on the first batch, in nats, to a tenth: what kind of actions there are, and how many."""
    # Rounded, so that policies of the same kind are alike whatever their first weights are.
    return xp.round(10.0 * xp.where(memory.sound > 0, memory.first_entropy, entropy)) / 10.0


def explained_variance(explained_variance: Any, xp: Any) -> Any:
    """1 - Var(target - value) / Var(target) of the critic on the current batch, at least -1."""
    return xp.maximum(explained_variance, LOWEST_EXPLAINED)


def step_ratio(step_norm: Any, memory: Any, xp: Any) -> Any:
    """Decimal logarithm of the length of the last step over that of the one before it; 0 before the second."""
    ratio = over(step_norm, memory.step_norm, xp)
    return xp.where(ratio <= 0.0, 0.0, log10(ratio, xp))


def relative_step(step_norm: Any, parameter_norm: Any, xp: Any) -> Any:
    """Decimal logarithm of the length of the last step over that of the parameters; -6 before the first."""
    return log10(over(step_norm, parameter_norm, xp), xp)


def gradient_change(gradient_norm: Any, memory: Any, xp: Any) -> Any:
    """Decimal logarithm of the gradient's norm over that of the first update; 0 before it."""
    # A ratio, since with the critic's error in the loss the norm itself has the unit of the rewards, squared.
    return _since(memory.first_gradient_norm, gradient_norm, xp)


def actor_gradient(actor_gradient_norm: Any, parameter_norm: Any, xp: Any) -> Any:
    """Decimal logarithm of the norm of the actor's gradient times that of all parameters; -6 before the first update."""
    # How much the actor's loss, without a unit where advantages are standardised, changes for a relative change of them.
    return log10(actor_gradient_norm * parameter_norm, xp)


def target_change(target_std: Any, memory: Any, xp: Any) -> Any:
    """Decimal logarithm of the standard deviation of the critic's targets over that on the first batch."""
    return _since(memory.first_target_std, target_std, xp)


def _since(known: Any, now: Any, xp: Any) -> Any:
    first = first_of(known, now, xp)
    return xp.where(first > 0.0, log10(over(now, first, xp), xp), 0.0)


def smoothed_change(mean_return: Any, return_error: Any, memory: Any, xp: Any) -> Any:
    """Moving average of the changes of the mean return, the last one weighing a fifth, in standard errors of the return."""
    return over(of.smoothed_change(memory, mean_return, xp), return_error, xp)


def drop_in_errors(mean_return: Any, return_error: Any, memory: Any, xp: Any) -> Any:
    """How far the mean return is below the best one so far, in standard errors; 0 where it is the best."""
    return over(of.best_return(memory, mean_return, xp) - mean_return, return_error, xp)


def gradient_steps(gradient_steps: Any, xp: Any) -> Any:
    """Decimal logarithm of how many gradient steps the last update made; 0 before the first."""
    return xp.log10(xp.maximum(gradient_steps, 1.0))


_FORMULAS: tuple[Callable[..., Any], ...] = (
    *(steps, log_norms, slopes, gains, cosines, last_cosines, return_change, change_in_errors, relative_error, update),
    *(budget, entropy_change, first_entropy, explained_variance, step_ratio, relative_step, gradient_change),
    *(actor_gradient, target_change, smoothed_change, drop_in_errors, gradient_steps, own_steps),
)
_OWN = ("memory", "xp")  # parameters that are not diagnostics
_BOUNDS: dict[str, Callable[[Any], Any]] = {  # all others are any finite numbers
    "context": lambda mdp: (mdp.env.context_space.low, mdp.env.context_space.high),
    "budget": lambda mdp: ((0.0,), (1.0,)),
    "explained_variance": lambda mdp: ((LOWEST_EXPLAINED,), (1.0,)),
}
_PLAIN = {  # unchanged diagnostics
    "context": ("context", "The task."),
    "theta": ("theta", "The policy's parameters."),
    "gradient": ("gradient", "The plain gradient of the return."),
    "natural_gradient": ("natural_gradient", "The natural gradient, with the damping of the rule."),
    "return": ("mean_return", "The mean return of the current batch."),
    "return_error": ("return_error", "The standard error of the mean return."),
    "clip_fraction": ("clip_fraction", "Share of ratios that the last update clipped, over all minibatches."),
    "last_clip_fraction": ("last_clip_fraction", "Share of ratios that the last update clipped in its last epoch."),
    "step_cosine": ("step_cosine", "Cosine between the last step and the one before it; 0 before the second."),
}
_LOGARITHMS = {
    "curvatures": ("curvature", "v'Fv along every direction v: twice the divergence of a step of length 1."),
    "last_step": ("step_norm", "the length of the last step."),
    "last_divergence": ("approx_kl", "the divergence that the last step cost."),
    "last_rate": ("rate", "the learning rate, or bound, that the last update was made with; -6 before the first."),
}


def _columns(name: str, mdp: Any) -> tuple[str, ...]:
    """Return a name for each column of a feature; most have one column."""
    if name == "context":
        return tuple(mdp.env.context_space.names)
    if name == "log_norms":
        return "log_norm[gradient]", "log_norm[natural_gradient]"
    if name == "cosines":
        return tuple(f"cosine[{a}, {b}]" for a, b in combinations((*mdp.directions, "gradient"), 2))
    if name == "steps":
        return tuple(f"step[{each}][{i}]" for each in mdp.directions for i in range(mdp.policy.num_parameters))
    if name in ("theta", "gradient", "natural_gradient"):
        return tuple(f"{name}[{index}]" for index in range(mdp.policy.num_parameters))
    if name in ("slopes", "curvatures", "gains", "last_cosines"):
        return tuple(f"{name}[{direction}]" for direction in mdp.directions)
    return (name,)


def _define(name: str, parameters: tuple[str, ...], sentence: str | None, formula: Callable[..., Any]) -> None:
    """Register a formula as a subclass of `Feature`."""
    needs = tuple(each for each in parameters if each not in _OWN)
    members: dict[str, Any] = {"name": name, "needs": needs, "__doc__": sentence}
    members["__call__"] = lambda self, seen: formula(
        *(getattr(seen, each) if each in _OWN else seen[each] for each in parameters)
    )
    members["columns"] = lambda self, mdp: _columns(name, mdp)
    members["size"] = lambda self, mdp: len(_columns(name, mdp))
    if name in _BOUNDS:
        members["bounds"] = lambda self, mdp: _BOUNDS[name](mdp)
    REGISTRY.register(name, type(name, (Feature,), members))


for _formula in _FORMULAS:
    _define(_formula.__name__, tuple(signature(_formula).parameters), _formula.__doc__, _formula)
for _name, (_need, _sentence) in _PLAIN.items():
    _define(_name, (_need,), _sentence, lambda numbers: numbers)
for _name, (_need, _sentence) in _LOGARITHMS.items():
    _define(_name, (_need, "xp"), f"Decimal logarithm of {_sentence}", log10)
