"""One page of results: every claim with its verdict, over one seed or several, and every method's numbers."""

import json
import shlex
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy import stats

from metastep import InputError, Run, envs
from metastep.evaluation import differences, join
from metastep.evaluation.intervals import verdict
from metastep.experiments.provenance import read_result
from metastep.experiments.reporting import in_words, times_of
from metastep.experiments.stages import read_times
from metastep.report.document import Command, Document, Heading, Paragraph, Part, Table, to_markdown
from metastep.report.tables import comparison_table, differences_table, interval, number, target_of, tuning_table
from paper.environments import EVERY
from paper.facts import FACTS
from paper.judging import MARGIN
from paper.outcome import RULES, Effect, Outcome, Verdict
from paper.seeds import hierarchical_interval, summarised_interval

HOW_TO_READ = (
    "AUC is the mean return over the updates. Differences are paired by test task, which no method was trained, selected or "
    "tuned on; intervals are 95 %. The gain of a method is its AUC over the return before the first update."
)
_EFFECTS = (
    "A method is better or worse than another if the interval of their difference excludes 0 and the p-value of a sign-flip "
    "test is below 0.05; otherwise the two are not distinguishable. The verdict is about the pair alone, so that one effect has "
    "one verdict wherever it appears; p-values corrected for the number of pairs are in each run's differences.csv."
)
_LIMIT = f"{100 * MARGIN:.0f} %"
_CLAIMS = (
    "A claim to be better than each of several holds if that is so for all of them and does not hold if it is worse than any. A "
    f"claim that a difference is small, or no improvement, holds if the whole interval lies within a limit, {_LIMIT} of what "
    "learning gains, and does not hold if it lies beyond. A claim that neither holds nor does not is not distinguishable: the "
    "interval reaches across 0, or across the limit. The effect shown is the one that decides."
)
_FACTS = (
    f"Where a fact is about the end of learning, the limit is {_LIMIT} of the gain by then: learning has converged if later "
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
    "is on the mean effect with its interval over seeds and tasks; where that decides nothing, or a fact is about several "
    "effects or tuned values, it is that of more than half of the seeds, if none says the opposite."
)
_OVER_SEEDS = (
    "Each seed has data, models, tuning and test tasks of its own. The interval is a hierarchical bootstrap: tasks are resampled "
    "within seeds, and the error between seeds is drawn from Student's t. The verdict follows from the interval alone."
)
_HEADER = ("id", "environment", "claim", "measured effect [95 % interval]", "n", "verdict", "command")

Row = Sequence[Outcome]
"""The outcomes of one claim, one for each seed."""


def results_markdown(folders: Sequence[Path]) -> str:
    """Write one page on folders of `python -m paper reproduce` or `metastep run`."""
    outcomes: list[Outcome] = []
    runs: list[Path] = []
    inner: dict[str, Path] = {}  # runs behind the claims; of several seeds, those of the first
    took: dict[str, float] = {}
    for folder in folders:
        if (folder / "config.json").exists():
            runs.append(folder)
        elif (folder / "results.json").exists():
            outcomes += read_outcomes(folder / "results.json")
            for name, seconds in read_times(folder).items():
                took[name] = took.get(name, 0.0) + seconds
            for path in sorted(folder.glob("runs/*/config.json")):
                inner.setdefault(path.parent.name, path.parent)
        else:
            raise InputError(
                f"Folder {folder} was written neither by `python -m paper reproduce` nor by `metastep run`."
            )
    grouped = by_claim(outcomes)
    claims, facts = ([row for row in grouped if (row[0].id == "facts") == wanted] for wanted in (False, True))
    read: list[Part] = [Heading("How to read it"), Paragraph(HOW_TO_READ), Paragraph(_EFFECTS)]
    read += [Paragraph(_CLAIMS)] if grouped else []
    read += [Paragraph(_FACTS), *_not_judged(facts)] if facts else []
    read += [Paragraph(_METHODS)] if runs or inner else []
    read += [Paragraph(f"What it took: {in_words(took)}.")] if took else []
    read += [Paragraph(_SEEDS)] if any(len(row) > 1 for row in grouped) else []
    subtitle = "Every method by environment."
    for title, rows, what in (("Claims", claims, "claims"), ("The paper's facts", facts, "facts of the paper")):
        if rows:
            subtitle = counted(rows, what)
            read += [Heading(title), Paragraph(subtitle), claims_table(rows)]
    read += over_seeds(folders)
    # The runs behind the claims have only the methods that a claim needs; they are shown where there are no others.
    methods = [part for path in runs or inner.values() for part in _methods(Run.open(path))]
    return to_markdown(Document("Results", subtitle, [*read, *methods]), ".")


def read_outcomes(file: Path) -> list[Outcome]:
    """Return the outcomes in a results.json."""
    try:
        return [Outcome(**row) for row in json.loads(file.read_bytes())]
    except (TypeError, ValueError):
        raise InputError(
            f"File {file} was not written by `python -m paper reproduce`: it must list outcomes."
        ) from None


def by_claim(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """Group outcomes of several seeds by claim.

    A fact that was not measured at a seed is missing there, so facts are found by what they say. The claims of a figure may
    name what was selected, which differs between seeds; but all are there each time, in the same order.
    """
    groups: dict[tuple[str, str, str | int], list[Outcome]] = {}
    counts: dict[tuple[str, str, str], int] = {}
    for outcome in outcomes:
        place = (outcome.command, outcome.id, outcome.environment)
        counts[place] = counts.get(place, 0) + 1
        which = outcome.claim if outcome.id == "facts" else counts[place]
        groups.setdefault((outcome.id, outcome.environment, which), []).append(outcome)
    for row in groups.values():
        settings = [_overrides(outcome.command) for outcome in row]
        if differing := next((other for other in settings if other != settings[0]), None):
            raise InputError(
                f"results: {row[0].id} was made with {settings[0]} and {differing}; write a page for each."
            )
    return list(groups.values())


def _overrides(command: str) -> str:
    words = shlex.split(command)
    sets = [value for option, value in pairwise(words) if option == "--set"]
    return f"--set {', '.join(sets)}" if sets else "no --set"


def overall(row: Row) -> Verdict:
    """Return the verdict on the mean effect over seeds and tasks; where that decides nothing, of more than half of the seeds.

    The latter only if no seed says the opposite.
    """
    if len(row) > 1 and all(one.rule and one.low is not None and one.high is not None for one in row):
        found = summarised_interval([(one.effect, one.low, one.high) for one in row])  # type: ignore[misc]  # not None
        effect = Effect(*found, verdict(found.low, found.high, 0.0, 0.95))
        judged = RULES[row[0].rule](effect, sum(one.margin for one in row) / len(row))
        if judged != "not distinguishable":
            return judged
    verdicts = [outcome.verdict for outcome in row]
    held, refuted = verdicts.count("holds"), verdicts.count("does not hold")
    if not refuted and 2 * held > len(verdicts):
        return "holds"
    return "does not hold" if not held and 2 * refuted > len(verdicts) else "not distinguishable"


def counted(rows: Sequence[Row], what: str) -> str:
    """Count the claims that hold over all seeds, in a sentence."""
    verdicts = [overall(row) for row in rows]
    hold, refuted = verdicts.count("holds"), verdicts.count("does not hold")
    return f"Of {len(rows)} {what} {hold} hold, {refuted} do not, and the rest are not distinguishable."


def claims_table(rows: Sequence[Row]) -> Table:
    """Return a row for each claim, with the effects of all seeds and the command of the first."""
    cells = []
    for row in rows:
        first, effects = row[0], "; ".join(outcome.measured() for outcome in row)
        text = f"{first.quantity}: {effects}"
        if len({outcome.quantity for outcome in row}) > 1:
            text = "; ".join(f"{outcome.quantity}: {outcome.measured()}" for outcome in row)
        if len(row) == 1 and first.detail:
            text += f"; {first.detail}"
        judged = overall(row)
        text += f"; {needed}" if judged == "not distinguishable" and (needed := _would_decide(row)) else ""
        num = f"{len(row)} x {first.num}" if len(row) > 1 else str(first.num)
        cells.append((first.id, first.environment, first.claim, text, f"{num} {first.counted}", judged, first.command))
    return Table(_HEADER, cells)


def _would_decide(row: Row) -> str:
    """Say how many seeds, or tasks of a single one, would separate the mean from 0, if effects and their spread stay.

    Say nothing where a limit decides, or where seeds contradict each other.
    """
    ends = np.array([(one.low, one.high) for one in row if one.low is not None and one.high is not None])
    effects = np.array([outcome.effect for outcome in row])
    mean = abs(float(effects.mean()))
    if row[0].counted != "tasks" or "the limit is" in row[0].detail or len(ends) < len(row) or not mean:
        return ""
    if len(row) == 1:
        return f"about {row[0].num * (np.ptp(ends) / 2.0 / mean) ** 2:,.0f} tasks would decide"
    if (ends[:, 0] > 0.0).any() and (ends[:, 1] < 0.0).any():
        return ""
    nums = np.arange(len(row) + 1, 1_000)
    enough = nums[stats.t.ppf(0.975, nums - 1) * effects.std(ddof=1) < mean * np.sqrt(nums)]
    return f"about {enough[0]} seeds would decide" if enough.size else "1,000 seeds would not decide"


def over_seeds(folders: Sequence[Path]) -> list[Part]:
    """Return the first method of `direction`, `strong` and `longer` minus each other one, over the seeds of several folders."""
    parts: list[Part] = []
    for name in ("direction", "strong", "longer"):
        for env in EVERY:
            files = [file for folder in folders if (file := folder / name / f"{env}.parquet").is_file()]
            if len(files) > 1:
                areas = [_areas(pq.read_table(file)) for file in files]
                target, *others = [method for method in areas[0] if all(method in own for own in areas)]
                cells = []
                for baseline in others:
                    found = np.stack([own[target] - own[baseline] for own in areas])
                    mean, low, high = hierarchical_interval(found)
                    by_seed = ", ".join(number(value) for value in found.mean(axis=1).tolist())
                    cells.append((baseline, interval(mean, low, high), by_seed, verdict(low, high, 0.0, 0.95)))
                title = f"{envs.REGISTRY.entry(env).label}: {name}, over seeds and tasks"
                header = ("baseline", f"{target} minus it, AUC [95 % over seeds and tasks]", "by seed", "verdict")
                counts = f"{len(files)} seeds with {found.shape[1]} test tasks each. {_OVER_SEEDS}"
                parts += [Heading(title), Paragraph(counts), Table(header, cells)]
    return parts


def _areas(table: pa.Table) -> dict[str, NDArray[np.float64]]:
    """Return the mean return over the updates of each task, by method, of a table of curves, in the order of tasks."""
    made = table.filter(pc.greater(table["update"], 0)).group_by(["method", "task"], use_threads=False)
    means = made.aggregate([("return", "mean")]).to_pydict()
    found: dict[str, list[float]] = {}
    for method, value in zip(means["method"], means["return_mean"], strict=True):
        found.setdefault(method, []).append(value)
    values = np.array(list(found.values()))  # (methods, tasks); a diverged one counts as the worst
    return dict(zip(found, np.where(np.isfinite(values), values, values[np.isfinite(values)].min()), strict=True))


def _not_judged(judged: Sequence[Row]) -> list[Part]:
    """Count the facts by environment that are not on the page."""
    seen = {(row[0].environment, row[0].claim) for row in judged}
    titles = [(envs.REGISTRY.entry(fact.environment).label, fact.claim) for fact in FACTS]
    missing = Counter(title for title, claim in titles if (title, claim) not in seen)
    words = ", ".join(f"{title} {num}" for title, num in missing.items())
    return [Paragraph(f"Of {len(FACTS)} facts these are not judged here: {words}.")] if words else []


def _methods(run: Run) -> list[Part]:
    """Describe a run: the metrics of its methods, the target minus each of them, and what was tuned."""
    if run.comparison_file.exists():
        comparison = run.comparison
    elif found := [read_result(run, name) for name in run.config.compare.names if run.result_file(name).exists()]:
        comparison = join(found)
    else:
        return []
    config, target = run.config, target_of(comparison)
    drawn: dict[str, Any] = {"seed": config.seed, "num_resamples": config.compare.num_resamples}
    units = "tasks" if config.env.fixed_context is None else "first policies in one task"
    device = comparison.settings.get("versions", {}).get("device", "an unknown device")
    about = f"{comparison.num_tasks} test {units}, {comparison.returns.shape[2] - 1} updates each, seed {config.seed}, "
    about += f"on {device}."
    if target == "metafqi" and run.model_file.exists():
        about += f" metaFQI plans N = {run.model.record.selected_iteration} updates."
    if seconds := times_of(run):
        about += f" What it took: {in_words(seconds)}."
    parts: list[Part] = [Heading(envs.REGISTRY.entry(config.env.name).label), Paragraph(about)]
    parts += [Command(run.command())] if run.command() else []
    tested = differences_table(comparison, target, differences(comparison, target, **drawn))
    tables = (comparison_table(comparison, **drawn), tested, tuning_table(comparison))
    return [*parts, *(table for table in tables if table.rows)]
