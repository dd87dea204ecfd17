"""Publish a model: a small file, and a card with its training data, ranges and scores."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from metastep._core import storage
from metastep._core.errors import InputError
from metastep._core.progress import Tracker
from metastep._core.storage import require_new, write_new
from metastep.evaluation import Comparison, differences, join, summary
from metastep.experiments.pooling import measured, pooled
from metastep.experiments.provenance import read_dataset
from metastep.experiments.run import Run
from metastep.experiments.schema import Experiment
from metastep.experiments.stages import read_fitted
from metastep.fqi import Model, load_model, save_model
from metastep.report.tables import target_of

_ROWS = 2000
"""Observations of the training data on which the packed model is compared with the whole one."""


class Published(NamedTuple):
    """The files of a published model."""

    model: Path
    card: Path
    num_bytes: int
    same: float  # share of observations for which the packed model proposes the very same


def publish(
    runs: Sequence[Run],
    name: str,
    out: Path,
    *,
    trees: int | None = None,
    command: str = "",
    force: bool = False,
    tracker: Tracker | None = None,
) -> Published:
    """Write the model of a run, or one fitted on the data of several runs, with its card.

    Of a run with several models it is that of the method which the others are compared with.

    Args:
        runs: finished runs.
        name: of the model.
        out: the folder that `NAME.safetensors` and `NAME.md` go to.
        trees: of every forest that are kept, the first ones; by default all.
        command: that was typed, for the card.
        force: whether files there are replaced.
        tracker: receives progress.
    """
    if not name.replace("-", "").isalnum():
        raise InputError(f"--name: {name!r} must consist of letters, digits and hyphens.")
    file, card = out / f"{name}.safetensors", out / f"{name}.md"
    for path in (file, card):
        require_new(path, force=force)
    commands = [*(run.command() or f"# the run in {run.path.name}" for run in runs), command]
    followed, whole = "", None
    if len(runs) == 1:
        # The model that the target method follows; without a comparison, the run's own.
        followed = runs[0].methods[target_of(runs[0].comparison)].model if runs[0].comparison_file.exists() else ""
        whole = read_fitted(runs[0].of_model(followed))[0]
    whole = whole or pooled(runs, tracker=tracker)
    learned = [run.of_model(followed) for run in runs]
    small = whole.only_selected() if trees is None else whole.only_selected().with_trees(trees)
    storage.create_folder(out)
    with TemporaryDirectory() as aside:
        save_model(small, Path(aside, file.name), packed=True)
        content = storage.read_bytes(Path(aside, file.name))
        small = load_model(Path(aside, file.name))
    same = _agreement(whole, small, learned)
    comparisons = [
        (run, join([measured(small, run, name, name, like=followed, tracker=tracker), run.comparison]))
        for run in runs
        if run.comparison_file.exists()
    ]
    text = "\n".join(_card(name, whole, small, learned, comparisons, len(content), same, commands)) + "\n"
    # Both at the end, so that a model is never without its card, nor a card without its model.
    before = storage.read_bytes(card) if card.exists() else None
    write_new(card, text.encode(), force=force)
    try:
        write_new(file, content, force=force)
    except BaseException:
        if before is None:
            card.unlink(missing_ok=True)
        else:
            storage.write_atomically(card, before)
        raise
    return Published(file, card, len(content), same)


def _agreement(model: Model, packed: Model, folders: Sequence[Run]) -> float:
    """Return the share of observations of the training data for which both propose the same."""
    names = [part.name for part in model.record.observation]
    rows = [read_dataset(folder, verify=False).transitions(names).observation for folder in folders]
    seen = np.concatenate(rows)
    seen = seen[:: max(1, len(seen) // _ROWS)]
    return float(np.mean(np.all(np.atleast_2d(model.act(seen).T == packed.act(seen).T), axis=0)))


def _card(
    name: str,
    model: Model,
    small: Model,
    folders: Sequence[Run],
    comparisons: Sequence[tuple[Run, Comparison]],
    num_bytes: int,
    same: float,
    commands: Sequence[str],
) -> Iterator[str]:
    record = model.record
    families = ", ".join(folder.config.env.name for folder in folders)
    yield from (f"# {name}", "", f"Proposes the updates of `{record.setting['rule']['name']}` on {families}.", "")
    yield from ("## Trained on", "")
    yield from ("| family | tasks | learners of a round, rounds | batch | updates |", "|---|---|---|---|---|")
    for folder in folders:
        config, space = folder.config, folder.mdp.env.context_space
        bounds = zip(space.names, space.low, space.high, strict=True)
        tasks = ", ".join(f"{coordinate} {low:g} to {high:g}" for coordinate, low, high in bounds)
        collected = f"{config.collect.num_meta_episodes}, {config.collect.rounds}"
        yield f"| {config.env.name} | {tasks} | {collected} | {_batch(config)} | {config.meta.num_updates} |"
    yield ""
    validated = sum(folder.config.selection.num_tasks for folder in folders)
    yield (
        f"{record.training_data.tuples} updates in all, seed {record.training_data.seed}, data "
        f"`{record.training_data.fingerprint[:16]}`. Iteration {record.selected_iteration} of {len(model.q_functions)} was "
        f"selected on {validated} validation tasks."
    )
    yield from ("", "## Ranges", "", "Numbers outside of these are guessed at, and a warning says so.", "")
    yield from ("| what it sees | smallest | largest |", "|---|---:|---:|")
    for column, low, high in zip(record.feature_names, record.feature_low, record.feature_high, strict=True):
        yield f"| {column} | {low:.4g} | {high:.4g} |"
    yield from ("", "| what it proposes | smallest | largest | scale |", "|---|---:|---:|---|")
    for branch in record.branches:
        yield f"| {branch.name or 'step'} | {branch.low:g} | {branch.high:g} | {branch.scale} |"
    for run, comparison in comparisons:
        yield from _scores(run, comparison, name)
    yield from ("", "## File", "")
    grown, kept = (each.record.regressor.options.get("trees") for each in (model, small))
    thinned = f"{kept} of {grown} trees of each forest, " if kept != grown else ""
    yield (
        f"{num_bytes / 1000:.0f} kB: the selected iteration, {thinned}numbers rounded. On {100 * same:.2f} % of the training "
        "data's observations it proposes exactly what the whole model does."
    )
    yield from ("", "## Made by", "", "```text", *commands, "```", "")
    devices = dict.fromkeys(read_dataset(folder, verify=False).environment["device"] for folder in folders)
    fitted_with = ", ".join(
        f"{name} {version}" for name, version in sorted(record.versions.items()) if name != "device"
    )
    yield f"Simulated on {', '.join(devices)}; the forests were fitted on a CPU, with {fitted_with}."


def _batch(config: Experiment) -> str:
    rollout: Any = config.rollout
    if rollout.num_envs is None:
        return f"{rollout.num_episodes} episodes of {rollout.horizon} steps"
    return f"{rollout.num_envs} environments of {rollout.num_steps} steps"


def _scores(folder: Run, comparison: Comparison, target: str) -> Iterator[str]:
    """Yield the scores of a run's methods on its test tasks, beside the model."""
    seed, num = folder.config.seed, folder.config.compare.num_resamples
    against = {row.baseline: row for row in differences(comparison, target, seed=seed, num_resamples=num)}
    yield from ("", f"## Scores on {folder.config.env.name}", "")
    yield f"Mean return over the updates, {comparison.num_tasks} test tasks, with 95 % intervals; {target} is this file."
    yield from ("", f"| method | mean return | {comparison.label(target)} minus it |", "|---|---|---|")
    for row in summary(comparison, seed=seed, num_resamples=num):
        difference = against.get(row.method)
        minus = "" if difference is None else f"{difference.mean:.3g} [{difference.low:.3g}, {difference.high:.3g}]"
        yield f"| {comparison.label(row.method)} | {row.auc.mean:.4g} [{row.auc.low:.4g}, {row.auc.high:.4g}] | {minus} |"
