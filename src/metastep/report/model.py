"""What a report says of a fitted model: its iterations, what it looks at, its values, what it recommends, how to use it."""

import keyword
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from metastep.envs import REGISTRY
from metastep.evaluation import metric_values
from metastep.features.diagnostics import asked_for
from metastep.fqi import Model
from metastep.fqi.regressors import Head
from metastep.report import figures as fig
from metastep.report.document import Command, Heading, Paragraph, Part, Picture
from metastep.report.figures import MAIN, Layout, Panel, plain
from metastep.report.results import axis_of
from metastep.report.tables import Findings, Fitted
from metastep.rules.spaces import Range
from metastep.search import SearchedModel
from metastep.search.network import LARGEST

_MOST_BARS = 12
_STATES = 3  # learners whose values are drawn, at the start and on their way


def usage(findings: Findings) -> list[Part]:
    """Show how to use the model of the report: lines and a command that run where the run was started."""
    fitted = findings.model or next(iter(findings.searched.values()), None)
    if fitted is None:
        return []
    record, file, env = fitted.model.record, Path(findings.folder, fitted.file), findings.config["env"]["name"]
    names, loaded = [*record.keywords], f'metastep.load_model("{file.as_posix()}")'
    # Many numbers, which do not fit into a line, or one whose name is a word of the language, come in a dictionary.
    is_short = len(names) <= 4 and not any(map(keyword.iskeyword, names))
    given = ", ".join(f"{name}={name}" for name in names) if is_short else "**observation"
    answer, asked = ("proposal", "propose") if record.directions else ("stepsize", "stepsize")
    code, imports = f"model = {loaded}\n{answer} = model.{asked}({given})\nprint({answer})", [*findings.modules]
    if is_short and record.rule_name == "nga" and {"theta", "natural_gradient"} <= set(names):
        last = "theta = theta + stepsize * natural_gradient / np.linalg.norm(natural_gradient)"
        code, imports = code.replace("print(stepsize)", last), ["numpy as np", *imports]
    what = f"the numbers of your learner ({', '.join(f'{name} ({size})' for name, size in record.keywords.items())})"
    if is_rate := record.rule_name in ("ppo", "a2c"):
        code = f"stepper = {loaded}.stepper(num_updates)\nvalues = stepper(diagnostics).values"
        what = f"the diagnostics of your loop ({', '.join(asked_for(names)) or 'none'})"
    text = f"Call the model before every update, in the folder that the run was started in, with {what}."
    if any(branch.scale == "divergence" for branch in getattr(record, "branches", ())):
        text += " The step is the KL divergence that it may cost: its length along v is sqrt(2 KL / v'Fv)."
    code = "".join(f"import {name}\n" for name in (*imports, "metastep")) + code
    parts: list[Part] = [Heading("How to use the model"), Paragraph(text), Command(code)]
    if is_rate:
        lines = "from metastep.integrations.stable_baselines3 import LearnedRate\n"
        lines += f'agent.learn(total_timesteps, callback=LearnedRate("{file.as_posix()}"))'
        parts += [Paragraph("In Stable-Baselines3, use a callback:"), Command(lines)]
    # A family that a script registers is unknown to the command line.
    if ":" in env or REGISTRY.entry(env).factory.__module__.startswith("metastep."):
        space = findings.context_space
        task = f"{space.names[0]}={(space.low[0] + space.high[0]) / 2.0:g}"
        words = ["metastep", "learn", file.parent.as_posix(), "--task", task]
        words += ["--allow-imports"] * bool(findings.modules)
        parts += [Paragraph("Or train a policy on a task of this family with one command:"), Command(shlex.join(words))]
    return parts


def about_the_model(findings: Findings, name: str) -> list[Part]:
    """Show the model of a method, and the FQI iterations of all models."""
    fitted, shade = findings.fitted[name], fig.colour_of(findings.comparison, name)
    record = fitted.model.record
    panels = []
    for label, one in findings.fitted.items():
        title = findings.comparison.label(label) if len(findings.fitted) > 1 else ""
        scores, ring = metric_values(one.validation, "auc"), (one.model.record.selected_iteration - 1, "selected")
        look: Any = {"xlabel": "FQI iteration N", "ylabel": "mean return over updates", "ring": ring}
        look["shade"] = fig.colour_of(findings.comparison, label)
        panels.append(fig.points(title, scores, range(1, len(scores) + 1), **look))
    caption = "AUC on the validation tasks by FQI iteration, with 95 % intervals: N updates are planned ahead."
    iterations = fig.picture("iterations", caption, fig.in_rows(panels, 2), Layout((5.0, 2.8), (0.24, 0.4)))
    parts: list[Part] = [Heading("Validation by iteration"), iterations]
    shares = mean_importances(fitted.model.q_functions[record.selected_iteration - 1].heads)
    if shares is not None:
        named = zip((*record.feature_names, "step size"), shares.tolist(), strict=True)
        ordered = sorted(named, key=lambda bar: -bar[1])
        shown = dict(ordered[:_MOST_BARS])
        if rest := [value for _, value in ordered[_MOST_BARS:]]:
            shown[f"{len(rest)} others"] = sum(rest)

        def draw(axes: Axes) -> None:
            axes.barh(range(len(shown)), [*shown.values()][::-1], color=shade, height=0.68)
            fig.name_rows(axes, list(shown))
            axes.set_xlabel("share of variance reduction")

        caption = "Share of the variance reduction by input, mean over the forests of the selected iteration."
        drawing = fig.alone("importances", caption, Panel("", draw), (6.4, 0.8 + 0.25 * len(shown)))
        parts += [Heading("What the model looks at"), drawing]
    parts += [Heading("What the model expects of a step"), _values(fitted, shade)]
    # A run in one task has nothing to map, and steps along different directions have a mean only where they are divergences.
    space, scales = findings.context_space, {branch.scale for branch in record.branches}
    is_map = findings.is_family and "context" in [part.name for part in record.observation]
    if not is_map or (record.directions and scales != {"divergence"}):
        return parts
    # The mean greedy step of the first policies, over one or two coordinates of the context.
    coordinates = range(min(2, space.num_coordinates))
    grid = [np.linspace(space.low[i], space.high[i], 41, dtype=np.float32) for i in coordinates]
    what, is_log = "KL divergence" if scales == {"divergence"} else "step size", scales != {"linear"}
    labels = [plain(each) for each in findings.labels_of_context()]
    steps = proposals(fitted.model, fitted.starts, grid)[..., -1].astype(np.float64)
    steps = 10.0 ** np.log10(steps).mean(axis=1) if is_log else steps.mean(axis=1)
    steps = steps.reshape([len(axis) for axis in grid])

    def line(axes: Axes) -> None:
        axes.plot(grid[0], steps, color=shade, drawstyle="steps-mid")
        axes.set(xlabel=labels[0], ylabel=what)
        if is_log:
            fig.logarithmic(axes, "y")

    def heat_map(axes: Axes) -> None:
        axes.grid(visible=False)
        norm = "log" if is_log else None
        image = axes.pcolormesh(*grid, steps.T, cmap="cividis", shading="auto", rasterized=True, norm=norm)
        axes.set(xlabel=labels[0], ylabel=labels[1])
        assert axes.figure is not None
        bar = axes.figure.colorbar(image, ax=axes, label=what)
        bar.outline.set_visible(False)
        if is_log:
            bar.minorticks_off()
            bar.set_ticks(np.geomspace(steps.min(), steps.max(), 5).tolist())
            bar.formatter = FuncFormatter(lambda value, _: f"{value:.2g}")
            bar.update_ticks()

    caption = f"Step of the first update by task: mean over {len(fitted.starts)} first policies of the training data."
    drawn, size = (heat_map, (5.2, 3.9)) if len(grid) == 2 else (line, (5.6, 2.9))
    mapped = fig.alone("step-size-map", caption, Panel("", drawn), size)
    return [*parts, Heading("Recommended first step by task"), mapped]


def controller_picture(model: SearchedModel) -> Picture:
    """Draw every hyperparameter over the updates and against each feature."""
    record = model.record
    reach = {"share of updates": ("budget", 0.0, 1.0)}
    mean, spread = np.asarray(record.mean), LARGEST * np.asarray(record.spread)
    low, high = np.maximum(record.feature_low, mean - spread), np.minimum(record.feature_high, mean + spread)
    for name, first, last in zip(record.feature_names, low.tolist(), high.tolist(), strict=True):
        reach |= {} if name == "budget" else {name: (name, first, last)}

    def draw(index: int, column: str, axes: Axes) -> None:
        name, first, last = reach[column]
        places = np.linspace(first, last, 101, dtype=np.float32)
        axes.plot(places, model.responses(name, places)[:, index], color=MAIN)
        axes.set(xlabel=plain(column), ylim=(record.low[index], record.high[index]))
        if record.scales[index] != "linear":
            fig.logarithmic(axes, "y")

    caption = (
        "Every hyperparameter over the updates and against each feature, with all others at their mean. A feature goes from its "
        "smallest to its largest value on validation tasks, as far as the controller tells them apart."
    )
    rows = [
        [Panel("" if place else name, partial(draw, index, column)) for index, name in enumerate(record.names)]
        for place, column in enumerate(reach)
    ]
    return fig.picture("controller", caption, rows, Layout((2.3, 1.8), (0.5, 0.85)))


def mean_importances(heads: Sequence[Head]) -> NDArray[np.float64] | None:
    """Return the importance of every input, mean over the heads; None where the regressor has none."""
    shares = [head.importances for head in heads if head.importances is not None]
    return np.asarray(np.mean(shares, axis=0)) if len(shares) == len(heads) else None


def _values(fitted: Fitted, shade: str) -> Picture:
    """Draw Q(x, h) of some states, a line for each direction, with the step that is chosen."""
    model, branches = fitted.model, fitted.model.record.branches
    groups = {"first update": fitted.starts[:_STATES], f"after {fitted.updates} updates": fitted.later[:_STATES]}
    titles = [f"learner {i + 1}, {when}" for when, rows in groups.items() for i in range(len(rows))]
    states = np.concatenate([*groups.values()])
    values = np.asarray(model.values(states)).reshape(len(states), len(branches), -1)
    chosen = np.asarray(model.act(states), np.float64).reshape(len(states), -1)  # (states, direction and step)
    scales = {branch.scale for branch in branches}
    by_share = len(scales) > 1  # steps of different meanings have in common where they lie in their ranges
    named = min(2, len(titles) - 1) if len(branches) > 1 else None  # once is enough, where there is room

    def draw(state: int, axes: Axes) -> None:
        axes.set_title(plain(titles[state]), fontsize=9.0, fontweight="normal")
        ends = []
        for index, (branch, row) in enumerate(zip(branches, values[state], strict=True)):
            colour = fig.shade_of(index) if len(branches) > 1 else shade
            steps = Range(branch.low, branch.high, branch.scale).grid(len(row))
            grid = np.linspace(0.0, 1.0, len(row)) if by_share else steps
            is_chosen = len(branches) == 1 or index == chosen[state, 0]
            axes.plot(grid, row, color=colour, linewidth=2.0 if is_chosen else 1.1, zorder=3 if is_chosen else 2)
            ends.append((branch.name, float(row[-1]), colour))
            if is_chosen:
                at = int(np.argmin(np.abs(steps - chosen[state, -1])))
                axes.plot(grid[at], row[at], "o", color=fig.TEXT, markerfacecolor="none", markersize=9, zorder=4)
        if not by_share and scales != {"linear"}:
            fig.logarithmic(axes, "x")
        axes.set(xlabel="place in the range of steps" if by_share else axis_of(branches[0].scale), ylabel="Q")
        if state == named:
            fig.label_lines(axes, ends)

    which = " and direction" if model.record.directions else ""
    caption = f"Q(x, h) for {len(states)} states of the training data, and the step{which} that it chooses (ring). "
    caption += "Every panel has its own scale: only differences within it matter for the choice."
    panels = [Panel(title, partial(draw, state)) for state, title in enumerate(titles)]
    return fig.picture("values", caption, fig.in_rows(panels, 3), Layout((3.4, 2.4), (0.3, 0.38), share_x="all"))


def proposals(model: Model, starts: NDArray[np.float32], grid: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Return what the model chooses at each start with the context of each grid point: (points, starts, coordinates)."""
    observed = model.record.observation
    first = sum(part.size for part in observed[: [part.name for part in observed].index("context")])
    mesh = np.stack(np.meshgrid(*grid, indexing="ij"), axis=-1).reshape(-1, len(grid))
    rows = np.repeat(starts[None], len(mesh), axis=0)
    rows[:, :, first : first + len(grid)] = mesh[:, None, :]
    return model.act(rows.reshape(-1, starts.shape[1])).reshape(len(mesh), len(starts), -1)
