"""Direction and step chosen together: against every tuned baseline, without each part, with fewer tuples."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from metastep import Comparison, Experiment, InputError, Model
from metastep.controllers import GreedyOracle
from metastep.evaluation import join, metric_values, oracle_scores
from metastep.experiments.build import build_regressor
from metastep.experiments.config import variant
from metastep.experiments.provenance import copy_data, find_data
from metastep.fqi.regressors import Regressor
from metastep.mdp.collection import recorded_features
from metastep.report.figures import curves, line_of, picture, points, whiskers
from metastep.report.tables import number
from paper.claims import beats_every, outcome_of, paired
from paper.columns import Column, Figure, shown
from paper.outcome import Product, better
from paper.workbench import PresetRun, Workbench

MODEL = "metastep"
BASELINES = ("fixed", "fixed-kl", "kl-adaptive", "decay", "rmsprop", "adam", "hoof", "metagrad", "metafqi")
ORACLE = "menu-oracle"
_SHOWN = ("fixed-kl", "rmsprop", "metafqi")  # learning curves; differences show them all


def _against_every_baseline(run: PresetRun) -> Column:
    oracle = [ORACLE] if ORACLE in run.methods else []
    comparison = run.tested(MODEL, *BASELINES, *oracle)
    claim = "Choosing direction and step at every update learns faster than every tuned baseline and than the paper's metaFQI"
    judged = beats_every(run, comparison, MODEL, BASELINES, claim)
    judged = judged.adding(f"AUC {number(metric_values(comparison, 'auc', (MODEL,)).mean())}")
    if oracle:
        seed, num_resamples = run.config.seed, run.config.compare.num_resamples
        scores = oracle_scores(comparison, oracle=ORACLE, seed=seed, num_resamples=num_resamples)
        own = next(score for score in scores if score.method == MODEL)
        if np.isfinite(own.score):  # there is none where the oracle does not beat the tuned step
            judged = judged.adding(f"oracle score {own.score:.0f} % [{own.low:.0f}, {own.high:.0f}]")
    drawn, quantity, note = shown(run, comparison)
    if oracle:
        note = f"{note} The oracle tries every direction with {_steps_tried(run)} steps on fresh episodes.".strip()
    lines = [
        line_of(drawn, MODEL, is_main=True),
        *(line_of(drawn, name, has_band=False) for name in (*_SHOWN, *oracle)),
    ]
    below = whiskers(f"{run.title}: difference", comparison, judged.rows)
    return Column([judged], [curves(run.title, lines, ylabel=quantity), below], comparison, note)


def _steps_tried(run: PresetRun) -> int:
    """How many steps the oracle tries along every direction."""
    oracle = run.methods[ORACLE].build_controller({})
    own = oracle.num_stepsizes if isinstance(oracle, GreedyOracle) else 0
    return own or run.of_model(MODEL).config.fqi.num_stepsizes


direction = Figure(
    "direction",
    "The model that chooses direction and step, metaFQI and tuned baselines on the same test tasks: return (above) and paired "
    "differences in AUC with 95 % intervals over tasks (below).",
    _against_every_baseline,
)


def setting(name: str, value: object) -> str:
    """Return an override of a setting of the model."""
    return f"models.{MODEL}.{name}={value}"


REMOVED: Mapping[str, tuple[str, ...]] = {
    "no menu": (),  # the paper's rule
    "no divergence": (setting("meta.stepsize_scale", '"log"'),),  # the paper's range, from a thousandth of its end
    "the paper's features": (setting("meta.observation", '["paper"]'),),
    "no labels": (setting("collect.labels", 1),),
    "no rounds": (setting("collect.rounds", 1),),
    "N = 1": (setting("fqi.iterations", 1),),
    "discount 1": (setting("meta.meta_discount", 1.0),),
    "state not first": (setting("fqi.regressor.state_first", "false"),),
}
"""Each part of the method taken away alone."""
_MORE = {"no labels": "labels", "no rounds": "rounds"}  # more learners make up for what is no longer tried


def _changes(run: PresetRun, name: str) -> tuple[str, ...]:
    meta = run.config.meta
    if name == "no menu":
        options = ", ".join(f"{key} = {value}" for key, value in meta.rule.options.items())
        return (setting("meta.rule", f'{{name = "{meta.rule.name}", {options}}}'),)
    if name == "no divergence":
        ends = (
            setting("meta.stepsize_low", meta.stepsize_high / 1000.0),
            setting("meta.stepsize_high", meta.stepsize_high),
        )
        return *REMOVED[name], *ends
    if name not in _MORE:
        return REMOVED[name]
    collect = run.of_model(MODEL).config.collect
    learners = collect.num_meta_episodes * int(getattr(collect, _MORE[name]))
    return *REMOVED[name], setting("collect.num_meta_episodes", learners)


def best_baseline(comparison: Comparison) -> str:
    """Of the tuned baselines and metaFQI the one with the highest mean AUC."""
    return max(BASELINES, key=lambda name: metric_values(comparison, "auc", (name,))[0].mean())


def changes_nothing(bench: Workbench, preset: str, changes: Sequence[str]) -> bool:
    """Say whether the model of a preset has all these settings anyway: at the quick scale, data is collected in one round."""
    return _settled(bench.config(preset, changes)) == _settled(bench.config(preset))


def _settled(config: Experiment) -> tuple[Experiment, Regressor]:
    """Return the settings of the model, with the regressor's defaults filled in."""
    own = variant(config, MODEL)
    return own.model_copy(update={"fqi": own.fqi.model_copy(update={"regressor": None})}), build_regressor(own)


def learned(run: PresetRun, others: Sequence[PresetRun] = ()) -> Model:
    """Return the model of a run; data that another run has collected with the same settings are copied."""
    own = run.of_model(MODEL).prepare_folder()
    for other in others:
        try:
            dataset = find_data(other.of_model(MODEL).path, own.config, own.tasks)
        except InputError:  # of other settings
            continue
        if set(recorded_features(own.mdp)) <= set(dataset.layout.features):
            copy_data(dataset, own)
            break
    return run.learn(MODEL)


def _tested_as(run: PresetRun, done: Sequence[PresetRun], name: str) -> Comparison:
    """The model of a run on the test tasks, under another name."""
    learned(run, done)
    comparison = run.tested(MODEL)
    record = comparison.methods[0]._replace(name=name, label=name, colour="")
    return dataclasses.replace(comparison, methods=(record,), made_from={})


def ablations(bench: Workbench) -> Product:
    """The method, and the method without each of its parts, on the test tasks."""
    panels, outcomes, found = [], [], {}
    for preset in bench.environments:
        run = bench.run(preset)
        done, parts = [run], [run.tested(MODEL)]
        for place, name in enumerate(REMOVED):
            changes = _changes(run, name)
            if changes_nothing(bench, preset, changes):
                continue
            other = bench.run(preset, f"without-{place}", changes)
            parts.append(_tested_as(other, done, name))
            done.append(other)
        comparison = join(parts)
        rows = paired(run, comparison, MODEL, comparison.names[1:])
        for row in rows:
            claim = f"The method that chooses direction and step needs each of its parts: {row.baseline}"
            outcomes.append(outcome_of(run, row, row.num_tasks, claim, better(row)))
        panels.append(whiskers(run.title, comparison, rows))
        found[preset] = comparison
    caption = (
        "What each part is worth: the whole method minus the method without it, in AUC, with 95 % intervals over test tasks. "
        "Without labels or rounds, more learners give as many tuples. A part that a preset does not have is left out."
    )
    return Product(outcomes, [picture("ablations", caption, [panels])], curves=found)


_TUPLES = (3_000, 10_000, 30_000, 100_000)


def growth(bench: Workbench) -> Product:
    """How the result grows with the number of tuples, collected in one round."""
    panels, rows, found, outcomes = [], [], {}, []
    for preset in bench.environments:
        run = bench.run(preset)
        collect, updates = run.of_model(MODEL).config.collect, run.config.meta.num_updates
        parts = []
        for tuples in _TUPLES:
            learners = max(round(tuples / (updates * collect.labels)), 2)
            changes = (setting("collect.rounds", 1), setting("collect.num_meta_episodes", learners))
            other = bench.run(preset, f"tuples-{tuples}", changes)
            parts.append(_tested_as(other, (), f"{tuples} tuples"))
        comparison = join([*parts, run.tested(*BASELINES)])
        best = best_baseline(comparison)
        for row in paired(run, comparison, f"{_TUPLES[-1]} tuples", [best]):
            claim = (
                f"With {_TUPLES[-1]} tuples the model is better than the best of metaFQI and the tuned baselines, "
                f"{comparison.label(best)}"
            )
            outcomes.append(outcome_of(run, row, row.num_tasks, claim, better(row)))
        values = metric_values(comparison, "auc", [f"{tuples} tuples" for tuples in _TUPLES])
        rows += [
            {"environment": preset, "tuples": tuples, "auc": float(row.mean())}
            for tuples, row in zip(_TUPLES, values, strict=True)
        ]
        positions = np.log10(_TUPLES).tolist()
        panels.append(points(run.title, values, positions, xlabel="log10 of the tuples", ylabel="AUC on test tasks"))
        found[preset] = comparison
    caption = "AUC on test tasks by the number of tuples, collected in one round; means with 95 % intervals over tasks."
    return Product(outcomes, [picture("growth", caption, [panels])], {"growth": rows}, found)
