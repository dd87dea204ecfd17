"""Every fact of the paper on test tasks: what the figures of an environment measured, and what only a fact needs."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from metastep.evaluation import Comparison, join
from metastep.experiments.build import method_spec
from metastep.experiments.schema import Experiment
from metastep.experiments.stages import fit_model, on_test_tasks, select, validate
from metastep.experiments.stages import tune_method as tuned
from metastep.report.figures import Layout, Panel, picture
from metastep.report.style import Ink
from paper.ablations import for_four_times_as_long, run_in_one_task, without_context
from paper.comparisons import by_iteration, with_fixed_grid
from paper.facts import Fact, facts_of
from paper.judging import Found, Measured
from paper.outcome import COLOURS, Outcome, Product
from paper.robust import has_random_states, random_states
from paper.workbench import Run, Workbench


def facts(bench: Workbench) -> Product:
    """All facts about the environments of a bench; those about random states only beside `fig-robust`, which fits the models."""
    outcomes: list[Outcome] = []
    rows: list[dict[str, Any]] = []
    panels: list[Panel] = []
    for env in bench.environments:
        run = bench.run(env)
        measured = measured_on_test_tasks(bench, run)
        found = {fact: judged for fact in facts_of(env) if (judged := fact.judged(measured)) is not None}
        outcomes += [outcome_of(run.title, fact, judged) for fact, judged in found.items()]
        rows += [{"environment": env, "fact": fact.id, **judged._asdict()} for fact, judged in found.items()]
        panels.append(_panel(run.title, env, found))
    caption = "Facts of the paper on test tasks: they hold (green), do not hold (red), or it cannot be told (yellow)."
    return Product(outcomes, [picture("facts", caption, [panels], Layout((3.4, 6.0)))], {"facts": rows})


def outcome_of(environment: str, fact: Fact, found: Found) -> Outcome:
    """A judged fact as a row of the results table."""
    return Outcome(
        environment=environment,
        claim=fact.claim,
        quantity=found.quantity,
        effect=found.effect,
        low=found.low,
        high=found.high,
        num=found.num,
        counted=found.counted,
        verdict=found.verdict,
        detail=found.detail,
    )


def measured_on_test_tasks(bench: Workbench, run: Run) -> Measured:
    """What the facts about a run's environment are judged by, made where the run does not hold it yet."""
    is_usual = bool(run.environment.tuned) and not run.environment.is_shown_as_gain
    parts = [with_fixed_grid(run), _validated(run)]
    if run.environment.tuned:
        parts += [run.tested(*run.environment.tuned, "hoof"), _on_natural_gradients(run)]
    if is_usual:
        parts += [run.tested("single"), without_context(run), _other_settings(run)]
    return Measured(
        join(parts),
        longer=for_four_times_as_long(run) if run.environment.is_long else None,
        one_task=run_in_one_task(bench, run.preset).tested("metafqi", "fixed") if is_usual else None,
        states=random_states(run) if has_random_states(run) else None,
    )


def _validated(run: Run) -> Comparison:
    """Every iteration with its score on the validation tasks on the record."""
    comparison = by_iteration(run)
    scores = {f"N={curve.iteration}": curve.score for curve in run.model().record.validation}
    records = (m._replace(values={**m.values, "validated": scores[m.name]}) for m in comparison.methods)
    return dataclasses.replace(comparison, methods=tuple(records))


def _on_natural_gradients(run: Run) -> Comparison:
    """RMSprop and Adam on the natural gradient, tuned like the plain ones."""

    def make() -> Comparison:
        found = []
        for spec in (method_spec(run.config, name) for name in ("rmsprop", "adam")):
            own = dataclasses.replace(
                spec,
                name=f"{spec.name}-natural",
                label=f"{spec.label} on the natural gradient",
                rule_options={**spec.rule_options, "follows": "natural_gradient"},
                colour="",
            )
            found.append(tuned(run.folder, own, tracker=run.tracker))
        methods, tables = [method for method, _ in found], [table for _, table in found]
        return on_test_tasks(run.folder, methods, tuning=tables, tracker=run.tracker)

    return run.kept("natural", make)


def _other_settings(run: Run) -> Comparison:
    """metaFQI refitted on the same data with a third of the trees, half the minimum split, and another lambda."""
    fqi = run.config.fqi
    options = {"trees": 100, "min_samples_split": 0.01} | fqi.regressor.options
    split = options["min_samples_split"]
    halved = split / 2 if isinstance(split, float) else max(split // 2, 2)
    regressors = {
        "trees": {**options, "trees": max(options["trees"] // 3, 1)},
        "split": {**options, "min_samples_split": halved},
    }
    changes: dict[str, dict[str, Any]] = {
        name: {"regressor": fqi.regressor.model_validate({"name": fqi.regressor.name, **changed})}
        for name, changed in regressors.items()
    }
    changes["lambda"] = {"lam": 0.75 if fqi.lam > 0.8 else 1.0}

    def make() -> Comparison:
        methods = []
        for name, change in changes.items():
            config: Experiment = run.config.model_copy(update={"fqi": fqi.model_copy(update=change)})
            other = run.folder.with_config(config)
            model = fit_model(other, run.dataset(), tracker=run.tracker)
            selected = select(model, validate(other, model, tracker=run.tracker))
            methods.append(run.following(selected, f"other {name}", f"other {name}"))
        return on_test_tasks(run.folder, methods, tracker=run.tracker)

    return run.kept("other-settings", make, ["data"])


def _panel(title: str, env: str, found: dict[Fact, Found]) -> Panel:
    names: Sequence[str] = [fact.id.replace(f".{env}", "") for fact in found]

    def draw(axes: Axes, ink: Ink) -> None:
        colours = [COLOURS[judged.verdict] for judged in found.values()]
        heights = np.arange(len(names))[::-1]
        axes.barh(heights, np.ones(len(names)), color=colours, height=0.9)
        axes.set_yticks(heights, names, fontsize=6)
        axes.set_xticks([])
        axes.set_xlim(0.0, 1.0)
        axes.grid(visible=False)

    return Panel(title, draw)
