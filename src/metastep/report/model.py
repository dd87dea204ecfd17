"""What a report says of a fitted model: its iterations, what it looks at, its values, what it recommends, how to use it."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from metastep.evaluation import metric_values
from metastep.fqi import Model
from metastep.fqi.regressors import Head
from metastep.ranges import Range
from metastep.report.choices import shade_of
from metastep.report.document import Command, Heading, Paragraph, Part, Picture
from metastep.report.figures import Layout, Panel, Values, alone, in_rows, picture, points
from metastep.report.findings import Findings, Fitted
from metastep.report.style import MAIN, Ink, plain, tint

_GRID = 41  # step sizes are mapped over this many values of each context coordinate
_MOST_BARS = 12
_STATES = 3  # learners whose values are drawn, at the start and on their way


def branches_of(model: Model) -> dict[str, Range]:
    """The range of the steps along each direction that a model chooses from; one without a name where there is no choice."""
    return {branch.name: Range(branch.low, branch.high, branch.scale) for branch in model.record.branches}


def chosen_by(model: Model, observation: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The position of the direction and the step that a model takes, (rows,) each."""
    chosen = np.asarray(model.act(observation), np.float64).reshape(len(observation), -1)
    position = chosen[:, 0] if chosen.shape[1] > 1 else np.zeros(len(chosen))
    return position.astype(np.int64), chosen[:, -1]


def usage(fitted: Fitted) -> list[Part]:
    """How to use the model, in five lines that run."""
    record = fitted.model.record
    names = [part.name.rpartition(":")[2] for part in record.observation]
    given = ", ".join(f"{name}={name}" for name in names)
    answer, asked = ("direction, stepsize", "propose") if record.directions else ("stepsize", "stepsize")
    last = f"print({answer})"
    if record.setting.get("rule", {}).get("name") == "nga" and {"theta", "natural_gradient"} <= set(names):
        last = "theta = theta + stepsize * natural_gradient / np.linalg.norm(natural_gradient)"
    lines = [
        *(["import numpy as np"] if "np." in last else []),
        "import metastep",
        f'model = metastep.load_model("{fitted.file}")',
        f"{answer} = model.{asked}({given})",
        last,
    ]
    sizes = ", ".join(f"{name} ({part.size})" for name, part in zip(names, record.observation, strict=True))
    what = "which direction to follow, and how far" if record.directions else "how far to go"
    text = (
        f"In the folder of this run, with the numbers of your learner (how many of each): {sizes}. Before every update the model "
        f"says {what}; arrays may be those of NumPy, JAX or PyTorch."
    )
    return [Heading("How to use the model"), Paragraph(text), Command("\n".join(lines))]


def about_the_model(findings: Findings, fitted: Fitted) -> list[Part]:
    """Every figure of the model."""
    parts: list[Part] = [Heading("Validation by iteration"), _iterations(fitted)]
    if (shares := importance_shares(fitted.model)) is not None:
        names = (*fitted.model.record.feature_names, "step size")
        caption = "Share of the variance reduction by input, over the forests of the selected iteration."
        size = (6.4, 0.8 + 0.25 * min(len(names), _MOST_BARS + 1))
        parts += [Heading("What the model looks at"), alone("importances", caption, _bars("", names, shares), size)]
    parts += [Heading("What the model expects of a step"), _values(fitted)]
    seen = {part.name for part in fitted.model.record.observation}
    # A run in one task has nothing to map.
    if "context" in seen and findings.config["env"]["fixed_context"] is None:
        parts += _map(findings, fitted)
    return parts


def _iterations(fitted: Fitted) -> Picture:
    scores = metric_values(fitted.validation, "auc")
    selected = fitted.model.record.selected_iteration
    panel = points(
        "",
        scores,
        list(range(1, len(scores) + 1)),
        xlabel="FQI iteration N",
        ylabel="mean return over updates",
        ring=(selected - 1, "selected"),
    )
    caption = (
        "AUC on the validation tasks by FQI iteration, with 95 % intervals over tasks: N updates are planned ahead."
    )
    return alone("iterations", caption, panel, (5.6, 2.9))


def importance_shares(model: Model) -> NDArray[np.float64] | None:
    """Importance of every input, mean over the heads; None where the regressor does not tell."""
    return mean_importances(model.q_functions[model.record.selected_iteration - 1].heads)


def mean_importances(heads: Sequence[Head]) -> NDArray[np.float64] | None:
    """The same of these heads."""
    shares = [head.importances for head in heads if head.importances is not None]
    return np.asarray(np.mean(shares, axis=0)) if len(shares) == len(heads) else None


def _bars(title: str, names: Sequence[str], shares: Values) -> Panel:
    """Which inputs the forests split on, largest first; at most twelve bars, the rest summed up."""
    order = np.argsort(shares)[::-1]
    shown = [(names[i], float(shares[i])) for i in order[:_MOST_BARS]]
    if len(order) > _MOST_BARS:
        shown.append((f"{len(order) - _MOST_BARS} others", float(shares[order[_MOST_BARS:]].sum())))

    def draw(axes: Axes, ink: Ink) -> None:
        heights = list(range(len(shown) - 1, -1, -1))
        axes.barh(heights, [value for _, value in shown], color=tint(MAIN, 0, ink), height=0.68)
        axes.set_yticks(heights, [plain(name) for name, _ in shown])
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("share of variance reduction")

    return Panel(title, draw)


def _values(fitted: Fitted) -> Picture:
    """Q(x, h) of some states, a line for each direction, with the step that is chosen."""
    model, branches = fitted.model, branches_of(fitted.model)
    states = np.concatenate([fitted.starts[:_STATES], fitted.later[:_STATES]])
    values = np.asarray(model.values(states)).reshape(len(states), len(branches), -1)
    positions, chosen = chosen_by(model, states)
    titles = [f"first update, learner {i + 1}" for i in range(len(fitted.starts[:_STATES]))]
    titles += [f"later, learner {i + 1}" for i in range(len(fitted.later[:_STATES]))]
    panels = [
        _values_of_state(title, branches, rows, int(position), float(step))
        for title, rows, position, step in zip(titles, values, positions, chosen, strict=True)
    ]
    which = " and direction" if "" not in branches else ""
    caption = (
        f"Q(x, h) of the selected iteration for {len(states)} states of the training data, and the step{which} that it chooses "
        "(ring). Every panel has its own scale: only differences within it matter for the choice."
    )
    return picture("values", caption, in_rows(panels, 3), Layout((3.4, 2.5), (0.34, 0.42), share_x="all"))


def _values_of_state(title: str, branches: dict[str, Range], values: Values, position: int, step: float) -> Panel:
    scales = {bounds.scale for bounds in branches.values()}
    # Steps of different meanings have in common where they lie in their ranges.
    by_share = len(scales) > 1

    def draw(axes: Axes, ink: Ink) -> None:
        axes.set_title(plain(title), fontsize=9.0, fontweight="normal")
        for index, (bounds, row) in enumerate(zip(branches.values(), values, strict=True)):
            shade = shade_of(index) if len(branches) > 1 else tint(MAIN, 0, ink)
            grid = np.linspace(0.0, 1.0, len(row)) if by_share else bounds.grid(len(row))
            width = 2.0 if index == position else 1.1
            axes.plot(grid, row, color=shade, linewidth=width, zorder=3 if index == position else 2)
            if index == position:
                nearest = int(np.argmin(np.abs(bounds.grid(len(row)) - step)))
                axes.plot(
                    grid[nearest], row[nearest], "o", color=ink.text, markerfacecolor="none", markersize=9, zorder=4
                )
        if not by_share and scales != {"linear"}:
            axes.set_xscale("log")
        names = {"divergence": "KL divergence of the step"}
        axes.set_xlabel("place in the range of steps" if by_share else names.get(next(iter(scales)), "step size"))
        axes.set_ylabel("Q")

    return Panel(title, draw)


def proposals(model: Model, starts: NDArray[np.float32], grid: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """What the model chooses at each start with the context of each point of the grid: (points, starts, coordinates).

    Coordinates of the context beyond the grid's keep the values they have in `starts`.
    """
    first = 0
    for part in model.record.observation:
        if part.name == "context":
            break
        first += part.size
    mesh = np.stack(np.meshgrid(*grid, indexing="ij"), axis=-1).reshape(-1, len(grid))
    rows = np.repeat(starts[None], len(mesh), axis=0)
    rows[:, :, first : first + len(grid)] = mesh[:, None, :]
    return model.act(rows.reshape(-1, starts.shape[1])).reshape(len(mesh), len(starts), -1)


def recommend(model: Model, starts: NDArray[np.float32], grid: Sequence[NDArray[np.float32]]) -> NDArray[np.float64]:
    """Mean greedy step over the given starts, with the context set to each point of the grid in turn: (*grid).

    The mean is the geometric one where steps are not linear.
    """
    steps = proposals(model, starts, grid)[..., -1].astype(np.float64)
    is_linear = all(bounds.is_linear for bounds in branches_of(model).values())
    means = steps.mean(axis=1) if is_linear else 10.0 ** np.log10(steps).mean(axis=1)
    return np.asarray(means.reshape([len(axis) for axis in grid]))


def _map(findings: Findings, fitted: Fitted) -> list[Part]:
    """The recommended first step over one or two coordinates of the context.

    Steps along different directions have a mean only where they are divergences; else there is nothing to show.
    """
    model, space = fitted.model, findings.context_space
    scales = {bounds.scale for bounds in branches_of(model).values()}
    if model.record.directions and scales != {"divergence"}:
        return []
    shown = min(2, space.num_coordinates)
    grid = [np.linspace(space.low[i], space.high[i], _GRID, dtype=np.float32) for i in range(shown)]
    name = "KL divergence" if scales == {"divergence"} else "step size"
    labels = findings.labels_of_context()[:shown]
    panel = _step_map(grid, labels, recommend(model, fitted.starts, grid), name, is_log=scales != {"linear"})
    caption = f"Step of the first update by task: mean over {len(fitted.starts)} first policies of the training data."
    drawn = alone("step-size-map", caption, panel, (5.2, 3.9) if shown == 2 else (5.6, 2.9))
    return [Heading("Recommended first step by task"), drawn]


def _step_map(coordinates: Sequence[Values], labels: Sequence[str], steps: Values, name: str, *, is_log: bool) -> Panel:
    """Recommended step over one context coordinate (a line) or two (a heat map)."""

    def draw(axes: Axes, ink: Ink) -> None:
        axes.set_xlabel(plain(labels[0]))
        if len(coordinates) == 1:
            axes.plot(coordinates[0], steps, color=tint(MAIN, 0, ink), drawstyle="steps-mid")
            axes.set_ylabel(name)
            if is_log:
                axes.set_yscale("log")
            return
        axes.grid(visible=False)
        image = axes.pcolormesh(
            *coordinates, steps.T, cmap="cividis", shading="auto", rasterized=True, norm="log" if is_log else None
        )
        axes.set_ylabel(plain(labels[1]))
        assert axes.figure is not None
        axes.figure.colorbar(image, ax=axes, label=name).outline.set_visible(False)

    return Panel("", draw)
