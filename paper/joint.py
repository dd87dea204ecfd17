"""One model that chooses direction and step for all environments, fitted on the data of all, on the test tasks of each."""

import dataclasses
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from metastep import Comparison, InputError, Model, load_model
from metastep.evaluation import join
from metastep.experiments.pooling import data_of, for_family, measured, pooled
from metastep.fqi import save_model
from metastep.report.figures import picture, whiskers
from paper.claims import AUC, Judged, paired, small
from paper.direction import BASELINES, MODEL, best_baseline
from paper.outcome import Product, at_most
from paper.workbench import PresetRun, Workbench

NAME = "joint"


def joint(bench: Workbench) -> Product:
    """Test one model for all environments together, in units of each, on the test tasks of each."""
    if len(bench.environments) < 2:
        raise InputError(
            f"env: {NAME} takes the data of two environments or more, not of {bench.environments[0]} alone."
        )
    runs = {preset: bench.run(preset) for preset in bench.environments}
    file = bench.out / NAME / "model.safetensors"
    model = _fitted(file, bench, runs)
    outcomes, panels, found = [], [], {}
    for preset, run in runs.items():
        common = run.kept(NAME, partial(_tested, run, model), [f"models/{MODEL}/data"])
        comparison = join([dataclasses.replace(common, made_from={}), run.tested(*BASELINES)])
        outcomes.append(as_good(run, comparison).outcome)
        panels.append(whiskers(run.title, comparison, paired(run, comparison, NAME, BASELINES)))
        found[preset] = comparison
    caption = (
        "One model for all environments minus metaFQI and baselines tuned for each, in AUC, with 95 % intervals over test "
        "tasks."
    )
    return Product(outcomes, [picture(NAME, caption, [panels])], curves=found, files=[file])


def as_good(run: PresetRun, comparison: Comparison) -> Judged:
    """Judge that the common model is at least as good as the best of the others: it may lose up to the margin to it."""
    best = best_baseline(comparison)
    claim = (
        "One model for all environments is at least as good as the best of metaFQI and the tuned baselines, "
        f"{comparison.label(best)}"
    )
    rows = paired(run, comparison, best, [NAME])
    return small(run, comparison, rows, claim, at_most, quantity=f"{{target}} minus {{baseline}}: {AUC}")


def _tested(run: PresetRun, model: Model) -> Comparison:
    own = for_family(model, run.of_model(MODEL).config)
    return measured(own, run, NAME, "one model for all", like=MODEL, tracker=run.tracker)


def _fitted(file: Path, bench: Workbench, runs: Mapping[str, PresetRun]) -> Model:
    """Return the common model; it is fitted once, and read by a command that resumes."""
    own = [run.of_model(MODEL).prepare_folder() for run in runs.values()]
    for model_run, run in zip(own, runs.values(), strict=True):
        model_run.collect(tracker=run.tracker)
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        save_model(pooled(own, known=True, tracker=bench.tracker), file)
    model = load_model(file)
    if model.record.training_data.fingerprint != data_of(own):
        raise InputError(f"File {file} was fitted on other data than the runs here hold; remove it to fit it again.")
    return model
