"""Direction and step chosen together: against every tuned baseline, and without each part."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from metastep import Comparison, Experiment, InputError, Model
from metastep.evaluation import join, metric_values, oracle_scores
from metastep.experiments.config import build_regressor, variant
from metastep.experiments.provenance import copy_data, find_data
from metastep.fqi.regressors import Regressor
from metastep.mdp.collection import recorded_features
from metastep.report.figures import line_of, whiskers
from metastep.report.tables import number
from paper.claims import Judged, beats_every, outcome_of, paired
from paper.columns import Column, Figure, above_differences, shown
from paper.outcome import better
from paper.workbench import PresetRun

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
        own_steps = run.methods[ORACLE].controller_options.get("num_stepsizes")
        steps = own_steps or run.of_model(MODEL).config.fqi.num_stepsizes
        note = f"{note} The oracle tries every direction with {steps} steps on fresh episodes.".strip()
    lines = [line_of(drawn, MODEL, is_main=True)]
    lines += [line_of(drawn, name, has_band=False) for name in (*_SHOWN, *oracle)]
    return above_differences(run, comparison, judged, lines, quantity, note)


direction = Figure(
    "direction",
    "The model that chooses direction and step, metaFQI and tuned baselines on the same test tasks: return (above) and paired "
    "differences in AUC with 95 % intervals over tasks (below).",
    _against_every_baseline,
)


def setting(name: str, value: object) -> str:
    """Return an override of a setting of the model."""
    return f"models.{MODEL}.{name}={value}"


def removed(run: PresetRun) -> dict[str, tuple[str, ...]]:
    """Return the settings that take away each part of the method alone; more learners make up for labels and rounds."""
    meta, collect = run.config.meta, run.of_model(MODEL).config.collect
    options = ", ".join(f"{key} = {value}" for key, value in meta.rule.options.items())
    high, learners = meta.stepsize_high, collect.num_meta_episodes
    changes: dict[str, dict[str, object]] = {
        "no menu": {"meta.rule": f'{{name = "{meta.rule.name}", {options}}}'},  # the paper's rule
        # The paper's range, from a thousandth of its end.
        "no divergence": {
            "meta.stepsize_scale": '"log"',
            "meta.stepsize_low": high / 1000.0,
            "meta.stepsize_high": high,
        },
        "the paper's features": {"meta.observation": '["paper"]'},
        "no labels": {"collect.labels": 1, "collect.num_meta_episodes": learners * collect.labels},
        "no rounds": {"collect.rounds": 1, "collect.num_meta_episodes": learners * collect.rounds},
        "N = 1": {"fqi.iterations": 1},
        "discount 1": {"meta.meta_discount": 1.0},
        "state not first": {"fqi.regressor.state_first": "false"},
    }
    return {name: tuple(setting(key, value) for key, value in own.items()) for name, own in changes.items()}


def best_baseline(comparison: Comparison) -> str:
    """Return the one with the highest mean AUC of the tuned baselines and metaFQI."""
    return max(BASELINES, key=lambda name: metric_values(comparison, "auc", (name,))[0].mean())


def changes_nothing(run: PresetRun, changes: Sequence[str]) -> bool:
    """Say whether the model of a preset has all these settings anyway: at the quick scale, data is collected in one round."""
    return _settled(run.bench.config(run.preset, changes)) == _settled(run.config)


def _settled(config: Experiment) -> tuple[Experiment, Regressor]:
    """Return the settings of the model, with the regressor's defaults filled in."""
    own = variant(config, MODEL)
    return own.model_copy(update={"fqi": own.fqi.model_copy(update={"regressor": None})}), build_regressor(own)


def learned(run: PresetRun, others: Sequence[PresetRun] = ()) -> Model:
    """Return the model of a run; data that another run has collected with the same settings are copied."""
    own = run.of_model(MODEL).prepare_folder()
    for other in others:
        try:
            dataset = find_data(other.of_model(MODEL).path, own)
        except InputError:  # of other settings
            continue
        if set(recorded_features(own.mdp)) <= set(dataset.layout.features):
            copy_data(dataset, own)
            break
    return run.learn(MODEL)


def _tested_as(run: PresetRun, done: Sequence[PresetRun], name: str) -> Comparison:
    """Test the model of a run, under another name."""
    learned(run, done)
    comparison = run.tested(MODEL)
    record = comparison.methods[0]._replace(name=name, label=name, colour="")
    return dataclasses.replace(comparison, methods=(record,), made_from={})


def _without_each_part(run: PresetRun) -> Column:
    done, parts = [run], [run.tested(MODEL)]
    for place, (name, changes) in enumerate(removed(run).items()):
        if not changes_nothing(run, changes):
            other = run.bench.run(run.preset, f"without-{place}", changes)
            parts.append(_tested_as(other, done, name))
            done.append(other)
    comparison = join(parts)
    rows = paired(run, comparison, MODEL, comparison.names[1:])
    claim = "The method that chooses direction and step needs each of its parts"
    judged = [
        Judged(outcome_of(run, row, row.num_tasks, f"{claim}: {row.baseline}", better(row)), (row,)) for row in rows
    ]
    return Column(judged, [whiskers(run.title, comparison, rows)], comparison)


ablations = Figure(
    "ablations",
    "What each part is worth: the whole method minus the method without it, in AUC, with 95 % intervals over test tasks. "
    "Without labels or rounds, more learners give as many tuples. A part that a preset does not have is left out.",
    _without_each_part,
)
