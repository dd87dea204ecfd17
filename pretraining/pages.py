"""The page on evidence: scores of runs, interquartile means with stratified bootstrap intervals, profiles and curves."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray
from scipy import stats

from metastep.evaluation.intervals import improvement_probability
from metastep.report import document
from metastep.report import figures as fig
from metastep.report.document import Document, Heading, Paragraph, Part, Picture, Table, to_markdown
from metastep.report.tables import interval, listed, number, share

Array = NDArray[np.float64]
RESAMPLES, COLUMNS = 10_000, 3
SHARE = 0.9  # of the default's gain that a model should have everywhere
SHADES = {"model": fig.MAIN, "default": fig.TEXT, "linear": fig.PALETTE[1], "adaptive": fig.PALETTE[2]}
SHADES |= {"universal": fig.PALETTE[3], "zoo": fig.CONTRAST}
HOW = (
    "The area is the mean return over a run, the last return that of its last tenth. Scores are 0 for the policy before the "
    "first update and 1 for the mean of the method that gained most on the environment. Interquartile means leave out the "
    "lowest and the highest quarter of all runs; 95 % intervals resample seeds within each environment. Probabilities compare "
    "the areas of runs of the same environment and seed. Where a guard acted, the model left the loop's own values in place."
)


class Scores(NamedTuple):
    """The runs of all methods on one environment, for seeds that all of them have finished."""

    env: str
    steps: int
    first: float  # the mean return before the first update
    fallback: float  # share of the model's updates with the loop's own values
    curves: Array  # (methods, seeds, 101), over percents of the steps

    def gains(self, first: int = 1) -> Array:
        """Return the mean return from a point of the curve on, minus that of the first policy: (methods, seeds)."""
        return np.asarray(self.curves[..., first:].mean(axis=-1) - self.first)

    def scores(self, first: int = 1) -> Array:
        """Return gains over the largest mean of a method."""
        return self.gains(first) / max(float(np.abs(self.gains(first).mean(axis=1)).max()), 1e-12)


def gathered(records: Sequence[Mapping[str, Any]], loop: str, methods: Sequence[str]) -> list[Scores]:
    """Return the environments of a loop on which all methods have finished a seed."""

    def percents(curve: Sequence[float]) -> Array:
        return np.interp(np.linspace(0.0, 1.0, 101), np.linspace(0.0, 1.0, len(curve)), curve)

    found = []
    for env in dict.fromkeys(record["env"] for record in records if record["loop"] == loop):
        own = {(r["method"], r["seed"]): r for r in records if (r["env"], r["loop"]) == (env, loop)}
        seeds = [seed for seed in sorted({seed for _, seed in own}) if all((name, seed) in own for name in methods)]
        if seeds:
            curves = np.array([[percents(own[name, seed]["curve"]) for seed in seeds] for name in methods])
            first = float(np.mean([record["first"] for record in own.values()]))
            fallen = [record["fallback"] for (name, _), record in own.items() if name == "model"] or [0.0]
            steps = own[methods[0], seeds[0]]["steps"]
            found.append(Scores(env, steps, first, float(np.mean(fallen)), curves))
    return found


def middles(*rows: NDArray[Any], axis: int = -1) -> NDArray[Any]:
    """Return interquartile means over the runs of all environments, each (methods, ..., seeds), and the first minus each."""
    means = stats.trim_mean(np.concatenate(rows, axis=axis), 0.25, axis=axis)
    return np.stack([means, means[:1] - means])


def stratified(rows: Sequence[Array]) -> Array:
    """Return `middles` of every environment's (methods, seeds), with intervals that resample seeds within each."""
    found = middles(*rows)
    low = high = np.full_like(found, np.nan)
    if min(row.shape[1] for row in rows) > 1:  # one seed has no interval
        how: Any = {"n_resamples": RESAMPLES, "method": "percentile", "rng": np.random.default_rng(0), "batch": 500}
        low, high = stats.bootstrap(tuple(rows), middles, vectorized=True, axis=-1, **how).confidence_interval
    return np.stack([found, low, high], axis=-1)


def tables_of(scores: Sequence[Scores], methods: Sequence[str], labels: Mapping[str, str]) -> list[Part]:
    """Return a sentence and two tables on one loop; the first method is compared with the others."""
    columns, label = [[labels[name] for name in methods]], labels[methods[0]]
    for first in (1, -10):  # of the area, and of the last tenth
        found = stratified([each.scores(first) for each in scores]).tolist()
        shown = [[interval(*row) if np.isfinite(row[1]) else number(row[0]) for row in rows] for rows in found]
        columns += [shown[0], ["", *shown[1][1:]]]
    apart = np.concatenate([each.scores()[:1] - each.scores()[1:] for each in scores], axis=1)
    better = 100.0 * np.transpose(improvement_probability(apart)) if apart.shape[1] > 1 else ()
    columns.append(["", *(share(*row) for row in better)] if len(better) else [""] * len(methods))
    header = ["method", *("area", f"{label} minus it", "last return", f"{label} minus it"), f"{label} is better in"]
    parts: list[Part] = [Table(header, [*zip(*columns, strict=True)], numeric=range(1, 6))]
    gains = {each.env: each.gains().mean(axis=1) for each in scores}
    cells = [[each.env, *map(number, (each.first, *(each.first + gains[each.env])))] for each in scores]
    header = ["environment", "first policy", *columns[0]]
    if "default" in methods[1:]:
        usual, other = methods.index("default"), labels["default"]
        ratios = [gain[0] / gain[usual] if gain[usual] > 0.0 else np.nan for gain in gains.values()]
        cells = [[*row, f"{100 * ratio:.0f} %"] for row, ratio in zip(cells, ratios, strict=True)]
        header.append(f"gain of {label} in that of {other}")
        low = [env for env, ratio in zip(gains, ratios, strict=True) if not ratio >= SHARE]
        text = f"{label} gains at least {100 * SHARE:.0f} % of what {other} gains on {len(gains) - len(low)} of {len(gains)} "
        parts.insert(0, Paragraph(f"{text}environments{f'; less on {listed(low)}' if low else ''}."))
    if "model" in methods:
        cells = [[*row, f"{100 * each.fallback:.0f} %"] for row, each in zip(cells, scores, strict=True)]
        header.append("updates left to the loop")
    return [*parts, Paragraph("Mean area, as a return:"), Table(header, cells, numeric=range(1, len(header)))]


def pictures_of(loop: str, scores: Sequence[Scores], methods: Sequence[str], labels: Any) -> list[Picture]:
    """Draw interquartile means and performance profiles, and a curve for each environment."""
    rows = [each.scores() for each in scores]
    means, runs = stratified(rows)[0], np.concatenate(rows, axis=1)
    levels = np.linspace(min(0.0, float(np.quantile(runs, 0.02))), float(np.quantile(runs, 0.98)), 200)
    widths = {name: 2.4 if name == "model" else 1.5 for name in methods}

    def bars(axes: Axes) -> None:
        for height, (name, (mean, *ends)) in enumerate(zip(reversed(methods), means[::-1], strict=True)):
            axes.plot(ends, [height] * 2, color=SHADES[name], linewidth=2.2)
            axes.plot(mean, height, "o", color=SHADES[name])
        fig.name_rows(axes, [labels[name] for name in methods])
        axes.set_xlabel("score")

    def profile(axes: Axes) -> None:
        for name, row in zip(methods, runs, strict=True):
            above, label = (row[:, None] > levels).mean(axis=0), fig.plain(labels[name])
            axes.plot(levels, above, color=SHADES[name], linewidth=widths[name], label=label)
        axes.set(xlabel="score", xlim=(levels[0], levels[-1]), ylim=(0.0, 1.02))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.legend(frameon=False, fontsize=8.0)

    def curve(index: int, axes: Axes) -> None:
        ends = []
        for name, own in zip(methods, scores[index].curves, strict=True):
            shade, mean = SHADES[name], own.mean(axis=0)
            axes.plot(mean, color=shade, linewidth=widths[name])
            ends.append((labels[name], float(mean[-1]), shade))
            if name in ("model", "default"):
                axes.fill_between(range(101), own.min(axis=0), own.max(axis=0), color=shade, alpha=0.14, linewidth=0)
        axes.set(xlabel=f"% of {scores[index].steps:,} steps", ylabel="" if index % COLUMNS else "return")
        axes.margins(x=0.0)
        fig.label_lines(axes, ends if (index + 1) % COLUMNS == 0 or index + 1 == len(scores) else [])

    panels = [fig.Panel("Interquartile means", bars), fig.Panel("Runs above a score", profile)]
    about = "Scores of the area: interquartile means with 95 % intervals, and the share of runs above a score."
    first = fig.picture(f"evidence-{loop}-scores", about, [panels], fig.Layout((4.4, 3.2), (0.4, 0.3)))
    panels = [fig.Panel(each.env, partial(curve, index)) for index, each in enumerate(scores)]
    about = "Mean return over the seeds; bands are their range, of the model and the default."
    layout = fig.Layout((3.5, 2.5), (0.3, 0.5))
    return [first, fig.picture(f"evidence-{loop}-curves", about, fig.in_rows(panels, COLUMNS), layout)]


def write_page(records: Sequence[Mapping[str, Any]], labels: Any, loops: Any, page: Path, figures: Path) -> None:
    """Write the page and its figures from the runs that are finished; `labels` of methods and `loops` are by name."""
    parts: list[Part] = [Paragraph(HOW)]
    for loop, title in loops.items():
        methods = [name for name in labels if any((r["loop"], r["method"]) == (loop, name) for r in records)]
        if scores := gathered(records, loop, methods):
            broken = [labels[r["method"]] for r in records if r["loop"] == loop and r.get("failed")]
            ended = f"Runs that ended with a policy that is not finite: {', '.join(broken) or 'none'}."
            parts += [Heading(title), Paragraph(ended), *tables_of(scores, methods, labels)]
            parts += pictures_of(loop, scores, methods, labels)
    for folder in (page.parent, figures):
        folder.mkdir(parents=True, exist_ok=True)
    for part in parts:
        if isinstance(part, Picture):
            (figures / f"{part.name}.svg").write_bytes(document.draw(part)["svg"])
    about = "Stable-Baselines3's PPO on environments that no model was trained on; by python -m pretraining.evidence,"
    about += f" seeds {sorted({record['seed'] for record in records})}"
    place = Path(os.path.relpath(figures, page.parent)).as_posix()
    page.write_text(to_markdown(Document("Evidence", about, parts), place))
    print(f"page: {page}")
