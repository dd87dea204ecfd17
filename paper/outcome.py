"""Outcomes: a claim of the paper, what was measured, and whether the claim holds.

Whether an effect differs from 0 is decided in one place, `evaluation.intervals.verdict`. What that means for a claim follows
here; an effect that is not distinguishable from 0 refutes no claim.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from metastep.evaluation import Comparison, Difference
from metastep.evaluation.intervals import Verdict as Direction
from metastep.report.document import Picture
from metastep.report.tables import interval, number

Verdict = Literal["holds", "does not hold", "not distinguishable"]


class Effect(NamedTuple):
    """A measured number, its 95 % interval, and whether it differs from 0."""

    mean: float
    low: float
    high: float
    verdict: Direction


class Outcome(NamedTuple):
    """One row of the results table; a positive effect supports the claim, unless `quantity` says otherwise."""

    environment: str
    claim: str
    quantity: str  # what the effect measures
    effect: float
    low: float | None  # 95 % interval; None where nothing is sampled
    high: float | None
    num: int
    counted: str  # what `num` counts
    verdict: Verdict
    detail: str = ""
    id: str = ""  # this and the next are filled in when an id is written
    command: str = ""
    rule: str = ""  # in `RULES`: what judged this effect alone, and can judge those of several seeds together
    margin: float = 0.0  # of the rule

    def adding(self, *details: str) -> "Outcome":
        """Return the outcome with more details."""
        return self._replace(detail="; ".join(filter(None, (self.detail, *details))))

    def measured(self) -> str:
        """Format the effect with its interval."""
        if self.low is None or self.high is None:
            return number(self.effect)
        return interval(self.effect, self.low, self.high)

    def line(self) -> str:
        """Format the outcome in one line."""
        where = f" ({self.environment})" if self.environment else ""
        detail = f"; {self.detail}" if self.detail else ""
        return (
            f"{self.id}{where}: {self.verdict}. {self.claim}: {self.quantity} {self.measured()}, "
            f"n = {self.num} {self.counted}{detail}."
        )


class Product(NamedTuple):
    """What an id makes."""

    outcomes: Sequence[Outcome]  # one for each claim and environment
    pictures: Sequence[Picture] = ()  # written as SVG and PNG
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = {}  # rows by file name, written as CSV
    curves: Mapping[str, Comparison] = {}  # by file name, written as Parquet
    files: Sequence[Path] = ()  # that are in the id's folder already


Rule = Callable[[Effect | Difference, float], Verdict]
"""Says whether an effect is as a claim says, given the margin."""


def better(effect: Effect | Difference, margin: float = 0.0) -> Verdict:
    """Judge "better": as the test says. There is no margin."""
    words: dict[Direction, Verdict] = {"better": "holds", "worse": "does not hold"}
    return words.get(effect.verdict, "not distinguishable")


def at_most(effect: Effect | Difference, margin: float) -> Verdict:
    """Judge "no larger than the margin": the interval lies below it, above it, or across it."""
    if effect.high <= margin:
        return "holds"
    return "does not hold" if effect.verdict == "better" and effect.low > margin else "not distinguishable"


def more_than(effect: Effect | Difference, margin: float) -> Verdict:
    """Judge "larger than the margin": the contrary of `at_most`."""
    contrary: dict[Verdict, Verdict] = {"holds": "does not hold", "does not hold": "holds"}
    return contrary.get(at_most(effect, margin), "not distinguishable")


def no_better(effect: Effect | Difference, margin: float) -> Verdict:
    """Judge "no improvement": refuted by any that is certain, confirmed where one beyond the margin is excluded."""
    return "does not hold" if effect.verdict == "better" else at_most(effect, margin)


def within(effect: Effect | Difference, margin: float) -> Verdict:
    """Judge "alike, up to the margin": the interval lies inside [-margin, margin], outside, or across an end."""
    if -margin <= effect.low and effect.high <= margin:
        return "holds"
    is_outside = effect.low > margin or effect.high < -margin
    return "does not hold" if effect.verdict != "not distinguishable" and is_outside else "not distinguishable"


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """Judge a claim about several: it holds if it does for all, and does not if it does not for any."""
    if "does not hold" in verdicts:
        return "does not hold"
    return "holds" if set(verdicts) == {"holds"} else "not distinguishable"


RULES: dict[str, Rule] = {rule.__name__: rule for rule in (better, at_most, more_than, no_better, within)}
