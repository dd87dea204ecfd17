"""Readings of the paper side by side: which facts hold under each of them, measured on tuning tasks."""

import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap

from metastep import envs
from metastep._core import storage
from metastep._core.device import prepare_child, share_gpu
from metastep._core.errors import InputError
from metastep._core.parallel import count_threads
from metastep._core.progress import Silent
from metastep.evaluation import load, save
from metastep.experiments.schema import Experiment
from metastep.report.document import Document, Heading, Paragraph, Part, Table, to_markdown
from metastep.report.figures import Layout, Panel, picture
from metastep.report.style import Ink
from metastep.report.tables import interval, number
from paper.facts import Fact, facts_of
from paper.judging import Found, Measured
from paper.outcome import COLOURS, Product, Verdict
from paper.points import POINTS, Reading, readings
from paper.screening import SCREENS, measure
from paper.workbench import Workbench

ID = "readings"
_WORDS: dict[Verdict | None, str] = {
    "holds": "holds",
    "not distinguishable": "cannot be told",
    "does not hold": "does not hold",
    None: "not measured",
}
_ABOUT = (
    "What the paper leaves open was read in every combination below. Each reading is measured at a small scale: baselines are "
    "tuned on the tuning tasks of one seed, and facts are judged on the tuning tasks of another. The score is the number of "
    "facts that hold less the number of those that do not; without wins, those are left out that say that metaFQI, or planning "
    "with it, is better than something else. Test tasks have no part in it."
)


class Screened(NamedTuple):
    """A reading and what was found of every fact about its environment."""

    reading: Reading
    found: Mapping[Fact, Found | None]

    def count(self, verdict: Verdict) -> int:
        """How many facts have a verdict."""
        return sum(found is not None and found.verdict == verdict for found in self.found.values())

    def without_wins(self) -> "Screened":
        """The same without the facts that speak for metaFQI."""
        return self._replace(found={fact: found for fact, found in self.found.items() if not fact.is_win})

    @property
    def score(self) -> int:
        """Facts that hold less those that do not."""
        return self.count("holds") - self.count("does not hold")

    @property
    def rank(self) -> tuple[int, int]:
        """What readings are ordered by: the score, then the facts that hold."""
        return self.score, self.count("holds")


def best_of(screened: Sequence[Screened]) -> Screened:
    """The reading with the highest score; of several the one with most facts that hold, then the first."""
    return max(screened, key=lambda row: row.rank)


def config_of(bench: Workbench, reading: Reading) -> Experiment:
    """The experiment that screens a reading: the preset with its choices, at the size of a screening."""
    screen = SCREENS[reading.environment]
    methods = ["metafqi", *screen.methods, *(["single"] if screen.has_variants else [])]
    sizes = () if bench.scale == "tiny" else screen.sizes
    # What is ours has no part in it: neither methods nor models that the paper does not have.
    ours = ("models={}", f"compare.methods={methods}")
    return bench.config(reading.environment, ("reading=first", *ours, *sizes, *bench.overrides, *reading.overrides))


def _files(bench: Workbench, reading: Reading) -> dict[str, Path]:
    """Where what was measured of a reading is kept; the file that is written last comes last."""
    folder, name = bench.out / ID, f"{reading.environment}.{reading.name}"
    longer = {"longer": folder / f"{name}.longer.safetensors"} if SCREENS[reading.environment].is_longer else {}
    return {**longer, "comparison": folder / f"{name}.safetensors"}


def _is_done(bench: Workbench, reading: Reading) -> bool:
    return all(path.exists() for path in _files(bench, reading).values())


def _identity(config: Experiment) -> dict[str, str]:
    return {"run": storage.sha256_of_json(config.to_dict())}


def screen(bench: Workbench, reading: Reading) -> None:
    """Measure a reading and keep the outcome."""
    config = config_of(bench, reading)
    measured = measure(config, reading, bench.tracker)
    storage.create_folder(bench.out / ID)
    for name, path in _files(bench, reading).items():
        save(path, dataclasses.replace(getattr(measured, name), made_from=_identity(config)))


def kept(bench: Workbench, reading: Reading) -> Measured:
    """What was measured of a reading with the settings of now."""
    wanted, comparisons = _identity(config_of(bench, reading)), {}
    for name, path in _files(bench, reading).items():
        comparisons[name] = load(path)
        if comparisons[name].made_from != wanted:
            raise InputError(f"File {path} was measured with other settings; remove it to have it made again.")
    return Measured(**comparisons)


def _groups(wanted: Sequence[Reading]) -> list[list[Reading]]:
    """Readings that share their compiled programs: they differ in the first policies or the tasks only."""

    def program(reading: Reading) -> tuple[str, ...]:
        varying = ("initial.", "env.options.goal_range=")
        return reading.environment, *(name for name in reading.overrides if not name.startswith(varying))

    return [list(group) for _, group in groupby(sorted(wanted, key=program), key=program)]


def _screen_in_child(bench: Workbench, group: Sequence[Reading], device: str, cores: int) -> dict[str, str]:
    """What a process of its own does."""
    prepare_child(device, cores)
    return {name: problem for reading in group for name, problem in _attempt(bench, reading).items()}


def _attempt(bench: Workbench, reading: Reading) -> dict[str, str]:
    """Screen a reading; one under which nothing can be measured must not take the others with it."""
    try:
        screen(bench, reading)
    except InputError as error:
        return {f"{reading.environment} {reading.name}": str(error)}
    return {}


def screen_all(bench: Workbench, wanted: Sequence[Reading]) -> dict[str, str]:
    """Screen what is missing: side by side where several processes are allowed, since most of the time goes into compiling.

    Returns what went wrong with some of them, by their names.
    """
    missing = [reading for reading in wanted if not _is_done(bench, reading)]
    failed: dict[str, str] = {}
    if not missing:
        return failed
    groups = _groups(missing)
    workers = min(bench.jobs, len(groups))
    with bench.tracker.stage("readings", len(missing), "readings") as stage:
        quiet = dataclasses.replace(bench, tracker=Silent())
        if workers == 1:
            for reading in (reading for group in groups for reading in group):
                failed |= _attempt(quiet, reading)
                stage.advance(1)
            return failed
        share_gpu()
        cores = max(1, count_threads(None) // workers)
        device = "cpu" if jax.default_backend() == "cpu" else "gpu"
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            jobs = {pool.submit(_screen_in_child, quiet, group, device, cores): len(group) for group in groups}
            for job in as_completed(jobs):
                failed |= job.result()
                stage.advance(jobs[job])
    return failed


def reproduce_readings(bench: Workbench) -> Product:
    """Every reading of every environment against the facts of the paper."""
    wanted = {env: readings(env) for env in bench.environments}
    failed = screen_all(bench, [reading for group in wanted.values() for reading in group])
    wanted = {env: tuple(one for one in group if _is_done(bench, one)) for env, group in wanted.items()}
    if not all(wanted.values()):
        name, problem = next(iter(failed.items()))
        raise InputError(f"readings: {name} could not be measured, and none other either: {problem}")
    screened = {env: [judged(bench, reading) for reading in group] for env, group in wanted.items()}
    rows = [row for group in screened.values() for one in group for row in _rows(one)]
    return Product(
        outcomes=[],
        pictures=[_picture(screened)],
        tables={"facts": rows, "scores": [_score(one) for group in screened.values() for one in group]},
        documents={"readings": page(screened, failed)},
        files=[path for group in wanted.values() for one in group for path in _files(bench, one).values()],
    )


def judged(bench: Workbench, reading: Reading) -> Screened:
    """The facts about a reading's environment, by what was kept of it."""
    measured = kept(bench, reading)
    return Screened(reading, {fact: fact.judged(measured) for fact in facts_of(reading.environment)})


def _rows(screened: Screened) -> list[dict[str, Any]]:
    empty = Found("not distinguishable", "", np.nan, None, None, 0)
    return [
        {
            "environment": screened.reading.environment,
            "reading": screened.reading.name,
            "fact": fact.id,
            "statement": fact.statement,
            **(found or empty)._asdict(),
            "verdict": _WORDS[found.verdict if found else None],
        }
        for fact, found in screened.found.items()
    ]


def _score(screened: Screened) -> dict[str, Any]:
    points = POINTS[screened.reading.environment]
    return {
        "environment": screened.reading.environment,
        "reading": screened.reading.name,
        "choices": "; ".join(f"{p.name}: {name}" for p, name in zip(points, screened.reading.choices, strict=True)),
        "hold": screened.count("holds"),
        "do not": screened.count("does not hold"),
        "cannot be told": screened.count("not distinguishable"),
        "not measured": sum(found is None for found in screened.found.values()),
        "score": screened.score,
        "score without wins": screened.without_wins().score,
        "overrides": " ".join(f"--set {override!r}" for override in screened.reading.overrides),
    }


def page(screened: Mapping[str, Sequence[Screened]], failed: Mapping[str, str]) -> str:
    """The readings of all environments as Markdown."""
    parts: list[Part] = [Paragraph(f"Not measured: {name}. {problem}") for name, problem in failed.items()]
    for env, group in screened.items():
        best, first = best_of(group), group[0]
        parts += [
            Heading(envs.REGISTRY.entry(env).label),
            *(Paragraph(f"**{point.name}** ({', '.join(point.choices)}): {point.says}") for point in POINTS[env]),
            Paragraph(
                f"The best of {len(group)} readings is **{best.reading.name}**: {best.count('holds')} facts hold and "
                f"{best.count('does not hold')} do not; under the first one, {first.reading.name}, {first.count('holds')} "
                f"hold and {first.count('does not hold')} do not."
            ),
            _scores_table(group),
            _facts_table(first, best),
        ]
    return to_markdown(Document("Readings of the paper", _ABOUT, parts), ".")


def _scores_table(group: Sequence[Screened]) -> Table:
    points = [point.name for point in POINTS[group[0].reading.environment]]
    counted: tuple[Verdict, ...] = ("holds", "does not hold", "not distinguishable")
    ordered = sorted(group, key=lambda row: row.rank, reverse=True)
    rows = [
        (
            *row.reading.choices,
            *(str(row.count(word)) for word in counted),
            str(row.score),
            str(row.without_wins().score),
        )
        for row in ordered
    ]
    return Table((*points, "hold", "do not", "cannot be told", "score", "without wins"), rows)


def _facts_table(first: Screened, best: Screened) -> Table:
    rows = [(fact.figure, fact.statement, shown(first.found[fact]), shown(best.found[fact])) for fact in first.found]
    return Table(("figure", "fact", f"first: {first.reading.name}", f"best: {best.reading.name}"), rows)


def shown(found: Found | None) -> str:
    """A verdict with its effect, as a cell of a table."""
    if found is None:
        return _WORDS[None]
    if found.low is None or found.high is None:
        return f"{_WORDS[found.verdict]} ({number(found.effect)})"
    return f"{_WORDS[found.verdict]} ({interval(found.effect, found.low, found.high)})"


def _picture(screened: Mapping[str, Sequence[Screened]]) -> Any:
    caption = (
        "Readings of the paper (rows, the best first) and its facts (columns) on tuning tasks: "
        + ", ".join(f"{word} ({colour})" for word, colour in _named_colours())
        + ". The number behind a reading is its score; `first` is the one that was taken before."
    )
    panels = [[_matrix(env, group)] for env, group in screened.items()]
    return picture("readings", caption, panels, Layout((9.0, 4.6)))


def _named_colours() -> list[tuple[str, str]]:
    names = ("green", "yellow", "red", "grey")
    return [(_WORDS[verdict], name) for verdict, name in zip(COLOURS, names, strict=True)]


def _matrix(env: str, group: Sequence[Screened]) -> Panel:
    facts = [fact for fact in group[0].found if any(row.found[fact] for row in group)]
    order, ranked = list(COLOURS), sorted(group, key=lambda row: row.rank, reverse=True)
    found = [[row.found[fact] for fact in facts] for row in ranked]
    cells = np.array([[order.index(one.verdict if one else None) for one in row] for row in found])

    def draw(axes: Axes, ink: Ink) -> None:
        colours = ListedColormap(list(COLOURS.values()))
        axes.pcolormesh(cells, cmap=colours, vmin=-0.5, vmax=len(order) - 0.5, edgecolors=ink.text, linewidth=0.3)
        names = [f"{'first: ' if row is group[0] else ''}{row.reading.name}  {row.score:+d}" for row in ranked]
        axes.set_yticks(np.arange(len(ranked)) + 0.5, names, fontsize=6)
        axes.set_xticks(
            np.arange(len(facts)) + 0.5, [fact.id.replace(f".{env}", "") for fact in facts], fontsize=6, rotation=90
        )
        axes.invert_yaxis()
        axes.grid(visible=False)

    return Panel(envs.REGISTRY.entry(env).label, draw)
