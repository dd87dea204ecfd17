"""From comparisons to outcomes: paired differences on test tasks, and how large a difference matters."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from metastep.evaluation import Comparison, Difference, differences, metric_values
from metastep.experiments.folder import RunFolder
from metastep.experiments.reproduce.outcome import Outcome, Verdict, beats_all, number
from metastep.experiments.reproduce.workbench import TITLES
from metastep.report.style import title_of

AUC = "difference in AUC"
MARGIN = 0.1
"""Two methods are alike when their difference is below this share of what learning gains."""


def paired(folder: RunFolder, comparison: Comparison, target: str, baselines: Sequence[str]) -> tuple[Difference, ...]:
    """Target minus each baseline in area under the curve, corrected for their number."""
    config = folder.config
    return differences(comparison, target, baselines, seed=config.seed, num_resamples=config.compare.num_resamples)


def gain(comparison: Comparison, method: str) -> float:
    """What learning gains with a method: area under the curve over the return before the first update, mean over tasks."""
    row = comparison.index(method)
    before = comparison.returns[row, :, 0].astype(np.float64)
    return float(np.mean(metric_values(comparison, "auc")[row] - before))


def title(folder: RunFolder) -> str:
    """The environment's name in figures and tables."""
    return TITLES.get(folder.config.env.name, folder.config.env.name)


def outcome_of(
    folder: RunFolder, row: Difference, claim: str, verdict: Verdict, detail: str, quantity: str = AUC
) -> Outcome:
    """A paired difference as an outcome."""
    return Outcome(
        environment=title(folder),
        claim=claim,
        quantity=quantity,
        effect=row.mean,
        low=row.low,
        high=row.high,
        num=row.num_tasks,
        counted="tasks",
        verdict=verdict,
        detail=detail,
    )


def beats_every(
    folder: RunFolder, comparison: Comparison, target: str, baselines: Sequence[str], claim: str
) -> tuple[Outcome, tuple[Difference, ...]]:
    """The claim that the target is better than every baseline; the effect is that against the hardest of them."""
    rows = paired(folder, comparison, target, baselines)
    hardest = min(rows, key=lambda row: row.mean)
    name = title_of(hardest.baseline)
    details = [share_of_gain(hardest.mean, gain(comparison, hardest.baseline), name)]
    if len(rows) > 1:
        details.insert(0, f"against the hardest, {name}")
        details.append(f"better than {sum(row.verdict == 'better' for row in rows)} of {len(rows)}")
    if worse := [title_of(row.baseline) for row in rows if row.verdict == "worse"]:
        details.append(f"worse than {', '.join(worse)}")
    verdict = beats_all([row.verdict for row in rows])
    return outcome_of(folder, hardest, claim, verdict, ", ".join(filter(None, details))), rows


def alike(
    folder: RunFolder,
    comparison: Comparison,
    target: str,
    baseline: str,
    claim: str,
    *,
    reference: str,
    judge: Callable[[float, float, float], Verdict],
) -> tuple[Outcome, tuple[Difference, ...]]:
    """The claim that target minus baseline is small (as `judge` understands it): `MARGIN` of what the reference gains."""
    rows = paired(folder, comparison, target, [baseline])
    row, margin = rows[0], MARGIN * max(gain(comparison, reference), 0.0)
    detail = f"the limit is {MARGIN:.0%} of the gain of {title_of(reference)}, {number(margin)}"
    return outcome_of(folder, row, claim, judge(row.low, row.high, margin), detail), rows


def share_of_gain(effect: float, reference: float, name: str) -> str:
    """A difference as a share of what a method gains; nothing where that gains nothing."""
    return f"{effect / reference:+.0%} of the gain of {name}".replace("-", "\N{MINUS SIGN}") if reference > 0.0 else ""


def table(folder: RunFolder, rows: Sequence[Difference]) -> list[dict[str, Any]]:
    """Differences as rows of a CSV file."""
    return [{"environment": folder.config.env.name, **row._asdict()} for row in rows]
