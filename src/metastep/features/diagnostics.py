"""What a training loop reports of its updates, what a feature is, and how features are computed from such reports.

Simulated learners and other people's loops share all of it. Numbers are of NumPy or JAX: `xp` is the namespace that computes.
"""

from abc import ABC
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from metastep._core.errors import InputError, not_registered
from metastep._core.registry import Registry
from metastep.simulation.rollouts import mean_and_error

SMALLEST = 1e-6  # logarithms end here: what is smaller, zero or negative counts as this
LOWEST_EXPLAINED = -1.0  # a critic that explains less counts as this one
SMOOTHING = 0.8  # what earlier changes of the return count in their moving average when the next one is added

# The largest float32 stands for "any finite number": Gymnasium's checker takes infinite bounds for a mistake.
ANY = float(np.finfo(np.float32).max)


class Memory(NamedTuple):
    """What features of the next update need of earlier ones: numbers, or one for each simulated learner."""

    updates: Any = 0  # how many were made
    sound: Any = 0  # how many of them had finite diagnostics only
    first_entropy: Any = 0.0  # of the policy on the very first batch
    mean_return: Any = 0.0  # of the batch before the current one
    rate: Any = 0.0  # the step that was proposed last
    step_norm: Any = 0.0  # length of the step before the last one
    first_gradient_norm: Any = 0.0  # of the first update; 0 while it is not known, as the next one
    first_target_std: Any = 0.0  # standard deviation of the critic's targets on the very first batch
    best_return: Any = 0.0  # of the batches before the current one
    smoothed_change: Any = 0.0  # of the mean return, up to the batch before the current one


@dataclass(frozen=True, eq=False)
class Seen:
    """What a feature is computed from: `seen["entropy"]` is a diagnostic by name.

    A number of a loop is a scalar, that of simulated learners has shape (learners,); vectors are on the last axes.
    """

    diagnostics: Mapping[str, Any]  # by name; those of the last update are 0 before the first
    memory: Memory  # of the updates before
    xp: Any  # the namespace that computes, `numpy` or `jax.numpy`

    def __getitem__(self, name: str) -> Any:
        return self.diagnostics[name]


class Feature(ABC):
    """A name, the diagnostics it needs, a size and one formula. A feature of your own inherits from this.

    It is known to a loop or a meta-MDP (`mdp`, a `metastep.mdp.MetaMDP`) that has all the diagnostics it needs. Unless the class
    has a formula of its own, the feature is the first of them, unchanged.
    """

    name: ClassVar[str]  # identifier in the registry, in datasets and in models
    needs: ClassVar[tuple[str, ...]] = ()

    def __call__(self, seen: Seen) -> Any:
        """Return the numbers of every learner: (..., size), or (...) for a single number."""
        return seen[self.needs[0]]

    def size(self, mdp: Any) -> int:
        """Return how many numbers it has for each learner."""
        return 1

    def columns(self, mdp: Any) -> tuple[str, ...]:
        """Return a name for each of the numbers."""
        size = self.size(mdp)
        return (self.name,) if size == 1 else tuple(f"{self.name}[{index}]" for index in range(size))

    def bounds(self, mdp: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the smallest and largest values it can have; by default any finite ones."""
        size = self.size(mdp)
        return (-ANY,) * size, (ANY,) * size


REGISTRY: Registry[Feature] = Registry("meta.observation")


def log10(values: Any, xp: Any) -> Any:
    """Return decimal logarithms, at least that of `SMALLEST`."""
    return xp.log10(xp.maximum(values, SMALLEST))


def over(part: Any, whole: Any, xp: Any) -> Any:
    """Return the ratio, 0 where the denominator is not positive; NaN stays NaN."""
    return xp.where(whole <= 0.0, 0.0, part / xp.where(whole <= 0.0, 1.0, whole))


def explained_variance(values: Any, targets: Any, xp: Any) -> Any:
    """Return 1 - Var(target - value) / Var(target) over the last axis; 0 where targets do not vary, and at least -1."""
    whole = xp.var(targets, axis=-1)
    share = xp.var(targets - values, axis=-1) / xp.where(whole <= 0.0, 1.0, whole)
    return xp.where(whole <= 0.0, 0.0, xp.maximum(1.0 - share, LOWEST_EXPLAINED))


def first_of(known: Any, value: Any, xp: Any) -> Any:
    """Return the first positive number of a series: the known one, else this value; 0 where neither is positive."""
    return xp.where(known > 0.0, known, xp.where(value > 0.0, value, 0.0))


def best_return(memory: Memory, mean_return: Any, xp: Any) -> Any:
    """Return the best mean return so far; one that is not finite does not count."""
    now = xp.where(xp.isfinite(mean_return), mean_return, memory.mean_return)
    return xp.where(memory.sound > 0, xp.maximum(memory.best_return, now), now)


def smoothed_change(memory: Memory, mean_return: Any, xp: Any) -> Any:
    """Return the moving average of the changes of the mean return; 0 before the first, and one that is not finite counts 0."""
    change = xp.where(memory.sound > 0, mean_return - memory.mean_return, 0.0)
    return SMOOTHING * memory.smoothed_change + (1.0 - SMOOTHING) * xp.where(xp.isfinite(change), change, 0.0)


def step_geometry(step: Any, before: Any, xp: Any) -> tuple[Any, Any, Any]:
    """Return the lengths of two steps (..., parameters) and the cosine of the angle between them, 0 where one is zero."""
    lengths = xp.sqrt(xp.sum(step**2, axis=-1)), xp.sqrt(xp.sum(before**2, axis=-1))
    return *lengths, over(xp.sum(step * before, axis=-1), lengths[0] * lengths[1], xp)


class Movement(NamedTuple):
    """Parameters at the last call, and the step that led there."""

    parameters: Any
    step: Any

    def after(self, parameters: Any, xp: Any) -> tuple["Movement", dict[str, Any]]:
        """Return the movement to new parameters, and its diagnostics; skip one that is not finite: it would spoil angles."""
        step = parameters - self.parameters
        length, _, cosine = step_geometry(step, self.step, xp)
        norm, sound = xp.sqrt(xp.sum(parameters**2)), xp.isfinite(length)
        kept = Movement(xp.where(sound, parameters, self.parameters), xp.where(sound, step, self.step))
        return kept, {"step_norm": length, "step_cosine": cosine, "parameter_norm": norm}


PER_MINIBATCH = ("approx_kl", "clip_fraction", "gradient_norm", "actor_gradient_norm")
"""What a loop may report minibatch by minibatch."""

_OF_AN_EPOCH = ("approx_kl", "last_clip_fraction")


class MinibatchStats(NamedTuple):
    """Diagnostics of an update that a loop reports minibatch by minibatch."""

    minibatches: Any = 0  # of the update so far
    approx_kl: Any = 0.0  # sum over those of the current epoch
    clip_fraction: Any = 0.0  # sum over all of them
    last_clip_fraction: Any = 0.0  # sum over those of the current epoch
    gradient_norm: Any = 0.0  # sum over all, like the next one
    actor_gradient_norm: Any = 0.0

    def after(self, reported: Mapping[str, Any], begins: Any, each_epoch: int, xp: Any) -> "MinibatchStats":
        """Add one minibatch, the first of an update where `begins` is true."""
        num = xp.where(begins, 0, self.minibatches)
        starts = {name: num % each_epoch == 0 if name in _OF_AN_EPOCH else begins for name in self._fields[1:]}
        # The clip fraction of a minibatch counts twice: for its epoch, and for the update.
        given = {**reported, "last_clip_fraction": reported.get("clip_fraction", 0.0)}
        sums = (xp.where(start, 0.0, getattr(self, name)) + given.get(name, 0.0) for name, start in starts.items())
        return MinibatchStats(num + 1, *sums)

    def of_the_update(self, reported: Iterable[str], each_epoch: int, xp: Any) -> dict[str, Any]:
        """Return means over the last epoch or over all minibatches, of what the loop reports, and how many there were."""
        num = xp.maximum(self.minibatches, 1)
        own = [name for name in self._fields[1:] if name.removeprefix("last_") in reported]
        each = {name: (num - 1) % each_epoch + 1 if name in _OF_AN_EPOCH else num for name in own}
        means = {name: getattr(self, name) / count for name, count in each.items()}
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
"""What a loop may report, by name; a model needs some of them. A feature of your own may add a line for its diagnostics."""

_OF_THE_LAST_UPDATE = (
    *("approx_kl", "clip_fraction", "last_clip_fraction", "gradient_norm", "actor_gradient_norm", "gradient_steps"),
    *("step_norm", "step_cosine", "rate"),
)
_OWN = ("rate", "budget")  # a stepper knows them itself
_INSTEAD = {"mean_return": "returns", "return_error": "returns", "target_std": "targets"} | dict.fromkeys(
    ("parameter_norm", "step_norm", "step_cosine"), "parameters"
)


def _formula(name: str) -> Feature | None:
    """Return a feature that is computed from what loops report; None for one that is given by its name."""
    own = name.rpartition(":")[2]  # without importing anything: a model file may name modules
    feature = REGISTRY.make(own) if own in REGISTRY.names() else None
    return feature if feature is not None and set(feature.needs) <= {*DIAGNOSTICS, *_OWN} else None


def _needed(formulas: Mapping[str, Feature | None]) -> tuple[str, ...]:
    """Return the diagnostics that features are computed from, each once; one without a formula is its own."""
    needs = (need for name, formula in formulas.items() for need in ((name,) if formula is None else formula.needs))
    return tuple(dict.fromkeys(needs))


def asked_for(features: Sequence[str]) -> tuple[str, ...]:
    """Return what a loop is asked to report for some features, each once."""
    needs = (need for need in _needed({name: _formula(name) for name in features}) if need not in _OWN)
    return tuple(dict.fromkeys(_INSTEAD.get(need, need) for need in needs))


class Observed(NamedTuple):
    """What a model sees of an update, and what to remember of it; the caller adds the rate."""

    features: dict[str, Any]
    diagnostics: dict[str, Any]  # all that are known
    sound: Any  # whether they are finite
    memory: Memory
    movement: Movement | None


def observed(features: Sequence[str], reported: Mapping[str, Any], state: Any, budget: float, xp: Any) -> Observed:
    """Compute features by name from what a loop reports, and the `memory` and `movement` of a learner's state.

    Before the first update, diagnostics of the last one are 0, and NumPy loops need not report them.
    """
    found, memory, movement = dict(reported), state.memory, state.movement
    for name in found:
        if name not in DIAGNOSTICS and name not in features:
            allowed = [*dict.fromkeys((*asked_for(features), *DIAGNOSTICS))]
            raise not_registered("diagnostics", name, allowed, "is not something a stepper knows")
    for name in ("mean_return", "return_error"):
        if "returns" in found and name in found:
            raise InputError(f"diagnostics: returns and {name} are both given, allowed is one of them.")
    if "parameters" in found:
        flat = found["parameters"]
        before = movement or Movement(flat, xp.zeros_like(flat))
        if before.parameters.shape != flat.shape:
            num = before.parameters.size
            raise InputError(f"diagnostics: parameters has {flat.size} numbers, before it had {num}.")
        moved, lengths = before.after(flat, xp)
        movement, found = moved if movement or np.isfinite(lengths["step_norm"]) else None, found | lengths | found
    sizes = {name: np.shape(found[name])[-1] for name in ("values", "targets") if name in found}
    if len(set(sizes.values())) > 1:
        raise InputError(f"diagnostics: {sizes['values']} values and {sizes['targets']} targets, allowed are as many.")
    if "returns" in found:
        found["mean_return"], found["return_error"] = mean_and_error(found["returns"], xp)
    if "values" in found and "targets" in found and "explained_variance" not in found:
        found["explained_variance"] = explained_variance(found["values"], found["targets"], xp)
    if "targets" in found and "target_std" not in found:
        found["target_std"] = xp.std(found["targets"], axis=-1)
    found = {"rate": memory.rate, "budget": np.float32(budget), **found}
    for name in _OF_THE_LAST_UPDATE:
        if name in found:
            found[name] = xp.where(memory.updates > 0, found[name], 0.0)
        elif xp is np and not memory.updates:
            found[name] = np.float32(0.0)
    # A feature that is reported is taken as it is.
    formulas = {name: None if name in reported and name not in DIAGNOSTICS else _formula(name) for name in features}
    if missing := [name for name in _needed(formulas) if name not in found]:
        if "mean_return" not in reported and "return_error" not in reported:
            missing = [*dict.fromkeys(_INSTEAD.get(name, name) for name in missing)]
        raise InputError(f"diagnostics: missing {', '.join(missing)}, which the model needs.")
    seen = Seen(found, memory, xp)
    computed = {name: found[name] if feature is None else feature(seen) for name, feature in formulas.items()}
    # Also diagnostics that the model does not need: a loop in which anything is not finite is about to break.
    sound = xp.all(xp.stack([xp.all(xp.isfinite(xp.asarray(value))) for value in found.values()]))

    def kept(name: str, before: Any) -> Any:
        """Numbers that are not finite are forgotten: they would spoil later updates."""
        return xp.where(xp.isfinite(found[name]), found[name], before) if name in found else before

    after = Memory(
        updates=memory.updates + 1,
        sound=memory.sound + xp.where(sound, 1, 0),
        first_entropy=xp.where(memory.sound > 0, memory.first_entropy, kept("entropy", memory.first_entropy)),
        mean_return=kept("mean_return", memory.mean_return),
        rate=memory.rate,
        step_norm=kept("step_norm", memory.step_norm),
        first_gradient_norm=first_of(memory.first_gradient_norm, kept("gradient_norm", 0.0), xp),
        first_target_std=first_of(memory.first_target_std, kept("target_std", 0.0), xp),
        best_return=best_return(memory, kept("mean_return", memory.mean_return), xp),
        smoothed_change=smoothed_change(memory, kept("mean_return", memory.mean_return), xp),
    )
    return Observed(computed, found, sound, after, movement)
