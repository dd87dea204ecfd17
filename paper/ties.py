"""Which of equally good steps the greedy step is: every rule chosen by validation tasks, and planning's facts under each."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from metastep import Comparison, InputError, Model, envs
from metastep.evaluation import metric_values
from metastep.evaluation.intervals import mean_interval
from metastep.experiments import stages
from metastep.fqi.maximise import Ties
from metastep.fqi.model import model_of_heads
from metastep.report.document import write_picture
from metastep.report.figures import Layout, Panel, picture
from paper.columns import Column, Figure
from paper.direction import MODEL
from paper.facts import facts_of
from paper.facts_on_test import with_validation
from paper.judging import Measured
from paper.outcome import Outcome, Product, Verdict
from paper.workbench import PresetRun, Workbench

RULES: tuple[Ties, ...] = get_args(Ties)
_COLOURS = dict(zip(RULES, ("#D55E00", "#0072B2", "#E69F00", "#009E73"), strict=True))
_ABOUT_PLANNING = ("planning", "degrade", "iterations", "cautious", "greedy", "selected")  # last in a fact's id
_CAPTION = (
    "AUC on validation tasks by the number N of planned updates, for each rule that says which of equally good steps is taken; "
    "95 % intervals over tasks."
)


def under(model: Model, ties: Ties) -> Model:
    """Return the same model with another rule for ties."""
    return model_of_heads(replace(model.record, ties=ties), [function.heads for function in model.q_functions])


def _validated(run: PresetRun, model: str, ties: Ties) -> Comparison:
    """Run every iteration of a model on the validation tasks, under a rule for ties."""
    own, fitted = run.of_model(model), run.learn(model)
    uses = [f"models/{model}/model" if model else "model"]
    name = f"validation-{model or 'metafqi'}-{ties}"
    return run.kept(name, lambda: stages.validate(own, under(fitted, ties), tracker=run.tracker), uses)


def _rows(run: PresetRun, model: str, ties: Ties) -> list[dict[str, Any]]:
    """Return a row for each iteration: its AUC, its gain, its steps, and the share of steps that are about the smallest."""
    comparison, bounds = _validated(run, model, ties), next(iter(run.of_model(model).mdp.space.branches.values()))
    auc, first = metric_values(comparison, "auc"), comparison.returns[:, :, 0].astype(np.float64)
    low, high = mean_interval(auc)
    start, end = bounds.axis
    rows = []
    for place, record in enumerate(comparison.methods):
        steps = comparison.hyperparameters[place, :, :, 0]
        along = (np.asarray(bounds.to_axis(steps), np.float64) - start) / (end - start)
        row = {"model": model or "metafqi", "ties": ties, "N": int(record.values["iteration"])}
        row |= {"auc": float(auc[place].mean()), "low": float(low[place]), "high": float(high[place])}
        row |= {"gain": float((auc[place] - first[place]).mean()), "mean_step": float(steps.mean())}
        rows.append(row | {"waiting": float((along < 0.015).mean()), "num_tasks": auc.shape[1]})
    return rows


def shares(rows: Sequence[Mapping[str, Any]]) -> dict[str, NDArray[np.float64]]:
    """Return what each rule brings over the smallest step on every model, as a share of the model's largest gain.

    Each is scored by the iteration that validation tasks select under it.
    """
    best: dict[tuple[Any, ...], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        own = best.setdefault((row.get("seed"), row["environment"], row["model"]), {})
        if row["ties"] not in own or float(row["auc"]) > float(own[row["ties"]]["auc"]):
            own[row["ties"]] = row
    found = []
    for own in best.values():
        auc, gain = (np.array([float(own[ties][key]) for ties in RULES]) for key in ("auc", "gain"))
        found.append((auc - auc[0]) / (np.abs(gain).max() or 1.0))
    return dict(zip(RULES, np.transpose(found), strict=True))


def _by_rule(run: PresetRun) -> Column:
    models = ("", MODEL) if MODEL in run.config.models else ("",)
    rows = [row for model in models for ties in RULES for row in _rows(run, model, ties)]
    panels = [
        _panel(f"{run.title}: {model or 'metaFQI'}", [r for r in rows if r["model"] == (model or "metafqi")])
        for model in models
    ]
    return Column([], panels, _validated(run, "", RULES[0]), rows=rows)


def _panel(title: str, rows: Sequence[Mapping[str, Any]]) -> Panel:
    """Draw AUC against N for each rule, the mean over the seeds of the rows."""

    def draw(axes: Axes) -> None:
        for place, ties in enumerate(RULES):
            own = [row for row in rows if row["ties"] == ties]
            numbers = sorted({int(row["N"]) for row in own})
            at = [[row for row in own if int(row["N"]) == num] for num in numbers]
            auc, low, high = (
                np.array([np.mean([float(r[key]) for r in each]) for each in at]) for key in ("auc", "low", "high")
            )
            axes.errorbar(
                np.array(numbers) + 0.06 * (place - 1.5), auc, (auc - low, high - auc), label=ties, color=_COLOURS[ties],
                marker="o", markersize=3.0, linewidth=1.2, capsize=1.5,
            )  # fmt: skip
        axes.set(xlabel="planned updates N", ylabel="AUC on validation tasks")
        axes.legend(fontsize=7)

    return Panel(title, draw)


def ties(bench: Workbench) -> Product:
    """Evaluate every rule on the validation tasks of each environment and choose one; test tasks are not touched."""
    made = Figure("ties", _CAPTION, _by_rule, table="ties")(bench)
    return made._replace(outcomes=[choice(made.tables["ties"])])


def choice(rows: Sequence[Mapping[str, Any]]) -> Outcome:
    """Return the choice as an outcome: what the chosen rule brings, with an interval over models."""
    found = shares(rows)
    best = max(found, key=lambda name: found[name].mean())  # the first of equals
    quantity = f"AUC of the rule chosen, {best}, over that of the smallest step, as a share of the largest gain"
    detail = ", ".join(f"{name} {values.mean():+.4f}" for name, values in found.items())
    claim, num = "Another step than the smallest of equally good ones learns faster", len(found[best])
    low, high = (float(end[0]) for end in mean_interval(found[best][None])) if num > 1 else (None, None)
    verdict: Verdict = "holds" if low is not None and low > 0.0 else "not distinguishable"
    mean = float(found[best].mean())
    return Outcome("", claim, quantity, mean, low, high, num, "models on validation tasks", verdict, detail)


def collected(folders: Sequence[Path], out: Path) -> Outcome:
    """Read `ties.csv` of several folders of reproductions, draw a panel for each environment, and choose the rule."""
    rows: list[dict[str, str]] = []
    for place, folder in enumerate(folders):
        file = folder / "ties" / "ties.csv"
        if not file.is_file():
            raise InputError(f"Folder {folder} holds no ties/ties.csv; make it with `python -m paper reproduce ties`.")
        with file.open(newline="") as text:
            rows += [row | {"seed": str(place)} for row in csv.DictReader(text)]
    shown = [row for row in rows if row["model"] == "metafqi"]
    panels = [
        _panel(envs.REGISTRY.entry(env).label, [row for row in shown if row["environment"] == env])
        for env in dict.fromkeys(row["environment"] for row in shown)
    ]
    out.mkdir(parents=True, exist_ok=True)
    write_picture(picture("ties", _CAPTION, [panels], Layout((3.0, 2.8))), out)
    return choice(rows)._replace(id="ties")


def planning(bench: Workbench) -> Product:
    """Judge the facts about planning on test tasks under every rule; iterations are selected on validation tasks."""
    outcomes = list[Outcome]()
    for env in bench.environments:
        run = bench.run(env)
        for rule in RULES:
            methods = stages.iteration_methods(run, under(run.learn(), rule))
            comparison = run.kept(f"iterations-{rule}", partial(run.test, methods), ["model"])
            selected = stages.select(under(run.learn(), rule), _validated(run, "", rule))
            measured = Measured(with_validation(comparison, selected))
            for fact in (fact for fact in facts_of(env) if fact.id.split(".")[2] in _ABOUT_PLANNING):
                outcome = fact.judged(measured, run.title)
                if outcome is not None:
                    outcomes.append(outcome._replace(claim=f"{outcome.claim} (ties: {rule})"))
    return Product(outcomes)
