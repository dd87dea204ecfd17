"""Every fact of the paper on test tasks: what the figures of an environment measured, and what only a fact needs."""

import dataclasses
from typing import Any

import numpy as np

from metastep import Comparison, Model
from metastep.evaluation import join
from metastep.experiments.config import updates_collected
from paper.ablations import for_four_times_as_long, run_in_one_task, without_context
from paper.comparisons import by_iteration, fixed_grid, for_longer, with_fixed_grid
from paper.facts import facts_of
from paper.judging import Measured
from paper.outcome import Outcome, Product
from paper.robust import has_random_states, random_states
from paper.workbench import PresetRun, Workbench


def facts(bench: Workbench) -> Product:
    """Judge all facts about the environments of a bench; those about random states only where `fig-robust` fitted the models."""
    outcomes: list[Outcome] = []
    rows: list[dict[str, Any]] = []
    for env in bench.environments:
        run = bench.run(env)
        measured = measured_on_test_tasks(bench, run)
        found = {fact.id: judged for fact in facts_of(env) if (judged := fact.judged(measured, run.title)) is not None}
        outcomes += found.values()
        for name, judged in found.items():
            row = {key: value for key, value in judged._asdict().items() if key not in ("id", "command", "claim")}
            rows.append(row | {"environment": env, "fact": name})
    return Product(outcomes, tables={"facts": rows})


def measured_on_test_tasks(bench: Workbench, run: PresetRun) -> Measured:
    """Return what the facts about a run's environment are judged by, made where the run does not hold it yet."""
    is_usual = bool(run.environment.tuned) and not run.environment.is_shown_as_gain
    parts = [with_fixed_grid(run), with_validation(by_iteration(run), run.learn())]
    if run.preset == "nav2d":
        grid = {"max_divergence": (1e-4, 1e-3, 1e-2, 2e-2, 5e-2)}  # the paper's; ours reaches further
        hoof = dataclasses.replace(run.methods["hoof"], name="hoof-paper", label="HOOF, the paper's grid", grid=grid)
        parts.append(run.tuned(hoof))
    if run.environment.tuned:
        parts += [run.tested(*run.environment.tuned, "hoof"), _on_natural_gradients(run)]
    if is_usual:
        others = run.kept("other-settings", lambda: _with_other_settings(run), ["data"])
        parts += [run.tested("single"), without_context(run), others]
    return Measured(
        join(parts),
        longer=_for_longer(run),
        one_task=run_in_one_task(bench, run.preset).tested("metafqi", "fixed") if is_usual else None,
        states=random_states(run) if has_random_states(run) else None,
    )


def _for_longer(run: PresetRun) -> Comparison | None:
    """Test for more updates: four times as many, or as figure 2 has them of an environment shown as gain."""
    if run.environment.is_shown_as_gain:
        return for_longer(run, updates_collected(run.config), lambda best: fixed_grid(run))
    return for_four_times_as_long(run) if run.environment.is_long else None


def with_validation(comparison: Comparison, model: Model) -> Comparison:
    """Return the iterations of a model on test tasks, each with its score on the validation tasks in its record."""
    scores = {f"N={curve.iteration}": curve.score for curve in model.record.validation}
    records = (m._replace(values={**m.values, "validated": scores.get(m.name, -np.inf)}) for m in comparison.methods)
    return dataclasses.replace(comparison, methods=tuple(records))


def _on_natural_gradients(run: PresetRun) -> Comparison:
    """Test RMSprop and Adam on the natural gradient, tuned like the plain ones."""
    parts = []
    for spec in (run.methods["rmsprop"], run.methods["adam"]):
        options = {**spec.rule_options, "follows": "natural_gradient"}
        name, label = f"{spec.name}-natural", f"{spec.label} on the natural gradient"
        parts.append(run.tuned(dataclasses.replace(spec, name=name, label=label, rule_options=options, colour="")))
    return join(parts)


def _with_other_settings(run: PresetRun) -> Comparison:
    """Test metaFQI refitted on the same data with a third of the trees, half the minimum split, and another lambda."""
    fqi = run.config.fqi
    options = {"trees": 100, "min_samples_split": 0.01} | fqi.regressor.options
    split = options["min_samples_split"]
    halved = split / 2 if isinstance(split, float) else max(split // 2, 2)
    regressors = {"trees": {"trees": max(options["trees"] // 3, 1)}, "split": {"min_samples_split": halved}}
    changes: dict[str, dict[str, Any]] = {
        name: {"regressor": fqi.regressor.model_validate({"name": fqi.regressor.name, **options, **changed})}
        for name, changed in regressors.items()
    }
    changes["lambda"] = {"lam": 0.75 if fqi.lam > 0.8 else 1.0}
    labels = {f"other {name}": change for name, change in changes.items()}
    return run.test([run.refitted(run.changed("fqi", **change), name, name) for name, change in labels.items()])
