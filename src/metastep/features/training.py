"""Features of numbers that any training loop can report; most have no unit."""

from typing import Any

from metastep.features.base import Feature, Seen, Source
from metastep.features.diagnostics import LOWEST_EXPLAINED, SMALLEST, log10, over


class Return(Feature):
    """The mean return of the current batch."""

    name, needs = "return", ("mean_return",)


class ReturnError(Feature):
    """The standard error of the mean return."""

    name, needs = "return_error", ("return_error",)


class ReturnChange(Feature):
    """How much the last update changed the mean return; 0 before the first."""

    name, needs = "return_change", ("mean_return",)

    def __call__(self, seen: Seen) -> Any:
        return seen.xp.where(seen.memory.sound > 0, seen["mean_return"] - seen.memory.mean_return, 0.0)


class ChangeInErrors(Feature):
    """How much the last update changed the mean return, in standard errors; 0 before the first."""

    name, needs = "change_in_errors", ("mean_return", "return_error")

    def __call__(self, seen: Seen) -> Any:
        return over(ReturnChange()(seen), seen["return_error"], seen.xp)


class RelativeError(Feature):
    """Decimal logarithm of the return's standard error over the return's absolute value."""

    name, needs = "relative_error", ("mean_return", "return_error")

    def __call__(self, seen: Seen) -> Any:
        xp = seen.xp
        return log10(seen["return_error"] / xp.maximum(xp.abs(seen["mean_return"]), SMALLEST), xp)


class UpdateIndex(Feature):
    """How many updates were made."""

    name = "update"

    def __call__(self, seen: Seen) -> Any:
        return seen.memory.updates


class Budget(Feature):
    """Share of a learner's updates that were made; 1 also beyond."""

    name, needs = "budget", ("budget",)

    def __call__(self, seen: Seen) -> Any:
        return seen.xp.minimum(seen.memory.updates / seen["budget"], 1.0)

    def bounds(self, mdp: Source) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return (0.0,), (1.0,)


class LastStep(Feature):
    """Decimal logarithm of the length of the last step."""

    name, needs = "last_step", ("step_norm",)

    def __call__(self, seen: Seen) -> Any:
        return log10(seen["step_norm"], seen.xp)


class LastDivergence(Feature):
    """Decimal logarithm of the divergence that the last step cost."""

    name, needs = "last_divergence", ("approx_kl",)

    def __call__(self, seen: Seen) -> Any:
        return log10(seen["approx_kl"], seen.xp)


class ClipFraction(Feature):
    """Share of the last update's ratios of densities that were clipped, mean over all its minibatches."""

    name, needs = "clip_fraction", ("clip_fraction",)


class EntropyChange(Feature):
    """Entropy of the policy on the current batch minus that on the first one, in nats."""

    name, needs = "entropy_change", ("entropy",)

    def __call__(self, seen: Seen) -> Any:
        return seen.xp.where(seen.memory.sound > 0, seen["entropy"] - seen.memory.first_entropy, 0.0)


class FirstEntropy(Feature):
    """Entropy of the policy on the first batch, in nats, to a tenth: what kind of actions there are, and how many.

    It is rounded so that policies of the same kind are alike whatever their first weights are.
    """

    name, needs = "first_entropy", ("entropy",)

    def __call__(self, seen: Seen) -> Any:
        first = seen.xp.where(seen.memory.sound > 0, seen.memory.first_entropy, seen["entropy"])
        return seen.xp.round(10.0 * first) / 10.0


class ExplainedVariance(Feature):
    """1 - Var(target - value) / Var(target) of the critic on the current batch, at least -1."""

    name, needs = "explained_variance", ("explained_variance",)

    def __call__(self, seen: Seen) -> Any:
        return seen.xp.maximum(seen["explained_variance"], LOWEST_EXPLAINED)

    def bounds(self, mdp: Source) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return (LOWEST_EXPLAINED,), (1.0,)


class StepRatio(Feature):
    """Decimal logarithm of the length of the last step over that of the one before it; 0 before the second."""

    name, needs = "step_ratio", ("step_norm",)

    def __call__(self, seen: Seen) -> Any:
        ratio = over(seen["step_norm"], seen.memory.step_norm, seen.xp)
        return seen.xp.where(ratio <= 0.0, 0.0, log10(ratio, seen.xp))


class StepCosine(Feature):
    """Cosine of the angle between the last step and the one before it; 0 before the second."""

    name, needs = "step_cosine", ("step_cosine",)


class LastRate(Feature):
    """Decimal logarithm of the learning rate, or bound, that the last update was made with; -6 before the first."""

    name, needs = "last_rate", ("rate",)

    def __call__(self, seen: Seen) -> Any:
        return log10(seen["rate"], seen.xp)
