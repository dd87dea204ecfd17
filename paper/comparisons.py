"""metaFQI against fixed steps, tuned baselines and decaying rates (figures 2 and 3, and the appendix on schedules)."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from metastep import Comparison, InputError
from metastep.evaluation import join, require_alike
from metastep.evaluation.intervals import mean_interval
from metastep.experiments.config import updates_collected
from metastep.experiments.stages import iteration_methods
from metastep.report.figures import CONTRAST, TEXT, Line, curves, line_of
from metastep.report.tables import interval
from paper import columns
from paper.claims import beats_every
from paper.columns import Column, Figure, step_name, tuned_step
from paper.workbench import PresetRun

BASELINES = ("fixed", "rmsprop", "adam", "hoof", "metagrad")
_LONG = 5  # how many times more updates the known-task oracle makes
_AT_LEAST = 2  # times those that are shown
_END = 0.1  # the share of its updates, the last ones, that its gain is averaged over


def fixed_grid(run: PresetRun) -> Sequence[float]:
    """Return the fixed steps among which one was tuned."""
    return run.methods["fixed"].grid["stepsize"]


def with_fixed_grid(run: PresetRun) -> Comparison:
    """Test metaFQI, the tuned fixed step, and every fixed step of the grid."""
    methods = [run.with_values("fixed", {"stepsize": step}, step_name(step)) for step in fixed_grid(run)]
    steps = run.kept("fixed-grid", lambda: run.test(methods))
    return join([run.tested("metafqi", "fixed"), steps])


def by_iteration(run: PresetRun) -> Comparison:
    """Test every iteration of a run's model; the method N=i is iteration i."""
    methods = iteration_methods(run, run.learn())
    if len(methods) < 2:
        raise InputError(f"fqi.iterations: {len(methods)} must be at least 2 to compare iterations.")
    return run.kept("iterations", lambda: run.test(methods), ["model"])


def for_longer(run: PresetRun, num_updates: int, choose: Callable[[float], Sequence[float]]) -> Comparison:
    """Test metaFQI, the fixed step tuned for a number of updates, and the steps that `choose` takes, given the tuned one."""

    def make() -> Comparison:
        run.learn()
        best, table = run.tune(run.methods["fixed"], num_updates=num_updates)
        steps = choose(table.chosen["stepsize"])
        others = [run.with_values("fixed", {"stepsize": step}, step_name(step)) for step in steps]
        methods = [run.prepared(run.methods["metafqi"]), best, *others]
        return run.test(methods, num_updates=num_updates, tuning=[table])

    return run.kept("longer", make, ["model"])


def _against_fixed_steps(run: PresetRun) -> Column:
    grid, config, is_gain = fixed_grid(run), run.config, run.environment.is_shown_as_gain
    # HalfCheetah for as many updates as it was trained on: the paper compares it on fewer.
    num_updates = updates_collected(config) if is_gain else config.compare.num_updates
    is_longer = num_updates != config.compare.num_updates
    comparison = for_longer(run, num_updates, lambda best: grid) if is_longer else with_fixed_grid(run)
    claim = f"metaFQI, which chooses a step size at every update, learns faster than each of {len(grid)} fixed ones"
    claim += f", over {num_updates} updates" if is_longer else ""
    judged = beats_every(run, comparison, "metafqi", [step_name(step) for step in grid], claim)
    hardest = min(judged.rows, key=lambda row: row.mean).baseline
    steps = columns.handful(grid, [tuned_step(comparison), *(step for step in grid if step_name(step) == hardest)])
    drawn, quantity, note = columns.shown(run, comparison)
    iteration = run.learn().record.selected_iteration
    lines = [columns.main_line(drawn, f"metaFQI, N = {iteration}"), *columns.fixed_lines(drawn, steps)]
    if is_gain:
        oracle, described = known_task(run, comparison)
        lines.append(oracle)
        judged = judged.adding(described)
        note += " The oracle is what a policy gains that is trained for long on each test task, with the tuned step."
    more = []
    if run.environment.shows_greedy:  # beside a model that plans, the paper shows the one that does not
        greedy = by_iteration(run)
        lines.append(line_of(greedy, "N=1", label="N = 1", shade=CONTRAST))
        chosen = greedy.hyperparameters[greedy.index("N=1"), :, :, 0]
        more = [line_of(greedy, "N=1", chosen, label="N = 1", shade=CONTRAST)]
    panels = [curves(run.title, lines, ylabel=quantity), columns.steps_panel(run.title, comparison, more=more)]
    return Column([judged], panels, comparison, note)


def known_task(run: PresetRun, beside: Comparison) -> tuple[Line, str]:
    """Return the oracle in MAML's sense, as a level and in words: a policy trained on every test task with the tuned step.

    It is trained for several times as long as the methods beside it.
    """
    num_points = beside.returns.shape[2]
    num_updates = max(_LONG * run.config.compare.num_updates, _AT_LEAST * (num_points - 1))
    method = run.with_values("fixed", {"stepsize": tuned_step(beside)}, "known task")
    trained = run.kept("known-task", lambda: run.test([method], num_updates=num_updates))
    require_alike(beside, trained, but=("num_updates",))
    gain = final_gain(trained.returns[0].astype(np.float64))
    reached = interval(float(gain.mean()), *np.concatenate(mean_interval(gain[None])).tolist())
    level = np.repeat(gain[:, None], num_points, axis=1)
    line = Line(f"oracle, {num_updates} updates", level, TEXT, is_dashed=True, has_band=False)
    return line, f"{num_updates} updates on the known task gain {reached}"


def final_gain(returns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what (tasks, updates + 1) returns gain over the first one, averaged over the last updates."""
    last = max(round(_END * (returns.shape[1] - 1)), 1)
    return returns[:, -last:].mean(axis=1) - returns[:, 0]


def _against_tuned(baselines: Sequence[str], claim: str, run: PresetRun) -> Column:
    comparison = run.tested("metafqi", *baselines)
    judged = beats_every(run, comparison, "metafqi", baselines, claim)
    drawn, quantity, note = columns.shown(run, comparison)
    lines = [columns.main_line(drawn), *(line_of(drawn, name) for name in baselines)]
    return columns.above_differences(run, comparison, judged, lines, quantity, note)


fig2 = Figure(
    "fig2",
    "metaFQI and fixed steps of the natural gradient on the same test tasks: return (above) and chosen step sizes (below), "
    "means with 95 % intervals over tasks for metaFQI and the tuned step.",
    _against_fixed_steps,
)
_FIG3 = "metaFQI learns faster than each tuned baseline: fixed step, RMSprop, Adam, HOOF and metagrad"
fig3 = Figure(
    "fig3",
    "metaFQI and tuned baselines on the same test tasks: return (above) and paired differences in AUC, the mean return over "
    "the updates (below), with 95 % intervals over tasks.",
    partial(_against_tuned, BASELINES, _FIG3),
)
_DECAY = "metaFQI learns faster than tuned decaying step sizes, alpha/t and geometric"
fig_decay = Figure(
    "fig-decay",
    "metaFQI and decaying step sizes, alpha/t and geometric: return (above) and paired differences in AUC (below), with 95 % "
    "intervals over tasks.",
    partial(_against_tuned, ("decay", "geometric-decay"), _DECAY),
)
