"""The tables of a report: what was compared, what was tuned, and the bookkeeping."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from metastep.evaluation import Comparison, Difference, oracle_scores, summary
from metastep.meta.dataset import Counts
from metastep.report.document import Table


def number(value: float) -> str:
    """Three digits, with a true minus sign."""
    size = abs(value)
    text = f"{value:.3g}" if size < 10.0 else f"{value:.1f}" if size < 100.0 else f"{value:.0f}"
    return text.replace("-", "\N{MINUS SIGN}")


def interval(value: float, low: float, high: float) -> str:
    """A value with its interval."""
    return f"{number(value)} [{number(low)}, {number(high)}]"


def comparison_table(
    comparison: Comparison,
    target: str,
    auc: Sequence[Difference],
    final: Sequence[Difference],
    seed: int,
    num_resamples: int,
) -> Table:
    """A row for each method: both metrics, the oracle score, the target minus it.

    How many tasks diverged is there if any did, and what was tuned at an edge of its grid if anything was.
    """
    scores = {}
    if {"fixed", "oracle"} <= set(comparison.names):
        scores = {row.method: row for row in oracle_scores(comparison, seed=seed, num_resamples=num_resamples)}
    by_auc, by_final = ({row.baseline: row for row in rows} for rows in (auc, final))
    diverged = any(comparison.num_diverged().values())
    edges = {table.method: ", ".join(table.at_edge) for table in comparison.tuning if table.at_edge}
    rows = []
    for row in summary(comparison, seed=seed, num_resamples=num_resamples):
        score = scores.get(row.method)
        known = score is not None and not np.isnan(score.score)
        rows.append(
            (
                comparison.label(row.method),
                interval(*row.auc),
                interval(*row.auc_middle),
                interval(*row.final),
                f"{score.score:.0f} % [{score.low:.0f}, {score.high:.0f}]" if score is not None and known else "",
                *_difference(by_auc.get(row.method)),
                _probability(by_auc.get(row.method)),
                *_difference(by_final.get(row.method)),
                *([str(row.num_diverged)] if diverged else []),
                *([edges.get(row.method, "")] if edges else []),
            )
        )
    name = comparison.label(target)
    header = (
        "method",
        "AUC",
        "AUC, interquartile mean",
        "final return",
        "oracle score",
        f"{name} minus it, AUC",
        f"{name} is",
        f"tasks on which {name} is better",
        f"{name} minus it, final return",
        f"{name} is",
        *(["diverged tasks"] if diverged else []),
        *(["tuned at an edge of its grid"] if edges else []),
    )
    numeric = (1, 2, 3, 4, 5, 7, 8, *([10] if diverged else []))
    return Table(header, rows, numeric=numeric, name="comparison")


def _probability(row: Difference | None) -> str:
    if row is None:
        return ""
    return f"{row.probability:.0%} [{row.probability_low:.0%}, {row.probability_high:.0%}]"


def _difference(row: Difference | None) -> tuple[str, str]:
    return ("", "") if row is None else (interval(row.mean, row.low, row.high), row.verdict)


def tuning_table(comparison: Comparison) -> Table:
    """The tuned values, and how they were found."""
    rows = []
    for table in comparison.tuning:
        chosen = ", ".join(f"{name} {value:g}" for name, value in table.chosen.items())
        edge = f"at the edge of its grid: {', '.join(table.at_edge)}" if table.at_edge else ""
        score = f"{number(table.mean[table.best])} ± {number(table.standard_error[table.best])}"
        rows.append((comparison.label(table.method), chosen, score, str(table.num_tasks), str(len(table.points)), edge))
    header = ("method", "tuned", "AUC ± standard error", "tuning tasks", "grid points", "remark")
    return Table(header, rows, numeric=(2, 3, 4), name="tuning")


def bookkeeping_table(
    comparison: Comparison, counts: Counts | None, fingerprint: str, config: Mapping[str, Any]
) -> Table:
    """What was flagged, what choices rested on, versions and seeds."""
    trained = []
    if counts is not None:
        trained = [
            ("flagged training tuples", f"{counts.flagged} of {counts.transitions}"),
            ("training tuples excluded as not finite", f"{counts.excluded} of {counts.transitions}"),
            ("training data", fingerprint[:16]),
        ]
    rows = [
        *trained,
        *(
            (f"flagged estimates, {comparison.label(name)}", str(count))
            for name, count in comparison.num_flagged().items()
        ),
        *_sample_sizes(comparison, int(config["rollout"]["num_episodes"])),
        *((name, str(value)) for name, value in comparison.settings.get("versions", {}).items()),
        ("seed", str(config["seed"])),
    ]
    return Table(("what", "value"), rows, name="bookkeeping")


def _sample_sizes(comparison: Comparison, num_episodes: int) -> list[tuple[str, str]]:
    """Of methods that price step sizes by importance sampling; what is not finite is left out and counted."""
    rows = []
    for key, sizes in comparison.diagnostics.items():
        method, _, quantity = key.rpartition("/")
        if quantity != "effective_sample_size":
            continue
        finite = sizes[np.isfinite(sizes)]
        median = number(float(np.median(finite))) if finite.size else "unknown"
        missing = f", {sizes.size - finite.size} not finite" if finite.size < sizes.size else ""
        rows.append(
            (
                f"effective sample size, {comparison.label(method)}",
                f"{median} of {num_episodes} episodes, median over tasks and updates{missing}",
            )
        )
    return rows
