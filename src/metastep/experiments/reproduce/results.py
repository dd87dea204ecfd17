"""What was reproduced, on one page: every claim with its verdict, and every method's numbers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metastep import envs, storage
from metastep.errors import InputError
from metastep.evaluation import Comparison, differences, join
from metastep.experiments.folder import RunFolder
from metastep.experiments.origin import model_of, result_of
from metastep.experiments.reproduce.outcome import Outcome
from metastep.experiments.stages import compared, method_names
from metastep.report.document import Command, Document, Heading, Paragraph, Part, Table, to_markdown
from metastep.report.findings import target_of
from metastep.report.tables import comparison_table, differences_table, tuning_table

HOW_TO_READ = (
    "AUC is the mean return over the updates. Differences are paired by test task, which no method was trained, selected or "
    "tuned on; intervals are 95 %. The gain of a method is its AUC over the return before the first update."
)
_EFFECTS = (
    "A method is better or worse than another if the interval of their difference excludes 0 and the p-value of a sign-flip "
    "test is below 0.05; else the two are not distinguishable. The verdict speaks of the pair alone, so that one effect has one "
    "verdict wherever it appears; p-values corrected for the number of pairs are in each run's differences.csv."
)
_CLAIMS = (
    "A claim to be better than each of several holds if that is so for all of them and does not hold if it is worse than any. A "
    "claim that a difference is small, or no improvement, holds if the whole interval lies within a limit, a tenth of what "
    "learning gains, and does not hold if it lies beyond. A claim that neither holds nor does not is not distinguishable: the "
    "interval reaches across 0, or across the limit. The effect shown is the one that decides."
)
_METHODS = (
    "The oracle score is 0 % at the tuned fixed step and 100 % at the greedy oracle, which tries every step size on fresh "
    "episodes before an update. A value at the edge of its grid may be better beyond it."
)


def results_markdown(folders: Sequence[Path]) -> str:
    """One page on folders that `metastep reproduce` or `metastep run` wrote."""
    outcomes: list[Outcome] = []
    runs: list[Path] = []
    for folder in folders:
        is_run, is_reproduced = (folder / "config.json").exists(), (folder / "results.json").exists()
        if not is_run and not is_reproduced:
            raise InputError(f"Folder {folder} was written neither by `metastep reproduce` nor by `metastep run`.")
        outcomes += read_outcomes(folder / "results.json") if is_reproduced else []
        runs += [folder] if is_run else []
    # The runs behind the claims have only the methods that a claim needs; they are shown where there are no others.
    inner = [path.parent for folder in folders for path in sorted(folder.glob("runs/*/config.json"))]
    parts: list[Part] = [part for path in runs or inner for part in _methods(RunFolder.open(path))]
    if outcomes:
        parts = [Heading("Claims"), Paragraph(_CLAIMS), claims_table(outcomes), *parts]
    read: list[Part] = [Heading("How to read it"), Paragraph(HOW_TO_READ), Paragraph(_EFFECTS), Paragraph(_METHODS)]
    verdicts = [outcome.verdict for outcome in outcomes]
    held, refuted = verdicts.count("holds"), verdicts.count("does not hold")
    told = f"Of {len(outcomes)} claims {held} hold, {refuted} do not, and for the rest it cannot be told."
    return to_markdown(Document("Results", told if outcomes else "Every method by environment.", [*read, *parts]), ".")


def read_outcomes(file: Path) -> list[Outcome]:
    """The outcomes that a file of `metastep reproduce` holds."""
    try:
        return [Outcome(**row) for row in storage.read_json(file)]
    except TypeError:
        raise InputError(f"File {file} was not written by `metastep reproduce`: it must list outcomes.") from None


def claims_table(outcomes: Sequence[Outcome]) -> Table:
    """A row for each claim, with what to type to see it again."""
    rows = [
        (
            outcome.id,
            outcome.environment,
            outcome.claim,
            f"{outcome.quantity}: **{outcome.measured()}**" + (f"; {outcome.detail}" if outcome.detail else ""),
            f"{outcome.num} {outcome.counted}",
            f"**{outcome.verdict}**",
            f"`{outcome.command}`",
        )
        for outcome in outcomes
    ]
    return Table(("id", "environment", "claim", "measured effect [95 % interval]", "n", "verdict", "command"), rows)


def _methods(run: RunFolder) -> list[Part]:
    """The methods of a run with what was tuned or selected, their metrics, and the target minus each; nothing without a test."""
    comparison = _tested(run)
    if comparison is None:
        return []
    config, target = run.config, target_of(comparison)
    drawn: dict[str, Any] = {"seed": config.seed, "num_resamples": config.compare.num_resamples}
    table = comparison_table(comparison, **drawn)
    tested = differences_table(comparison, target, differences(comparison, target, **drawn))
    against = {row[0]: row[1:] for row in tested.rows}
    tuned = {row[0]: row[1] for row in tuning_table(comparison).rows}
    if target == "metafqi" and run.model.exists():
        tuned[comparison.label(target)] = f"N = {model_of(run).record.selected_iteration}"
    blank = [""] * (len(tested.header) - 1)
    rows = [(row[0], tuned.get(row[0], ""), *row[1:], *against.get(row[0], blank)) for row in table.rows]
    header = ("method", "tuned", *table.header[1:], *tested.header[1:])
    kept = [index for index, column in enumerate(zip(*rows, strict=True)) if any(column)]
    shown = Table([header[index] for index in kept], [[row[index] for index in kept] for row in rows])
    title = envs.REGISTRY.entry(config.env.name).label
    counted = "tasks" if config.env.fixed_context is None else "first policies in one task"
    num_updates = comparison.returns.shape[2] - 1
    device = comparison.settings.get("versions", {}).get("device", "an unknown device")
    about = f"{comparison.num_tasks} test {counted}, {num_updates} updates each, seed {config.seed}, on {device}."
    return [Heading(title), Paragraph(about), *([Command(run.command())] if run.command() else []), shown]


def _tested(run: RunFolder) -> Comparison | None:
    """Every method on the test tasks, or those that are there, in the order of the configuration."""
    if run.comparison.exists():
        return compared(run)
    found = [result_of(run, name) for name in method_names(run) if run.result(name).exists()]
    return join(found) if found else None
