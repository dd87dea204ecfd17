"""What was reproduced, on one page: every claim with its verdict, and every method's numbers."""

import csv
import io
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metastep import envs
from metastep._core import storage
from metastep._core.errors import InputError
from metastep.evaluation import Comparison, differences, join
from metastep.experiments.provenance import read_model as model_of
from metastep.experiments.provenance import read_result as result_of
from metastep.experiments.run import Run as RunFolder
from metastep.experiments.stages import read_compared as compared
from metastep.experiments.times import in_words, read_times, times_of
from metastep.report.document import Command, Document, Heading, Paragraph, Part, Table, to_markdown
from metastep.report.findings import target_of
from metastep.report.tables import comparison_table, differences_table, tuning_table
from paper.facts import FACTS
from paper.judging import MARGIN
from paper.outcome import Outcome
from paper.points import FOLLOWED
from paper.seeds import Row, by_claim, counted, facts_of_readings, measured, overall, told

HOW_TO_READ = (
    "AUC is the mean return over the updates. Differences are paired by test task, which no method was trained, selected or "
    "tuned on; intervals are 95 %. The gain of a method is its AUC over the return before the first update."
)
_EFFECTS = (
    "A method is better or worse than another if the interval of their difference excludes 0 and the p-value of a sign-flip "
    "test is below 0.05; else the two are not distinguishable. The verdict speaks of the pair alone, so that one effect has one "
    "verdict wherever it appears; p-values corrected for the number of pairs are in each run's differences.csv."
)
_LIMIT = f"{100 * MARGIN:.0f} %"
_CLAIMS = (
    "A claim to be better than each of several holds if that is so for all of them and does not hold if it is worse than any. A "
    f"claim that a difference is small, or no improvement, holds if the whole interval lies within a limit, {_LIMIT} of what "
    "learning gains, and does not hold if it lies beyond. A claim that neither holds nor does not is not distinguishable: the "
    "interval reaches across 0, or across the limit. The effect shown is the one that decides."
)
_FACTS = (
    f"Where a fact speaks of the end of learning, the limit is {_LIMIT} of the gain by then: learning has converged if later "
    "updates gain less, and has not if they gain more. A tuned value holds within one step of its grid from the paper's; farther "
    "away it does not hold if the paper's value is worse by more than two standard errors on the tuning tasks. Grids of HOOF and "
    "metagrad reach beyond the paper's, so facts about these two are harder to meet than there."
)
_METHODS = (
    "The oracle score is 0 % at the tuned fixed step and 100 % at the greedy oracle, which tries every step size on fresh "
    "episodes before an update. A value at the edge of its grid may be better beyond it."
)
_SEEDS = (
    "Several seeds were measured: the effects of all stand side by side, and a row's command is that of the first. The verdict "
    "is what more than half of them say, if none says the opposite."
)
_READINGS = (
    "The paper leaves some points open. Its own facts were judged under several readings, at a small scale and on tuning tasks, "
    "and the presets follow one with the best score, facts that hold less those that do not. Numbers are facts that hold and "
    "that do not. `metastep reproduce readings` makes the tables and the figure behind this one."
)
_FIRST = "reading=first"
_BEFORE = "under the first reading"


def results_markdown(folders: Sequence[Path]) -> str:
    """One page on folders that `metastep reproduce` or `metastep run` wrote."""
    found: list[Outcome] = []
    first: list[Outcome] = []
    runs: list[Path] = []
    for folder in folders:
        is_run, is_reproduced = (folder / "config.json").exists(), (folder / "results.json").exists()
        if not is_run and not is_reproduced:
            raise InputError(f"Folder {folder} was written neither by `metastep reproduce` nor by `metastep run`.")
        outcomes = read_outcomes(folder / "results.json") if is_reproduced else []
        if any(_FIRST in shlex.split(outcome.command) for outcome in outcomes):
            first += outcomes
        else:
            found += outcomes
        runs += [folder] if is_run else []
    # The runs behind the claims have only the methods that a claim needs; they are shown where there are no others.
    # Of several seeds, those of the first.
    inner: dict[str, Path] = {}
    for path in (path for folder in folders for path in sorted(folder.glob("runs/*/config.json"))):
        inner.setdefault(path.parent.name, path.parent)
    parts: list[Part] = [part for path in runs or inner.values() for part in _methods(RunFolder.open(path))]
    grouped = by_claim(found)
    claims, facts = ([rows for rows in grouped if (rows[0].id == "facts") == wanted] for wanted in (False, True))
    before = by_claim(first)
    claims_first, facts_first = (
        [rows for rows in before if (rows[0].id == "facts") == wanted] for wanted in (False, True)
    )
    if facts and facts_first:
        parts = [*facts_of_readings(facts, facts_first), *parts]
    else:
        told_of = "facts of the paper"
        later = _section(f"The paper's facts {_BEFORE}", facts_first, told_of)
        parts = [*_section("The paper's facts", facts, told_of), *later, *parts]
    parts = [*_section(f"Claims {_BEFORE}", claims_first, "claims"), *parts]
    screened = [page for folder in folders if (page := folder / "readings" / "scores.csv").exists()]
    parts = [*(part for page in screened for part in _screened(page)), *parts]
    parts = [*_section("Claims", claims, "claims"), *parts]
    read: list[Part] = [Heading("How to read it"), Paragraph(HOW_TO_READ), Paragraph(_EFFECTS)]
    read += [Paragraph(_CLAIMS)] if found or first else []
    read += [Paragraph(_FACTS), *_not_judged([*facts, *facts_first])] if facts or facts_first else []
    read += [Paragraph(_METHODS)] if runs or inner else []
    took: dict[str, float] = {}
    for folder in folders:
        for name, seconds in read_times(folder).items() if folder not in runs else ():
            took[name] = took.get(name, 0.0) + seconds
    read += [Paragraph(f"What it took: {in_words(took)}.")] if took else []
    read += [Paragraph(_SEEDS)] if any(len(rows) > 1 for rows in [*grouped, *before]) else []
    subtitle = "Every method by environment."
    for rows, what in ((claims, "claims"), (facts_first, f"facts {_BEFORE}"), (facts, "facts of the paper")):
        subtitle = told(rows, what) if rows else subtitle
    return to_markdown(Document("Results", subtitle, [*read, *parts]), ".")


def _section(title: str, grouped: Sequence[Row], what: str) -> list[Part]:
    return [Heading(title), Paragraph(told(grouped, what)), _seeds_table(grouped)] if grouped else []


def _not_judged(judged: Sequence[Row]) -> list[Part]:
    """What else the paper says that can be checked: counted, and in words where the rest of an environment was judged."""
    seen = {(row[0].environment, row[0].claim) for row in judged}
    missing: dict[str, list[str]] = {}
    for fact in FACTS:
        title = envs.REGISTRY.entry(fact.environment).label
        if (title, fact.claim) not in seen:
            missing.setdefault(title, []).append(fact.claim)
    begun = {environment for environment, _ in seen}
    words = [
        f"{title}, {len(claims)}" + (f" ({'; '.join(claims)})" if title in begun else "")
        for title, claims in missing.items()
    ]
    return [Paragraph(f"Of {len(FACTS)} facts these are not judged here: {'. '.join(words)}.")] if words else []


def _seeds_table(grouped: Sequence[Row]) -> Table:
    """A row for each claim: the usual one where it was measured once, else with all effects."""
    if all(len(rows) == 1 for rows in grouped):
        return claims_table([rows[0] for rows in grouped])
    cells = [
        (
            rows[0].id,
            rows[0].environment,
            rows[0].claim,
            measured(rows),
            counted(rows),
            f"**{overall([outcome.verdict for outcome in rows])}**",
            f"`{rows[0].command}`",
        )
        for rows in grouped
    ]
    return Table(_HEADER, cells)


def _screened(file: Path) -> list[Part]:
    """What a screening of readings came to."""
    rows = list(csv.DictReader(io.StringIO(storage.read_bytes(file).decode("utf-8"))))
    by_env: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        by_env.setdefault(row["environment"], []).append(row)
    cells = []
    for env, group in by_env.items():
        most = max(_rank(row) for row in group)
        followed = "+".join(FOLLOWED.get(env, ()))
        shown = (
            [group[0]],
            [row for row in group if _rank(row) == most],
            [row for row in group if row["reading"] == followed],
        )
        cells.append((env, str(len(group)), *("; ".join(map(_scored, some)) for some in shown)))
    header = ("environment", "readings tried", "the first", "the best", "the preset's")
    return [Heading("Readings of the paper"), Paragraph(_READINGS), Table(header, cells)]


def _rank(row: dict[str, str]) -> tuple[int, int]:
    return int(row["score"]), int(row["hold"])


def _scored(row: dict[str, str]) -> str:
    return f"{row['reading']}: {row['hold']}, {row['do not']}"


def read_outcomes(file: Path) -> list[Outcome]:
    """The outcomes that a file of `metastep reproduce` holds."""
    try:
        return [Outcome(**row) for row in storage.read_json(file)]
    except TypeError:
        raise InputError(f"File {file} was not written by `metastep reproduce`: it must list outcomes.") from None


_HEADER = ("id", "environment", "claim", "measured effect [95 % interval]", "n", "verdict", "command")


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
    return Table(_HEADER, rows)


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
    if target == "metafqi" and run.model_file.exists():
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
    if seconds := times_of(run):
        about += f" What it took: {in_words(seconds)}."
    return [Heading(title), Paragraph(about), *([Command(run.command())] if run.command() else []), shown]


def _tested(run: RunFolder) -> Comparison | None:
    """Every method on the test tasks, or those that are there, in the order of the configuration."""
    if run.comparison_file.exists():
        return compared(run)
    found = [result_of(run, name) for name in run.config.compare.names if run.result_file(name).exists()]
    return join(found) if found else None
