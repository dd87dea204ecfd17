"""The tables of a report: what was compared, what was tuned, and the bookkeeping."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from metastep._core.progress import human
from metastep.evaluation import Comparison, Difference, OracleScore, oracle_scores, summary
from metastep.mdp.dataset import Counts
from metastep.report.document import Table

_ORACLES = {"oracle": "oracle score", "menu-oracle": "score by the oracle over the menu"}


def number(value: float) -> str:
    """Format a number with three digits and a true minus sign."""
    size = abs(value)
    text = f"{value:.3g}" if size < 10.0 else f"{value:.1f}" if size < 100.0 else f"{value:.0f}"
    return text.replace("-", "\N{MINUS SIGN}")


def interval(value: float, low: float, high: float) -> str:
    """Format a value with its interval."""
    return f"{number(value)} [{number(low)}, {number(high)}]"


def comparison_table(comparison: Comparison, seed: int, num_resamples: int) -> Table:
    """Return a row for each method: both metrics, the oracle scores and, if any did, how many tasks diverged."""
    scores = [
        {row.method: row for row in oracle_scores(comparison, oracle=name, seed=seed, num_resamples=num_resamples)}
        for name in oracles(comparison)
    ]
    diverged = any(comparison.num_diverged().values())
    rows = []
    for row in summary(comparison, seed=seed, num_resamples=num_resamples):
        measured = [interval(*each) for each in (row.auc, row.auc_middle, row.final)]
        scored = [_percent(by_method[row.method]) for by_method in scores]
        rows.append([comparison.label(row.method), *measured, *scored, *([str(row.num_diverged)] if diverged else [])])
    header = ["method", "AUC", "AUC, interquartile mean", "final return"]
    header += [_ORACLES[name] for name in oracles(comparison)] + (["diverged tasks"] if diverged else [])
    return Table(header, rows, numeric=range(1, len(header)), name="comparison")


def oracles(comparison: Comparison) -> list[str]:
    """Return the oracles that methods are scored by, from the tuned fixed step to them."""
    return [name for name in _ORACLES if {"fixed", name} <= set(comparison.names)]


def _percent(score: OracleScore) -> str:
    if np.isnan(score.score):
        return ""
    return f"{score.score:.0f} % [{score.low:.0f}, {score.high:.0f}]".replace("-", "\N{MINUS SIGN}")


def differences_table(
    comparison: Comparison, target: str, auc: Sequence[Difference], final: Sequence[Difference] = ()
) -> Table:
    """The target minus each method that it is tested against; the final return only where it is given.

    What was tuned at an edge of its grid is there if anything was.
    """
    edges = {table.method: ", ".join(table.at_edge) for table in comparison.tuning if table.at_edge}
    name = comparison.label(target)
    by_final = {row.baseline: row for row in final}
    rows = []
    for row in auc:
        cells = [comparison.label(row.baseline), _noted(row), row.verdict, _probability(row)]
        if last := by_final.get(row.baseline):
            cells += [_noted(last), last.verdict]
        rows.append([*cells, *([edges.get(row.baseline, "")] if edges else [])])
    header = ["method", f"{name} minus it, AUC", f"{name} is", f"tasks on which {name} is better"]
    header += [f"{name} minus it, final return", f"{name} is"] if final else []
    header += ["tuned at an edge of its grid"] if edges else []
    return Table(header, rows, numeric=(1, 3, 4) if final else (1, 3), name="differences")


def _noted(row: Difference) -> str:
    """The interval of a difference, with how many tasks differ where they are few."""
    return interval(row.mean, row.low, row.high) + (f" ({row.note})" if row.note else "")


def _probability(row: Difference) -> str:
    return f"{100 * row.probability:.0f} % [{100 * row.probability_low:.0f}, {100 * row.probability_high:.0f}]"


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


def cost_table(comparison: Comparison, trained: Mapping[str, tuple[float, float]]) -> Table:
    """Environment steps that each method took: to learn and to be selected, to be tuned, and on the test tasks.

    `trained` has the steps of the training data and of the selection, by method; those of a controller that trains itself are
    in its record. Trials of a controller are taken to be as long as the batches.
    """
    tuned = {table.method: table.num_steps for table in comparison.tuning}
    num_updates = comparison.hyperparameters.shape[2]
    rows = []
    for record, steps in zip(comparison.methods, comparison.num_steps, strict=True):
        learned, selected = trained.get(record.name, (record.training_steps, 0.0))
        test = float(steps.sum())
        trials = test * record.trials * num_updates / (num_updates + 1)
        each = (learned, selected, tuned.get(record.name, 0.0), test, trials)
        rows.append((record.label, *(human(number).strip() if number else "" for number in each)))
    header = ("method", "training", "selection", "tuning", "test", "trials")
    kept = [index for index, column in enumerate(zip(*rows, strict=True)) if any(column)]
    shown = [[row[index] for index in kept] for row in rows]
    return Table([header[index] for index in kept], shown, numeric=range(1, len(kept)), name="costs")


FLAGGED = (
    "An estimate is flagged where it cannot be followed: the direction of the update is zero or holds a number that is not "
    "finite, or the step would leave what float32 can hold. Such a learner stays where it is for that update, is counted below, "
    "and is never dropped from a mean. A few flags are harmless (a batch in which every episode failed alike has no gradient); "
    "many mean that a policy cannot learn from its batches."
)


def bookkeeping_table(
    comparison: Comparison, models: Mapping[str, tuple[Counts, str]], config: Mapping[str, Any]
) -> Table:
    """What was flagged, what choices rested on, versions and seeds; `models` are counts and fingerprint of training data."""
    trained = []
    for name, (counts, fingerprint) in models.items():
        of = f", {comparison.label(name)}" if len(models) > 1 else ""
        trained += [
            (f"flagged training tuples{of}", f"{counts.flagged} of {counts.transitions}"),
            (f"training tuples excluded as not finite{of}", f"{counts.excluded} of {counts.transitions}"),
            (f"training data{of}", fingerprint[:16]),
        ]
    estimates = comparison.flagged[0].size
    rows = [
        *trained,
        *(
            (f"flagged estimates, {comparison.label(name)}", f"{count} of {estimates}")
            for name, count in comparison.num_flagged().items()
        ),
        *_sample_sizes(comparison, config["rollout"]["num_episodes"]),
        *((name, str(value)) for name, value in comparison.settings.get("versions", {}).items()),
        ("seed", str(config["seed"])),
    ]
    return Table(("what", "value"), rows, name="bookkeeping")


def _sample_sizes(comparison: Comparison, num_episodes: int | None) -> list[tuple[str, str]]:
    """Of methods that price step sizes by importance sampling; what is not finite is left out and counted."""
    rows = []
    for key, sizes in comparison.diagnostics.items():
        method, _, quantity = key.rpartition("/")
        if quantity != "effective_sample_size":
            continue
        finite = sizes[np.isfinite(sizes)]
        median = number(float(np.median(finite))) if finite.size else "unknown"
        missing = f", {sizes.size - finite.size} not finite" if finite.size < sizes.size else ""
        found = f"{median} of {num_episodes} episodes, median over tasks and updates{missing}"
        rows.append((f"effective sample size, {comparison.label(method)}", found))
    return rows


def nothing_learned(comparison: Comparison, trained: Sequence[Counts]) -> str:
    """A sentence where there is no result: every training tuple is flagged, or every estimate of every method; else nothing."""
    remedy = "look at the policy's sigma, the first policies and the step sizes"
    if trained and all(counts.flagged == counts.transitions for counts in trained):
        return (
            f"Every one of the {sum(counts.transitions for counts in trained)} training tuples is flagged, its estimate zero or "
            "not finite: the model has learned from noise alone, and the comparison says nothing about what it could learn; "
            f"{remedy}."
        )
    if bool(comparison.flagged.all()):
        return f"Every estimate on the test tasks is flagged as zero or not finite: no learner could move; {remedy}."
    return ""
