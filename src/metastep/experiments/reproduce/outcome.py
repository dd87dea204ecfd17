"""Outcomes: a claim of the paper, what was measured, and whether the claim holds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from metastep.evaluation import Comparison
from metastep.report.document import Picture

Verdict = Literal["holds", "does not hold", "not distinguishable"]


class Outcome(NamedTuple):
    """One row of the results table; the effect is positive where it speaks for the claim, unless `quantity` says otherwise."""

    environment: str
    claim: str
    quantity: str  # what the effect measures
    effect: float
    low: float | None  # 95 % interval; None where there is no sampling to speak of
    high: float | None
    num: int
    counted: str  # what `num` counts
    verdict: Verdict
    detail: str = ""
    id: str = ""  # these two are the same for all rows of an id, and filled in there
    command: str = ""

    def measured(self) -> str:
        """The effect with its interval, as text."""
        interval = "" if self.low is None or self.high is None else f" [{number(self.low)}, {number(self.high)}]"
        return f"{number(self.effect)}{interval}"

    def line(self) -> str:
        """The outcome in one line."""
        where = f" ({self.environment})" if self.environment else ""
        detail = f"; {self.detail}" if self.detail else ""
        return (
            f"{self.id}{where}: {self.verdict}. {self.claim}: {self.quantity} {self.measured()}, "
            f"n = {self.num} {self.counted}{detail}."
        )


@dataclass(frozen=True, eq=False)
class Product:
    """What an id makes.

    Args:
        outcomes: one a claim and environment.
        pictures: written as SVG and PNG.
        tables: rows by file name, written as CSV; the keys of the first row are the header.
        curves: comparisons by file name, written as Parquet.
    """

    outcomes: Sequence[Outcome]
    pictures: Sequence[Picture] = ()
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    curves: Mapping[str, Comparison] = field(default_factory=dict)


def number(value: float) -> str:
    """Three digits, with a true minus sign."""
    if not math.isfinite(value):
        return str(value)
    digits = 0 if abs(value) >= 100.0 else 1 if abs(value) >= 10.0 else None
    text = f"{value:.3g}" if digits is None else f"{value:.{digits}f}"
    return text.replace("-", "\N{MINUS SIGN}")


def beats_all(verdicts: Sequence[str]) -> Verdict:
    """'Better than every one': holds if better than all, not if worse than any, else it cannot be told."""
    if "worse" in verdicts:
        return "does not hold"
    return "holds" if verdicts and all(verdict == "better" for verdict in verdicts) else "not distinguishable"


def at_most(low: float, high: float, margin: float) -> Verdict:
    """'No larger than the margin': the interval lies below it, above it, or across it."""
    if high <= margin:
        return "holds"
    return "does not hold" if low > margin else "not distinguishable"


def no_better(low: float, high: float, margin: float) -> Verdict:
    """'No improvement': refuted by any that is certain, confirmed when one beyond the margin is out of the question."""
    if low > 0.0:
        return "does not hold"
    return "holds" if high <= margin else "not distinguishable"


def within(low: float, high: float, margin: float) -> Verdict:
    """'Alike, up to the margin': the interval lies inside [-margin, margin], outside, or across an end."""
    if -margin <= low and high <= margin:
        return "holds"
    return "does not hold" if low > margin or high < -margin else "not distinguishable"
