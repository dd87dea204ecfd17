"""What each part is worth: the context, a step size for every update, a family of tasks, the trained horizon."""

from typing import Any

import numpy as np

from metastep import Comparison, Method, Run
from metastep.controllers import MetaFQIController
from metastep.evaluation import join
from metastep.experiments import stages
from metastep.experiments.config import build_env
from metastep.report.figures import CONTRAST, curves, line_of
from paper import columns
from paper.claims import beats_every, paired, small
from paper.columns import Column, Figure
from paper.comparisons import fixed_grid, for_longer
from paper.environments import ENVIRONMENTS
from paper.outcome import at_most, no_better
from paper.workbench import PresetRun, Workbench

LONGER = 4  # times the updates of the comparison: 60 on CartPole, where metaFQI is trained on 15


def _with_and_without_context(run: PresetRun) -> Column:
    comparison = join([run.tested("metafqi", "fixed"), without_context(run)])
    if run.environment.needs_context:
        claim = "Seeing the task's context helps: a model refitted without it on the same data learns slower"
        judged = beats_every(run, comparison, "metafqi", ["without context"], claim)
    else:
        claim = "Little is lost when the model is refitted on the same data without the task's context"
        judged = small(run, comparison, paired(run, comparison, "metafqi", ["without context"]), claim, at_most)
    drawn, quantity, note = columns.shown(run, comparison)
    without = line_of(drawn, "without context", label="without", shade=CONTRAST)
    lines = [columns.main_line(drawn, "with context"), without, line_of(drawn, "fixed", is_dashed=True)]
    return Column([judged], [curves(run.title, lines, ylabel=quantity)], comparison, note)


def without_context(run: PresetRun, model: str = "") -> Comparison:
    """Test metaFQI, or a further model, refitted on the same data without the context."""
    own, word = run.of_model(model), f"{model} " if model else ""
    meta = own.config.meta
    seen = meta.model_copy(update={"observation": tuple(name for name in meta.observation if name != "context")})

    def make() -> Comparison:
        run.learn(model)  # which collects
        blind = Run(own.path, own.config.model_copy(update={"meta": seen}), own.tasks)
        fitted = stages.fit_model(blind, own.collect(tracker=run.tracker), tracker=run.tracker)
        fitted = stages.select(fitted, stages.validate(blind, fitted, tracker=run.tracker))
        names: Any = {"name": f"{word}without context", "label": f"{word or 'metaFQI '}without context"}
        facts: Any = {"space": own.mdp.space, "observation": seen.observation}
        return run.test([Method(rule=own.mdp.rule, controller=MetaFQIController(fitted), **names, **facts)])

    return run.kept("-".join(f"without context {model}".split()), make, [f"models/{model}/data" if model else "data"])


def _single_action(run: PresetRun) -> Column:
    comparison = run.tested("metafqi", "fixed", "single")
    constant = "One learned step size per task is no improvement on one tuned for all tasks"
    adaptive = "A step size for every update learns faster than one learned step size per task"
    judged = [
        small(run, comparison, paired(run, comparison, "single", ["fixed"]), constant, no_better, of="baseline"),
        beats_every(run, comparison, "metafqi", ["single"], adaptive),
    ]
    drawn, quantity, note = columns.shown(run, comparison)
    lines = [columns.main_line(drawn), line_of(drawn, "single"), line_of(drawn, "fixed")]
    return Column(judged, [curves(run.title, lines, ylabel=quantity)], comparison, note)


def run_in_one_task(bench: Workbench, preset: str) -> PresetRun:
    """Return a run without a family: training, tuning and test differ in their first policies and noise only."""
    space, place = build_env(bench.config(preset)).context_space, ENVIRONMENTS[preset].single_task
    task = [round(low + place * (high - low), 6) for low, high in zip(space.low, space.high, strict=True)]
    return bench.run(preset, "one-task", (f"env.fixed_context={task}", 'compare.methods=["metafqi", "fixed"]'))


def _in_one_task(run: PresetRun) -> Column:
    comparison = run.tested("metafqi", "fixed")
    claim = "In a single fixed task, too, metaFQI learns faster than the tuned fixed step"
    judged = beats_every(run, comparison, "metafqi", ["fixed"], claim)
    task = zip(comparison.context_names, run.config.env.fixed_context or (), strict=True)
    judged = judged.adding(f"task: {', '.join(f'{name} {value:g}' for name, value in task)}")
    judged = judged._replace(outcome=judged.outcome._replace(counted="first policies"))
    drawn, quantity, note = columns.shown(run, comparison)
    label = f"metaFQI, N = {run.learn().record.selected_iteration}"
    lines = [columns.main_line(drawn, label), line_of(drawn, "fixed")]
    panels = [curves(run.title, lines, ylabel=quantity), columns.steps_panel(run.title, comparison)]
    return Column([judged], panels, comparison, note)


def for_four_times_as_long(run: PresetRun) -> Comparison:
    """Test metaFQI and some fixed steps for more updates than metaFQI was trained on; the first fixed step is tuned for them."""
    num_updates = LONGER * run.config.compare.num_updates
    return for_longer(run, num_updates, lambda best: columns.handful(fixed_grid(run), [best]))


def _for_longer(run: PresetRun) -> Column:
    trained, num_updates = run.config.meta.num_updates, LONGER * run.config.compare.num_updates
    comparison = for_four_times_as_long(run)
    claim = f"Trained on {trained} updates, metaFQI still learns faster over {num_updates} than the fixed step tuned for them"
    ours, fixed = comparison.returns[:2, :, -1].astype(np.float64).mean(axis=1)
    judged = beats_every(run, comparison, "metafqi", ["fixed"], claim).adding(
        f"tuned h = {columns.tuned_step(comparison):g}", f"final return {ours:.1f} against {fixed:.1f}"
    )
    steps = [record.values["stepsize"] for record in comparison.methods[2:]]
    lines = [columns.main_line(comparison), *columns.fixed_lines(comparison, steps)]
    panels = [curves(run.title, lines), columns.steps_panel(run.title, comparison)]
    return Column([judged], panels, comparison, f"The model was trained on {trained} updates and makes {num_updates}.")


fig_context = Figure(
    "fig-context",
    "metaFQI with and without the context in its meta-state, fitted on the same data and selected on the same validation "
    "tasks, beside the tuned fixed step; 95 % intervals over test tasks.",
    _with_and_without_context,
)
fig_single_action = Figure(
    "fig-single-action",
    "One learned step size per task, one tuned for all tasks, and metaFQI, which chooses at every update; 95 % intervals over "
    "test tasks.",
    _single_action,
)
fig_fixed_context = Figure(
    "fig-fixed-context",
    "metaFQI and the tuned fixed step where data, tuning and test all have the same one task: return (above) and step sizes "
    "(below), 95 % intervals over first policies.",
    _in_one_task,
    run=run_in_one_task,
)
fig_cartpole60 = Figure(
    "fig-cartpole60",
    "CartPole for longer than it was trained: return and step sizes, 95 % intervals over test tasks. The fixed step is tuned "
    "for the longer horizon.",
    _for_longer,
    is_turned=True,
)
