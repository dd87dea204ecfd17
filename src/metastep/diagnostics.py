"""What a training loop can tell of its updates, and the one place of every formula that makes features of it.

The same functions serve simulated learners, as JAX arrays, and steppers in other people's loops, as NumPy numbers: `xp` is the
namespace that computes. NumPy alone is imported, so that a loop without JAX can use them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from metastep._core.errors import InputError, not_registered

SMALLEST = 1e-6
"""Logarithms end here: what is smaller, zero or negative counts as this."""

LOWEST_EXPLAINED = -1.0
"""A critic that explains less counts as this one."""


def log10(values: Any, xp: Any) -> Any:
    """Decimal logarithms, of what is tiny or not positive that of the smallest number that counts."""
    return xp.log10(xp.maximum(values, SMALLEST))


def over(part: Any, whole: Any, xp: Any) -> Any:
    """The ratio, 0 where the denominator is not positive; what is not a number stays so."""
    return xp.where(whole <= 0.0, 0.0, part / xp.where(whole <= 0.0, 1.0, whole))


def mean_and_error(returns: Any, xp: Any) -> tuple[Any, Any]:
    """Mean return of episodes (..., episodes), and its standard error, which is 0 of a single one."""
    num = returns.shape[-1]
    mean = xp.mean(returns, axis=-1)
    spread = xp.std(returns, axis=-1, ddof=1) if num > 1 else xp.zeros_like(mean)
    return mean, spread / xp.sqrt(xp.float32(num))


def explained_variance(values: Any, targets: Any, xp: Any) -> Any:
    """1 - Var(target - value) / Var(target) over the last axis; 0 where targets do not vary, and -1 at least."""
    whole = xp.var(targets, axis=-1)
    share = xp.var(targets - values, axis=-1) / xp.where(whole <= 0.0, 1.0, whole)
    return xp.where(whole <= 0.0, 0.0, xp.maximum(1.0 - share, LOWEST_EXPLAINED))


def change_in_errors(change: Any, error: Any, xp: Any) -> Any:
    """A change of the mean return in standard errors; 0 where there is no error."""
    return over(change, error, xp)


def relative_error(mean: Any, error: Any, xp: Any) -> Any:
    """Decimal logarithm of the return's standard error over the return's absolute value."""
    return log10(error / xp.maximum(xp.abs(mean), SMALLEST), xp)


def step_ratio(ratio: Any, xp: Any) -> Any:
    """Decimal logarithm of the length of a step over that of the one before it; 0 where there is none."""
    return xp.where(ratio <= 0.0, 0.0, log10(ratio, xp))


def to_a_tenth(entropy: Any, xp: Any) -> Any:
    """Rounded, so that policies of the same kind are alike whatever their first weights are."""
    return xp.round(10.0 * entropy) / 10.0


def share_made(updates: Any, budget: float, xp: Any) -> Any:
    """Share of the updates that were made; 1 also beyond."""
    return xp.minimum(updates / budget, 1.0)


class Turn(NamedTuple):
    """How a step lies to the one before it, over the last axis of both."""

    length: Any
    length_before: Any
    cosine: Any  # of the angle between them; 0 where one of them is zero

    def ratio(self, xp: Any) -> Any:
        """Of the lengths; 0 where there was no step before."""
        return over(self.length, self.length_before, xp)


def turn(step: Any, before: Any, xp: Any) -> Turn:
    """Lengths of two steps (..., parameters), and the cosine of the angle between them."""
    lengths = xp.sqrt(xp.sum(step**2, axis=-1)), xp.sqrt(xp.sum(before**2, axis=-1))
    return Turn(*lengths, over(xp.sum(step * before, axis=-1), lengths[0] * lengths[1], xp))


class Memory(NamedTuple):
    """What features of the next update need of the ones before it: numbers."""

    updates: Any = 0  # that were made
    sound: Any = 0  # those of them of which all that was told was finite
    first_entropy: Any = 0.0  # of the policy on the first batch of all
    mean_return: Any = 0.0  # of the last batch but one
    rate: Any = 0.0  # the step that was proposed last
    step_norm: Any = 0.0  # length of the last step but one


class Movement(NamedTuple):
    """Parameters at the last call, and the step that led there: what the angle between steps is measured with."""

    parameters: Any
    step: Any

    def after(self, parameters: Any, xp: Any) -> tuple["Movement", Turn]:
        """Where parameters have moved to; what is not finite is not followed, it would spoil the angles to come."""
        step = parameters - self.parameters
        found = turn(step, self.step, xp)
        sound = xp.isfinite(found.length)
        return Movement(xp.where(sound, parameters, self.parameters), xp.where(sound, step, self.step)), found


class Gathered(NamedTuple):
    """What was told of the ratios of an update, minibatch by minibatch."""

    minibatches: Any = 0  # of the update so far
    approx_kl: Any = 0.0  # sum over those of the current epoch
    clip_fraction: Any = 0.0  # sum over all of them

    def after(self, told: Mapping[str, Any], begins: Any, each_epoch: int, xp: Any) -> "Gathered":
        """With one minibatch more, the first of an update where one begins."""
        num = xp.where(begins, 0, self.minibatches)
        return Gathered(
            num + 1,
            xp.where(num % each_epoch == 0, 0.0, self.approx_kl) + told.get("approx_kl", 0.0),
            xp.where(begins, 0.0, self.clip_fraction) + told.get("clip_fraction", 0.0),
        )

    def of_the_update(self, each_epoch: int, xp: Any) -> dict[str, Any]:
        """The mean divergence over the last epoch, and the mean share that was clipped over all."""
        num = xp.maximum(self.minibatches, 1)
        return {"approx_kl": self.approx_kl / ((num - 1) % each_epoch + 1), "clip_fraction": self.clip_fraction / num}


DIAGNOSTICS = {
    "returns": "returns without discount of the last finished episodes, as many as the model's learners had environments; where "
    '`model.record.setting` has `returns = "first episodes"`, of those that began with the batch',
    "mean_return": "their mean, in place of them",
    "return_error": "the standard error of the mean, in place of them",
    "entropy": "mean entropy of the policy on the current batch, in nats",
    "explained_variance": "1 - Var(target - value) / Var(target) of the critic on the current batch",
    "values": "the critic's values on the current batch, in place of explained_variance with targets",
    "targets": "what the critic should have said, in place of explained_variance with values",
    "approx_kl": "mean of (ratio - 1) - log ratio over the last epoch of the last update",
    "clip_fraction": "share of ratios that were clipped in the last update",
    "parameters": "all parameters that are trained, as one vector or a list of arrays",
    "step_norm": "length of the last step of the parameters, in place of them",
    "step_cosine": "cosine of the angle between the last step and the one before it, in place of the parameters",
    "rate": "the rate that the last update was made with, where it was not the one proposed",
}
"""What a loop may tell, by name; a model needs some of them."""

_OF_THE_LAST_UPDATE = ("approx_kl", "clip_fraction", "step_norm", "step_cosine", "rate")
_INSTEAD = {"mean_return": "returns", "return_error": "returns", "step_norm": "parameters", "step_cosine": "parameters"}

_Told = Mapping[str, Any]
_Formula = Callable[[_Told, Memory, float, Any], Any]


def _change(told: _Told, memory: Memory, xp: Any) -> Any:
    return xp.where(memory.sound > 0, told["mean_return"] - memory.mean_return, 0.0)


class Recipe(NamedTuple):
    """A feature of what is told: the diagnostics it needs, and its formula."""

    needs: tuple[str, ...]
    formula: _Formula


RECIPES = {
    "return": Recipe(("mean_return",), lambda told, memory, budget, xp: told["mean_return"]),
    "return_error": Recipe(("return_error",), lambda told, memory, budget, xp: told["return_error"]),
    "return_change": Recipe(("mean_return",), lambda told, memory, budget, xp: _change(told, memory, xp)),
    "change_in_errors": Recipe(
        ("mean_return", "return_error"),
        lambda told, memory, budget, xp: change_in_errors(_change(told, memory, xp), told["return_error"], xp),
    ),
    "relative_error": Recipe(
        ("mean_return", "return_error"),
        lambda told, memory, budget, xp: relative_error(told["mean_return"], told["return_error"], xp),
    ),
    "entropy_change": Recipe(
        ("entropy",),
        lambda told, memory, budget, xp: xp.where(memory.sound > 0, told["entropy"] - memory.first_entropy, 0.0),
    ),
    "first_entropy": Recipe(
        ("entropy",),
        lambda told, memory, budget, xp: to_a_tenth(
            xp.where(memory.sound > 0, memory.first_entropy, told["entropy"]), xp
        ),
    ),
    "explained_variance": Recipe(
        ("explained_variance",),
        lambda told, memory, budget, xp: xp.maximum(told["explained_variance"], LOWEST_EXPLAINED),
    ),
    "last_divergence": Recipe(("approx_kl",), lambda told, memory, budget, xp: log10(told["approx_kl"], xp)),
    "clip_fraction": Recipe(("clip_fraction",), lambda told, memory, budget, xp: told["clip_fraction"]),
    "last_step": Recipe(("step_norm",), lambda told, memory, budget, xp: log10(told["step_norm"], xp)),
    "step_ratio": Recipe(
        ("step_norm",), lambda told, memory, budget, xp: step_ratio(over(told["step_norm"], memory.step_norm, xp), xp)
    ),
    "step_cosine": Recipe(("step_cosine",), lambda told, memory, budget, xp: told["step_cosine"]),
    "last_rate": Recipe((), lambda told, memory, budget, xp: log10(told["rate"], xp)),
    "budget": Recipe((), lambda told, memory, budget, xp: share_made(memory.updates, budget, xp)),
    "update": Recipe((), lambda told, memory, budget, xp: memory.updates),
}
"""Features that a stepper computes itself; others are given by their name."""


def needed(features: Sequence[str]) -> tuple[str, ...]:
    """The diagnostics that features are made of, each once; those without a formula are given by name."""
    names = (name for feature in features for name in (RECIPES[feature].needs if feature in RECIPES else (feature,)))
    return tuple(dict.fromkeys(names))


def asked_for(diagnostics: Iterable[str]) -> tuple[str, ...]:
    """What a loop is asked to tell so that these are known, each once."""
    return tuple(dict.fromkeys(_INSTEAD.get(name, name) for name in diagnostics))


class Observed(NamedTuple):
    """What a model sees of an update, and what to remember of it; the rate is the caller's to add."""

    features: dict[str, Any]
    sound: Any  # whether all that was told is finite; else the smallest step is due, whatever the features are
    memory: Memory


def observed(features: Sequence[str], told: _Told, memory: Memory, budget: float, xp: Any) -> Observed:
    """Features by name, of numbers that a loop tells.

    Before the first update, numbers of the last one are 0 whatever is told. Those of NumPy need not be told then.
    """
    told = dict(told)
    for name in told:
        if name not in DIAGNOSTICS and name not in features:
            allowed = [*dict.fromkeys((*needed(features), *DIAGNOSTICS))]
            raise not_registered("diagnostics", name, allowed, "is not something a stepper knows")
    if "returns" in told and "mean_return" not in told:
        told["mean_return"], told["return_error"] = mean_and_error(told["returns"], xp)
    if "values" in told and "targets" in told and "explained_variance" not in told:
        told["explained_variance"] = explained_variance(told["values"], told["targets"], xp)
    told.setdefault("rate", memory.rate)
    for name in _OF_THE_LAST_UPDATE:
        if name in told:
            told[name] = xp.where(memory.updates > 0, told[name], 0.0)
        elif xp is np and not memory.updates:
            told[name] = np.float32(0.0)
    given = {name for name in features if name in told and name not in DIAGNOSTICS}  # as they are
    missing = [name for name in needed([name for name in features if name not in given]) if name not in told]
    if missing:
        raise InputError(
            f"diagnostics: {', '.join(asked_for(missing))} must be told, the model looks at what they say."
        )
    found = {
        name: told[name] if name in given else RECIPES[name].formula(told, memory, budget, xp) for name in features
    }
    # Also of what the model does not look at: a loop in which anything is not finite is about to break.
    sound = xp.all(xp.stack([xp.all(xp.isfinite(xp.asarray(value))) for value in told.values()]))
    return Observed(found, sound, _remembered(told, sound, memory, xp))


def _remembered(told: _Told, sound: Any, memory: Memory, xp: Any) -> Memory:
    """What is not finite is forgotten: it would spoil the updates after the one that it belongs to."""

    def kept(name: str, before: Any) -> Any:
        return xp.where(xp.isfinite(told[name]), told[name], before) if name in told else before

    first = xp.where(memory.sound > 0, memory.first_entropy, kept("entropy", memory.first_entropy))
    return Memory(
        updates=memory.updates + 1,
        sound=memory.sound + xp.where(sound, 1, 0),
        first_entropy=first,
        mean_return=kept("mean_return", memory.mean_return),
        rate=memory.rate,
        step_norm=kept("step_norm", memory.step_norm),
    )
