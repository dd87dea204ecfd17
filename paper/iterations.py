"""How far to plan: performance by FQI iteration, and SwingUp, where it hardly matters."""

from collections.abc import Sequence

import numpy as np

from metastep import Model
from metastep.evaluation import metric_values
from metastep.report.figures import Panel, curves, line_of, points
from paper import columns
from paper.claims import AUC, beats_every, paired, small
from paper.columns import Column, Figure, Shown, family_shade
from paper.comparisons import by_iteration, fixed_grid, with_fixed_grid
from paper.outcome import within
from paper.workbench import PresetRun

_PAPERS_STEP = 0.1  # what the paper's models resemble on SwingUp


def best_validated(model: Model, among: Sequence[int]) -> int:
    """Return the iteration with the best score on the validation tasks; test tasks have no influence."""
    scores = {curve.iteration: curve.score for curve in model.record.validation}
    return max(among, key=lambda iteration: scores.get(iteration, -np.inf))


def _curve_panel(title: str, drawn: Shown, selected: int) -> Panel:
    some, lines = columns.handful(range(1, len(drawn.comparison.methods) + 1), [selected]), []
    for index, iteration in enumerate(some):
        shade, label = family_shade("cool", index / max(len(some) - 1, 1)), f"N = {iteration}"
        line = line_of(drawn.comparison, f"N={iteration}", label=label, shade=shade, has_band=False)
        lines.append(line._replace(label=f"{label}, selected", is_main=True) if iteration == selected else line)
    return curves(title, lines, ylabel=drawn.quantity)


def _score_panel(title: str, drawn: Shown, selected: int) -> Panel:
    auc, numbers = metric_values(drawn.comparison, "auc"), list(range(1, len(drawn.comparison.methods) + 1))
    ylabel, ring = f"{drawn.quantity} over updates", (selected - 1, "selected")
    return points(f"{title}: by iteration", auc, numbers, xlabel="FQI iteration N", ylabel=ylabel, ring=ring)


def _iterations(run: PresetRun) -> Column:
    comparison, model = by_iteration(run), run.learn()
    last, selected = len(model.q_functions), model.record.selected_iteration
    several, earlier = best_validated(model, range(2, last + 1)), best_validated(model, range(1, last))
    ahead = f"Planning several updates ahead beats planning one: N = {several} (validated best of 2 to {last}) against N = 1"
    degrading = (
        f"Too many iterations degrade: N = {earlier} (validated best of 1 to {last - 1}) beats the last, N = {last}"
    )
    judged = [
        beats_every(run, comparison, f"N={several}", ["N=1"], ahead),
        beats_every(run, comparison, f"N={earlier}", [f"N={last}"], degrading),
    ]
    drawn = columns.shown(run, comparison)
    panels = [_curve_panel(run.title, drawn, selected), _score_panel(run.title, drawn, selected)]
    return Column(judged, panels, comparison, drawn.note)


def _like_a_fixed_step(run: PresetRun) -> Column:
    comparison, iterations = with_fixed_grid(run), by_iteration(run)
    step, selected = columns.tuned_step(comparison), run.learn().record.selected_iteration
    slightly = f"metaFQI learns slightly better than with a fixed step of {_PAPERS_STEP:g}, the paper's"
    like = f"metaFQI does as well as the tuned fixed step (h = {step:g}), neither better nor worse"
    like_fixed = [
        beats_every(run, comparison, "metafqi", [columns.step_name(_PAPERS_STEP)], slightly),
        small(run, comparison, paired(run, comparison, "metafqi", ["fixed"]), like, within, of="baseline"),
    ]
    others = paired(run, iterations, "N=1", [name for name in iterations.names if name != "N=1"])
    quantity = f"N = 1 minus the iteration farthest from it, {{baseline}}: {AUC}"
    alike = small(run, iterations, others, "All FQI iterations do about equally well", within, quantity=quantity)
    lines = [
        columns.main_line(comparison, f"metaFQI, N = {selected}"),
        *columns.fixed_lines(comparison, columns.handful(fixed_grid(run), sorted({step, _PAPERS_STEP}))),
    ]
    panels = [
        curves(run.title, lines),
        columns.steps_panel(run.title, comparison),
        _score_panel(run.title, columns.shown(run, iterations), selected),
    ]
    return Column([*like_fixed, alike], panels, comparison, others={"iterations": iterations})


fig_iterations = Figure(
    "fig-iterations",
    "Iterations of FQI on the test tasks: mean return (above) and mean return over the updates with 95 % intervals over tasks "
    "(below). The selected iteration was chosen on validation tasks.",
    _iterations,
)
fig_swingup = Figure(
    "fig-swingup",
    "SwingUp: return of metaFQI and of fixed steps, the step sizes metaFQI chose, and its mean return over the updates by FQI "
    "iteration, on the same test tasks, with 95 % intervals over tasks.",
    _like_a_fixed_step,
    is_turned=True,
)
