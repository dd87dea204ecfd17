"""What each part is worth: the context, a step size for every update, a family of tasks, the trained horizon."""

import dataclasses

import numpy as np

from metastep.evaluation import Comparison, metafqi_method
from metastep.experiments.build import build_env
from metastep.experiments.folder import RunFolder
from metastep.experiments.reproduce.against import (
    fixed_lines,
    for_longer,
    handful,
    main_line,
    stepsizes,
    tuned_step,
)
from metastep.experiments.reproduce.judging import alike, beats_every, table, title
from metastep.experiments.reproduce.outcome import Outcome, Product, at_most, no_better
from metastep.experiments.reproduce.panels import Line, curves, picture
from metastep.experiments.reproduce.workbench import Workbench
from metastep.experiments.schema import Experiment
from metastep.experiments.stages import fit_model, join, on_test_tasks, select, validate
from metastep.progress import Tracker
from metastep.report.style import title_of

_LONGER = 4
"""How many times more updates than it was trained on: 60 instead of 15."""


def fig_context(bench: Workbench) -> Product:
    """With and without the context in the meta-state."""
    outcomes: list[Outcome] = []
    rows: list[dict[str, object]] = []
    panels, kept = [], {}
    for env in bench.environments:
        folder = bench.folder(env)
        comparison = join([bench.tested(folder, "metafqi", "fixed"), _without_context(bench, folder)])
        if env == "cartpole":
            claim = "Seeing the task's context helps: a model refitted without it on the same data learns slower"
            outcome, found = beats_every(folder, comparison, "metafqi", ["without context"], claim)
        else:
            claim = "Little is lost when the model is refitted on the same data without the task's context"
            outcome, found = alike(
                folder, comparison, "metafqi", "without context", claim, reference="metafqi", judge=at_most
            )
        outcomes.append(outcome)
        rows += table(folder, found)
        panels.append(
            curves(
                title(folder),
                [
                    main_line(comparison, "with context"),
                    Line("without", comparison.returns[comparison.index("without context")], "hoof"),
                    Line("fixed step", comparison.returns[comparison.index("fixed")], "fixed", is_dashed=True),
                ],
            )
        )
        kept[env] = comparison
    caption = (
        "metaFQI with and without the context in its meta-state, fitted on the same data and selected on the same validation "
        "tasks, beside the tuned fixed step; 95 % intervals over test tasks."
    )
    return Product(outcomes, [picture("fig-context", caption, [panels])], {"differences": rows}, kept)


def _without_context(bench: Workbench, folder: RunFolder) -> Comparison:
    config = folder.config
    parts = tuple(part for part in config.meta.observation if part != "context")
    blind = config.model_copy(update={"meta": config.meta.model_copy(update={"observation": parts})})

    def make(tracker: Tracker) -> Comparison:
        model = fit_model(blind, bench.dataset(folder), tracker=tracker)
        method = metafqi_method(select(model, validate(blind, model, tracker=tracker)))
        named = dataclasses.replace(method, name="without context", label="metaFQI without context")
        return on_test_tasks(blind, [named], tracker=tracker)

    return bench.kept(folder, "without-context", make)


def fig_single_action(bench: Workbench) -> Product:
    """One learned step size a task."""
    outcomes: list[Outcome] = []
    rows: list[dict[str, object]] = []
    panels, kept = [], {}
    for env in bench.environments:
        folder = bench.folder(env)
        comparison = bench.tested(folder, "metafqi", "fixed", "single")
        constant, first = alike(
            folder,
            comparison,
            "single",
            "fixed",
            "One learned step size per task is no improvement on one tuned for all tasks",
            reference="fixed",
            judge=no_better,
        )
        adaptive, second = beats_every(
            folder,
            comparison,
            "metafqi",
            ["single"],
            "A step size for every update learns faster than one learned step size per task",
        )
        outcomes += [constant, adaptive]
        rows += table(folder, [*first, *second])
        lines = [Line(title_of(name), comparison.returns[comparison.index(name)], name) for name in ("single", "fixed")]
        panels.append(curves(title(folder), [main_line(comparison), *lines]))
        kept[env] = comparison
    caption = (
        "One learned step size per task, one tuned for all tasks, and metaFQI, which chooses at every update; 95 % intervals "
        "over test tasks."
    )
    return Product(outcomes, [picture("fig-single-action", caption, [panels])], {"differences": rows}, kept)


def one_task(config: Experiment) -> tuple[float, ...]:
    """The centre of the context space; of Nav2D's, halfway to a corner, since the learner starts at its centre."""
    space = build_env(config).context_space
    share = 0.75 if config.env.name == "nav2d" else 0.5
    return tuple(round(low + share * (high - low), 6) for low, high in zip(space.low, space.high, strict=True))


def fig_fixed_context(bench: Workbench) -> Product:
    """A single fixed task: training, tuning and test differ in their first policies and noise only."""
    outcomes: list[Outcome] = []
    rows: list[dict[str, object]] = []
    above, below, kept = [], [], {}
    for env in bench.environments:
        values = list(one_task(bench.config(env)))
        changes = (f"env.fixed_context={values}", 'compare.methods=["metafqi", "fixed"]')
        folder = bench.folder(env, "one-task", changes)
        comparison = bench.tested(folder, "metafqi", "fixed")
        claim = "In a single fixed task, too, metaFQI learns faster than the tuned fixed step"
        outcome, found = beats_every(folder, comparison, "metafqi", ["fixed"], claim)
        where = ", ".join(f"{name} {value:g}" for name, value in zip(comparison.context_names, values, strict=True))
        detail = ", ".join(filter(None, (outcome.detail, f"task: {where}")))
        outcomes.append(outcome._replace(counted="first policies", detail=detail))
        rows += table(folder, found)
        fixed = Line("fixed step", comparison.returns[comparison.index("fixed")], "fixed")
        iteration = bench.model(folder).record.selected_iteration
        above.append(curves(title(folder), [main_line(comparison, f"metaFQI, N = {iteration}"), fixed]))
        below.append(stepsizes(title(folder), comparison, tuned_step(comparison)))
        kept[env] = comparison
    caption = (
        "metaFQI and the tuned fixed step where data, tuning and test all have the same one task: return (above) and step "
        "sizes (below), 95 % intervals over first policies."
    )
    return Product(outcomes, [picture("fig-fixed-context", caption, [above, below])], {"differences": rows}, kept)


def fig_cartpole60(bench: Workbench) -> Product:
    """CartPole for four times the updates that the model was trained on."""
    folder = bench.folder("cartpole")
    config = folder.config
    num_updates = _LONGER * config.compare.num_updates
    grid = config.compare.grids.fixed
    comparison = for_longer(bench, folder, num_updates, lambda best: handful(grid, [best]))
    best = tuned_step(comparison)
    claim = (
        f"Trained on {config.meta.num_updates} updates, metaFQI still learns faster over {num_updates} than the fixed step "
        f"tuned for {num_updates}"
    )
    outcome, found = beats_every(folder, comparison, "metafqi", ["fixed"], claim)
    steps = [record.values["stepsize"] for record in comparison.methods[2:]]
    panels = [
        curves(title(folder), [main_line(comparison), *fixed_lines(comparison, steps, best)]),
        stepsizes(title(folder), comparison, best),
    ]
    caption = (
        f"CartPole over {num_updates} updates with the model trained on {config.meta.num_updates}: return and step sizes, 95 % "
        "intervals over test tasks. The fixed step is tuned for the longer horizon."
    )
    details = (outcome.detail, f"tuned h = {best:g}", f"final return {_final(comparison)}")
    return Product(
        [outcome._replace(detail=", ".join(filter(None, details)))],
        [picture("fig-cartpole60", caption, [panels])],
        {"differences": table(folder, found)},
        {"cartpole": comparison},
    )


def _final(comparison: Comparison) -> str:
    last = {name: comparison.returns[comparison.index(name), :, -1] for name in ("metafqi", "fixed")}
    return f"{np.mean(last['metafqi'], dtype=np.float64):.1f} against {np.mean(last['fixed'], dtype=np.float64):.1f}"
