"""From comparisons to outcomes: paired differences on test tasks, and how large a difference matters."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from metastep import Comparison
from metastep.evaluation import Difference, differences, metric_values
from metastep.report.tables import number
from paper.judging import MARGIN
from paper.outcome import Effect, Outcome, Rule, Verdict, better, together, within
from paper.workbench import PresetRun

AUC = "difference in AUC"


class Judged(NamedTuple):
    """A claim with its verdict, and the differences behind it."""

    outcome: Outcome
    rows: tuple[Difference, ...] = ()

    def adding(self, *details: str) -> "Judged":
        """Return the same with more details."""
        return self._replace(outcome=self.outcome.adding(*details))


def paired(run: PresetRun, comparison: Comparison, target: str, baselines: Sequence[str]) -> tuple[Difference, ...]:
    """Compare the target with each baseline in area under the curve; p-values are corrected for their number."""
    config = run.config
    return differences(comparison, target, baselines, seed=config.seed, num_resamples=config.compare.num_resamples)


def gain(comparison: Comparison, method: str) -> float:
    """Return what learning gains: area under the curve over the return before the first update, mean over tasks."""
    row = comparison.index(method)
    before = comparison.returns[row, :, 0].astype(np.float64)
    return float(np.mean(metric_values(comparison, "auc")[row] - before))


def outcome_of(
    run: PresetRun,
    effect: Effect | Difference,
    num: int,
    claim: str,
    verdict: Verdict,
    *details: str,
    quantity: str = AUC,
    counted: str = "tasks",
) -> Outcome:
    """Return an effect in an environment as an outcome."""
    facts = (run.title, claim, quantity, effect.mean, effect.low, effect.high, num, counted, verdict)
    return Outcome(*facts, detail=", ".join(filter(None, details)))


def beats_every(run: PresetRun, comparison: Comparison, target: str, baselines: Sequence[str], claim: str) -> Judged:
    """Judge that the target is better than every baseline; the effect is against the hardest of those that decide."""
    rows = paired(run, comparison, target, baselines)
    verdicts = [better(row) for row in rows]
    verdict = together(verdicts)
    hardest = min((row for row, own in zip(rows, verdicts, strict=True) if own == verdict), key=lambda row: row.mean)
    name, won = comparison.label(hardest.baseline), sum(row.verdict == "better" for row in rows)
    gained = gain(comparison, hardest.baseline)
    share = hardest.mean / gained if gained > 0.0 else 0.0
    worse = ", ".join(comparison.label(row.baseline) for row in rows if row.verdict == "worse")
    # The p-value decides against what the interval alone would say.
    is_hidden = hardest.verdict == "not distinguishable" and not hardest.low <= 0.0 <= hardest.high
    outcome = outcome_of(
        run,
        hardest,
        hardest.num_tasks,
        claim,
        verdict,
        f"against the hardest, {name}" if len(rows) > 1 else "",
        f"{share:+.0%} of the gain of {name}".replace("-", "\N{MINUS SIGN}") if gained > 0.0 else "",
        f"better than {won} of {len(rows)}" if len(rows) > 1 else "",
        f"worse than {worse}" if worse else "",
        f"p = {number(hardest.p_value)} by sign flips" if is_hidden else "",
        _at_edge(comparison, rows),
    )
    return Judged(outcome, rows)


def small(
    run: PresetRun,
    comparison: Comparison,
    rows: Sequence[Difference],
    claim: str,
    judge: Rule,
    *,
    of: Literal["target", "baseline"] = "target",
    quantity: str = AUC,
) -> Judged:
    """Judge that differences are small by the rule `judge`: up to `MARGIN` of what target or baseline gains.

    The effect is the largest of those that decide; `quantity` may name its methods, as {target} and {baseline}.
    """
    margins = [MARGIN * max(gain(comparison, getattr(row, of)), 0.0) for row in rows]
    verdicts = [judge(row, margin) for row, margin in zip(rows, margins, strict=True)]
    verdict = together(verdicts)
    deciding = [pair for pair, own in zip(zip(rows, margins, strict=True), verdicts, strict=True) if own == verdict]
    row, margin = max(deciding, key=lambda pair: abs(pair[0].mean) if judge is within else pair[0].mean)
    labels = {name: comparison.label(getattr(row, name)) for name in ("target", "baseline")}
    detail = f"the limit is {MARGIN:.0%} of the gain of {labels[of]}, {number(margin)}"
    details = (detail, _at_edge(comparison, rows))
    outcome = outcome_of(run, row, row.num_tasks, claim, verdict, *details, quantity=quantity.format(**labels))
    return Judged(outcome, tuple(rows))


def _at_edge(comparison: Comparison, rows: Sequence[Difference]) -> str:
    """Name the methods of some differences that were tuned at an edge of their grid."""
    edges = comparison.at_edge(*(name for row in rows for name in (row.target, row.baseline)))
    return f"tuned at an edge of the grid: {', '.join(edges)}" if edges else ""
