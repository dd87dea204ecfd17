"""Figures with a column for each environment, and the lines that several of them draw."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.colors import to_hex

from metastep import Comparison
from metastep.report.figures import Line, Panel, curves, line_of, picture, whiskers
from paper.claims import Judged
from paper.outcome import Product
from paper.workbench import PresetRun, Workbench

_SCALES = {"warm": "YlOrBr", "cool": "YlGnBu"}


def family_shade(family: str, place: float) -> str:
    """Return a colour for one of a family of lines, by its place from 0 to 1; the ends of a scale would vanish on the page."""
    return to_hex(mpl.colormaps[_SCALES[family]](0.38 + 0.55 * place))


class Column(NamedTuple):
    """What an environment contributes to a figure."""

    judged: Sequence[Judged]
    panels: Sequence[Panel]  # from above to below
    comparison: Comparison  # written as Parquet, under the environment's name
    note: str = ""  # for the caption
    rows: Sequence[Mapping[str, Any]] | None = None  # of the table; by default the differences that were judged
    others: Mapping[str, Comparison] = {}  # written as well, by file name

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return the rows of the table."""
        return [row._asdict() for judged in self.judged for row in judged.rows] if self.rows is None else self.rows


@dataclass(frozen=True)
class Figure:
    """A figure of the paper, made for one environment after the other."""

    name: str  # its id
    caption: str
    column: Callable[[PresetRun], Column]  # makes an environment's share
    run: Callable[[Workbench, str], PresetRun] | None = None  # opens its run, where that is not the preset's
    table: str = "differences"  # name of the file of its numbers
    is_turned: bool = False  # whether an environment has a row instead of a column

    def __call__(self, bench: Workbench) -> Product:
        """Make it for the environments of a bench."""
        runs = {preset: self.run(bench, preset) if self.run else bench.run(preset) for preset in bench.environments}
        made = {preset: self.column(run) for preset, run in runs.items()}
        panels = [column.panels for column in made.values()]
        if not self.is_turned:
            panels = [[panel for panel in row if panel is not None] for row in zip_longest(*panels)]
        notes = dict.fromkeys(column.note for column in made.values() if column.note)  # those that several share, once
        rows = [{"environment": env, **row} for env, column in made.items() for row in column.table()]
        return Product(
            outcomes=[judged.outcome for column in made.values() for judged in column.judged],
            pictures=[picture(self.name, " ".join([self.caption, *notes]), panels)] if any(panels) else [],
            tables={self.table: rows},
            curves={preset: column.comparison for preset, column in made.items()}
            | {name: comparison for column in made.values() for name, comparison in column.others.items()},
        )


class Shown(NamedTuple):
    """What figures show of a comparison."""

    comparison: Comparison
    quantity: str  # what its `returns` are, for the vertical axis
    note: str  # for the caption


def shown(run: PresetRun, comparison: Comparison) -> Shown:
    """Return the comparison, less the first return where the environment is shown as gain; paired differences are the same."""
    if not run.environment.is_shown_as_gain:
        return Shown(comparison, "mean return", "")
    gains = dataclasses.replace(comparison, returns=comparison.returns - comparison.returns[:, :, :1])
    return Shown(gains, "mean return gain", f"{run.title}: gain over the first return.")


def above_differences(
    run: PresetRun, comparison: Comparison, judged: Judged, lines: Sequence[Line], quantity: str, note: str
) -> Column:
    """Return a column of learning curves above the paired differences that were judged."""
    below = whiskers(f"{run.title}: difference", comparison, judged.rows)
    return Column([judged], [curves(run.title, lines, ylabel=quantity), below], comparison, note)


def main_line(comparison: Comparison, label: str = "metaFQI") -> Line:
    """Return the learning curve of metaFQI."""
    return line_of(comparison, "metafqi", label=label, is_main=True)


def step_name(stepsize: float) -> str:
    """Return the name of a fixed step that was not tuned."""
    return f"h = {stepsize:g}"


def tuned_step(comparison: Comparison) -> float:
    """Return the fixed step that was best on the tuning tasks."""
    return comparison.methods[comparison.index("fixed")].values["stepsize"]


def fixed_lines(comparison: Comparison, steps: Sequence[float]) -> list[Line]:
    """Return learning curves of some fixed steps; the tuned one is dashed and alone has a band."""
    lines = []
    for index, (name, step) in enumerate((step_name(step), step) for step in steps):
        is_tuned, place = step == tuned_step(comparison), index / max(len(steps) - 1, 1)
        line = line_of(comparison, name, shade=family_shade("warm", place), is_dashed=is_tuned, has_band=is_tuned)
        lines.append(line._replace(label=f"{name}, tuned") if is_tuned else line)
    return lines


def steps_panel(title: str, comparison: Comparison, more: Sequence[Line] = ()) -> Panel:
    """Draw the step sizes that metaFQI chose beside the tuned fixed one, a level, and other lines."""
    ours, fixed = (comparison.hyperparameters[comparison.index(name), :, :, 0] for name in ("metafqi", "fixed"))
    level = line_of(comparison, "fixed", fixed, label="tuned", is_dashed=True, has_band=False)
    lines = [line_of(comparison, "metafqi", ours, is_main=True), level, *more]
    return curves(f"{title}: step size", lines, ylabel="step size", first=1)


def handful(values: Sequence[float], must: Sequence[float], num: int = 5) -> list[float]:
    """Return at most `num` of the values, evenly over their order, including those that must be there."""
    ordered = sorted({*values, *must})
    chosen = {*must}
    # From the sparsest choice to the fullest: keep the last that still fits.
    for count in range(2, num + 1):
        spread = {ordered[round(place)] for place in np.linspace(0, len(ordered) - 1, count)}
        chosen = {*must, *spread} if len({*must, *spread}) <= num else chosen
    return sorted(chosen)
