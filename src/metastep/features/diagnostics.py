"""Diagnostics that training loops report, the interface of features, and how features are computed from diagnostics.

Simulated learners and external training loops share this code. Arrays are those of `xp`, which is `numpy` or `jax.numpy`.
"""

from abc import ABC
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from metastep._core.errors import InputError, not_registered
from metastep._core.settings import Registry
from metastep.simulation.rollouts import mean_and_error

SMALLEST = 1e-6  # lower bound of the arguments of logarithms
LOWEST_EXPLAINED = -1.0  # lower bound of the explained variance
OF_LOOP = ("own_steps",)  # features that never change in a training loop
SMOOTHING = 0.8  # decay of the moving average of changes of the return

# The largest float32 means "any finite number", because Gymnasium's checker warns about infinite bounds.
ANY = float(np.finfo(np.float32).max)


class Memory(NamedTuple):
    """Numbers of earlier updates that features need: scalars, or arrays with one number per simulated learner."""

    updates: Any = 0  # number of updates
    sound: Any = 0  # number of updates whose diagnostics were all finite
    first_entropy: Any = 0.0  # of the policy on the very first batch
    mean_return: Any = 0.0  # of the batch before the current one
    rate: Any = 0.0  # the last proposed step
    step_norm: Any = 0.0  # length of the step before the last one
    first_gradient_norm: Any = 0.0  # of the first update; 0 while unknown, like the next one
    first_target_std: Any = 0.0  # standard deviation of the critic's targets on the very first batch
    best_return: Any = 0.0  # of the batches before the current one
    smoothed_change: Any = 0.0  # of the mean return, up to the batch before the current one


@dataclass(frozen=True, eq=False)
class Seen:
    """The inputs of a feature: `seen["entropy"]` is a diagnostic by name.

    A number is a scalar in a training loop, and has shape (learners,) for simulated learners; vectors are on the last axes.
    """

    diagnostics: Mapping[str, Any]  # by name; those of the last update are 0 before the first
    memory: Memory
    xp: Any  # `numpy` or `jax.numpy`

    def __getitem__(self, name: str) -> Any:
        return self.diagnostics[name]


class Feature(ABC):
    """A name, the diagnostics that it needs, a size and a formula. Inherit from it for a feature of your own.

    It can be used in a loop or a meta-MDP (`mdp`, a `metastep.mdp.MetaMDP`) that has all these diagnostics. Without a formula,
    the feature is the first of them, unchanged.
    """

    name: ClassVar[str]  # identifier in the registry, in datasets and in models
    needs: ClassVar[tuple[str, ...]] = ()

    def __call__(self, seen: Seen) -> Any:
        """Return the numbers of every learner: (..., size), or (...) for a single number."""
        return seen[self.needs[0]]

    def size(self, mdp: Any) -> int:
        """Return the number of columns per learner."""
        return 1

    def columns(self, mdp: Any) -> tuple[str, ...]:
        """Return a name for each column."""
        size = self.size(mdp)
        return (self.name,) if size == 1 else tuple(f"{self.name}[{index}]" for index in range(size))

    def bounds(self, mdp: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the smallest and largest possible values; by default those of any finite numbers."""
        size = self.size(mdp)
        return (-ANY,) * size, (ANY,) * size


REGISTRY: Registry[Feature] = Registry("meta.observation")


def log10(values: Any, xp: Any) -> Any:
    """Return decimal logarithms, at least that of `SMALLEST`."""
    return xp.log10(xp.maximum(values, SMALLEST))


def over(part: Any, whole: Any, xp: Any) -> Any:
    """Return part / whole, 0 where the denominator is not positive; NaN stays NaN."""
    return xp.where(whole <= 0.0, 0.0, part / xp.where(whole <= 0.0, 1.0, whole))


def explained_variance(values: Any, targets: Any, xp: Any) -> Any:
    """Return 1 - Var(target - value) / Var(target) over the last axis; 0 where targets do not vary, and at least -1."""
    whole = xp.var(targets, axis=-1)
    share = xp.var(targets - values, axis=-1) / xp.where(whole <= 0.0, 1.0, whole)
    return xp.where(whole <= 0.0, 0.0, xp.maximum(1.0 - share, LOWEST_EXPLAINED))


def first_of(known: Any, value: Any, xp: Any) -> Any:
    """Return `known` if it is positive, else `value` if that is positive, else 0."""
    return xp.where(known > 0.0, known, xp.where(value > 0.0, value, 0.0))


def best_return(memory: Memory, mean_return: Any, xp: Any) -> Any:
    """Return the best finite mean return so far."""
    now = xp.where(xp.isfinite(mean_return), mean_return, memory.mean_return)
    return xp.where(memory.sound > 0, xp.maximum(memory.best_return, now), now)


def smoothed_change(memory: Memory, mean_return: Any, xp: Any) -> Any:
    """Return the moving average of changes of the mean return; it starts at 0, and changes that are not finite count as 0."""
    change = xp.where(memory.sound > 0, mean_return - memory.mean_return, 0.0)
    return SMOOTHING * memory.smoothed_change + (1.0 - SMOOTHING) * xp.where(xp.isfinite(change), change, 0.0)


def step_geometry(step: Any, before: Any, xp: Any) -> tuple[Any, Any, Any]:
    """Return the lengths of two steps (..., parameters), and the cosine of the angle between them, 0 if a step is zero."""
    lengths = xp.sqrt(xp.sum(step**2, axis=-1)), xp.sqrt(xp.sum(before**2, axis=-1))
    return *lengths, over(xp.sum(step * before, axis=-1), lengths[0] * lengths[1], xp)


class Movement(NamedTuple):
    """Parameters at the last call, and the step that led there."""

    parameters: Any
    step: Any

    def after(self, parameters: Any, xp: Any) -> tuple["Movement", dict[str, Any]]:
        """Return the movement to new parameters, and its diagnostics; a step that is not finite leaves the movement unchanged."""
        step = parameters - self.parameters
        length, _, cosine = step_geometry(step, self.step, xp)
        norm, sound = xp.sqrt(xp.sum(parameters**2)), xp.isfinite(length)
        kept = Movement(xp.where(sound, parameters, self.parameters), xp.where(sound, step, self.step))
        return kept, {"step_norm": length, "step_cosine": cosine, "parameter_norm": norm}


PER_MINIBATCH = ("approx_kl", "clip_fraction", "gradient_norm", "actor_gradient_norm")
"""Diagnostics that a loop may report for each minibatch."""

_OF_AN_EPOCH = ("approx_kl", "last_clip_fraction")


class MinibatchStats(NamedTuple):
    """Sums of diagnostics that a loop reports for each minibatch of an update."""

    minibatches: Any = 0  # number of minibatches of the update so far
    approx_kl: Any = 0.0  # sum over the current epoch
    clip_fraction: Any = 0.0  # sum over all minibatches
    last_clip_fraction: Any = 0.0  # sum over the current epoch
    gradient_norm: Any = 0.0  # sum over all minibatches, like the next one
    actor_gradient_norm: Any = 0.0

    def after(self, reported: Mapping[str, Any], begins: Any, each_epoch: int, xp: Any) -> "MinibatchStats":
        """Add one minibatch, the first of an update where `begins` is true."""
        num = xp.where(begins, 0, self.minibatches)
        starts = {name: num % each_epoch == 0 if name in _OF_AN_EPOCH else begins for name in self._fields[1:]}
        # The clip fraction of a minibatch counts twice: for its epoch, and for the update.
        values = {**reported, "last_clip_fraction": reported.get("clip_fraction", 0.0)}
        sums = (xp.where(start, 0.0, getattr(self, name)) + values.get(name, 0.0) for name, start in starts.items())
        return MinibatchStats(num + 1, *sums)

    def of_the_update(self, reported: Iterable[str], each_epoch: int, xp: Any) -> dict[str, Any]:
        """Return the mean of each reported diagnostic over the last epoch or the whole update, and the number of minibatches."""
        num = xp.maximum(self.minibatches, 1)
        names = [name for name in self._fields[1:] if name.removeprefix("last_") in reported]
        counts = {name: (num - 1) % each_epoch + 1 if name in _OF_AN_EPOCH else num for name in names}
        means = {name: getattr(self, name) / count for name, count in counts.items()}
        return means | {"gradient_steps": xp.asarray(self.minibatches, np.float32)}


DIAGNOSTICS = {
    "returns": "returns without discount of the last finished episodes, as many as the model's learners had environments; where "
    '`model.record.setting` has `returns = "first episodes"`, of those that began with the batch',
    "mean_return": "their mean, in place of them",
    "return_error": "the standard error of the mean, in place of them",
    "entropy": "mean entropy of the policy on the current batch, in nats",
    "explained_variance": "1 - Var(target - value) / Var(target) of the critic on the current batch",
    "values": "the critic's values on the current batch, in place of explained_variance with targets",
    "targets": "the critic's targets, in place of explained_variance with values",
    "approx_kl": "mean of (ratio - 1) - log ratio over the last epoch of the last update",
    "clip_fraction": "share of ratios that were clipped in the last update",
    "last_clip_fraction": "the same in its last epoch",
    "gradient_norm": "norm of the gradient of the last update before it is cut, mean over its gradient steps",
    "actor_gradient_norm": "norm of the actor's part of that gradient, likewise",
    "gradient_steps": "how many gradient steps the last update made",
    "target_std": "standard deviation of the critic's targets on the current batch, in place of targets",
    "parameters": "all parameters that are trained, as one vector or a list of arrays",
    "parameter_norm": "length of the vector of all parameters, in place of them",
    "step_norm": "length of the last step of the parameters, in place of them",
    "step_cosine": "cosine of the angle between the last step and the one before it, in place of the parameters",
    "rate": "the rate that the last update was made with, where it was not the one proposed",
}
"""Diagnostics that a loop may report, by name; a model needs some of them. A feature of your own may add its diagnostics."""

_OF_THE_LAST_UPDATE = (*PER_MINIBATCH, "last_clip_fraction", "gradient_steps", "step_norm", "step_cosine", "rate")
_OWN = ("rate", "budget", "own_steps")  # known to a stepper without a report
_ROUNDING = 1e-3
# The smallest and the largest number that a diagnostic can be, and both in words.
POSSIBLE: dict[str, tuple[float, float, str]] = defaultdict(lambda: (-ANY, ANY, "a finite number of float32"))
POSSIBLE |= {"explained_variance": (-ANY, 1.0 + _ROUNDING, "at most 1"), "rate": (0.0, ANY, "0 or more")}
POSSIBLE |= dict.fromkeys(("clip_fraction", "last_clip_fraction"), (-_ROUNDING, 1.0 + _ROUNDING, "0 to 1"))
POSSIBLE["approx_kl"] = (-_ROUNDING, ANY, "0 or more, measured in every update")
_INSTEAD = {"mean_return": "returns", "return_error": "returns", "target_std": "targets"}
_INSTEAD |= dict.fromkeys(("parameter_norm", "step_norm", "step_cosine"), "parameters")


def _formula(name: str) -> Feature | None:
    """Return a feature that is computed from reported diagnostics; None if loops report the feature itself, by its name."""
    short = name.rpartition(":")[2]  # modules that a model file names are not imported
    feature = REGISTRY.make(short) if short in REGISTRY.names() else None
    return feature if feature is not None and set(feature.needs) <= {*DIAGNOSTICS, *_OWN} else None


def _needed(formulas: Mapping[str, Feature | None]) -> tuple[str, ...]:
    """Return the diagnostics that features need, each once; a feature without a formula needs a diagnostic of its own name."""
    needs = (need for name, formula in formulas.items() for need in ((name,) if formula is None else formula.needs))
    return tuple(dict.fromkeys(needs))


def asked_for(features: Sequence[str]) -> tuple[str, ...]:
    """Return the diagnostics that a loop has to report for some features, each once."""
    needs = (need for need in _needed({name: _formula(name) for name in features}) if need not in _OWN)
    return tuple(dict.fromkeys(_INSTEAD.get(need, need) for need in needs))


class Observed(NamedTuple):
    """The features of an update, and the memory after it; the caller adds the rate to the memory."""

    features: dict[str, Any]
    diagnostics: dict[str, Any]  # reported or derived
    faults: dict[str, Any]  # which of them are not finite, or beyond what is possible
    sound: Any  # whether none is
    memory: Memory
    movement: Movement | None


def observed(features: Sequence[str], given: Mapping[str, Any], state: Any, own: dict[str, Any], xp: Any) -> Observed:
    """Compute features from given diagnostics, its own of a stepper, and the `memory` and `movement` of a learner's state.

    Before the first update, diagnostics of the last update are 0, and NumPy loops need not report them.
    """
    known, memory, movement = dict(given), state.memory, state.movement
    for name in known:
        if name not in DIAGNOSTICS and name not in features:
            allowed = [*dict.fromkeys((*asked_for(features), *DIAGNOSTICS))]
            raise not_registered("diagnostics", name, allowed, "is not something a stepper knows")
    for name in ("mean_return", "return_error"):
        if "returns" in known and name in known:
            raise InputError(f"diagnostics: returns and {name} are both given, allowed is one of them.")
    if "parameters" in known:
        flat = known["parameters"]
        before = movement or Movement(flat, xp.zeros_like(flat))
        if before.parameters.shape != flat.shape:
            num = before.parameters.size
            raise InputError(f"diagnostics: parameters has {flat.size} numbers, before it had {num}.")
        moved, lengths = before.after(flat, xp)
        movement, known = moved if movement or np.isfinite(lengths["step_norm"]) else None, known | lengths | known
    sizes = {name: np.shape(known[name])[-1] for name in ("values", "targets") if name in known}
    if len(set(sizes.values())) > 1:
        raise InputError(f"diagnostics: {sizes['values']} values and {sizes['targets']} targets, allowed are as many.")
    if "returns" in known:
        known["mean_return"], known["return_error"] = mean_and_error(known["returns"], xp)
    if "values" in known and "targets" in known and "explained_variance" not in known:
        known["explained_variance"] = explained_variance(known["values"], known["targets"], xp)
    if "targets" in known and "target_std" not in known:
        known["target_std"] = xp.std(known["targets"], axis=-1)
    known = {"rate": memory.rate, **own, **known}
    for name in _OF_THE_LAST_UPDATE:
        if name in known:
            known[name] = xp.where(memory.updates > 0, known[name], 0.0)
        elif xp is np and not memory.updates:
            known[name] = np.float32(0.0)
    # A feature that is reported itself is not computed.
    formulas = {name: None if name in given and name not in DIAGNOSTICS else _formula(name) for name in features}
    if missing := [name for name in _needed(formulas) if name not in known]:
        if "mean_return" not in given and "return_error" not in given:
            missing = [*dict.fromkeys(_INSTEAD.get(name, name) for name in missing)]
        raise InputError(f"diagnostics: missing {', '.join(missing)}, which the model needs.")
    seen = Seen(known, memory, xp)
    computed = {name: known[name] if feature is None else feature(seen) for name, feature in formulas.items()}
    # Diagnostics that the model does not need count, too: if any is not finite, training is about to fail.
    every = [(name, xp.asarray(value), POSSIBLE[name]) for name, value in known.items()]
    faults = {name: ~xp.all((value >= low) & (value <= high)) for name, value, (low, high, _) in every}
    sound = ~xp.any(xp.stack([*faults.values()]))

    def finite_or(name: str, before: Any) -> Any:
        """Return the diagnostic where it is finite, else `before`, so that later features stay finite."""
        return xp.where(xp.isfinite(known[name]), known[name], before) if name in known else before

    after = Memory(
        updates=memory.updates + 1,
        sound=memory.sound + xp.where(sound, 1, 0),
        first_entropy=xp.where(memory.sound > 0, memory.first_entropy, finite_or("entropy", memory.first_entropy)),
        mean_return=finite_or("mean_return", memory.mean_return),
        rate=memory.rate,
        step_norm=finite_or("step_norm", memory.step_norm),
        first_gradient_norm=first_of(memory.first_gradient_norm, finite_or("gradient_norm", 0.0), xp),
        first_target_std=first_of(memory.first_target_std, finite_or("target_std", 0.0), xp),
        best_return=best_return(memory, finite_or("mean_return", memory.mean_return), xp),
        smoothed_change=smoothed_change(memory, finite_or("mean_return", memory.mean_return), xp),
    )
    return Observed(computed, known, faults, sound, after, movement)
