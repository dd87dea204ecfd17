"""Publish a model: a small file, and a card with data, ranges and scores."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from metastep import fqi
from metastep._core import storage
from metastep._core.errors import InputError
from metastep._core.progress import Tracker
from metastep.controllers import controller_of
from metastep.evaluation import Method, differences, join
from metastep.experiments.provenance import read_dataset
from metastep.experiments.run import Run
from metastep.experiments.stages import read_fitted
from metastep.fqi.base import AnyModel
from metastep.fqi.model import recorded_model
from metastep.report.document import Command, Document, Heading, Paragraph, Part, Table, to_markdown
from metastep.report.tables import comparison_table, differences_table, target_of
from metastep.search import load_model


def publish(
    run: Run,
    name: str,
    out: Path,
    *,
    trees: int | None = None,
    command: str = "",
    force: bool = False,
    tracker: Tracker | None = None,
) -> tuple[Path, Path, float]:
    """Write the model of a run and its card to `NAME.safetensors` and `NAME.md`.

    Of several models, it is the one whose method the others are compared with. `trees` is the number of trees to keep of every
    forest, by default all. The card has the SHA-256 of the model, so that `load_model` detects a pair that does not belong
    together. Return both paths, and the share of observations for which the packed model proposes exactly the same.
    """
    require_free(name, out, force)
    followed = run.models_needed[0] if len(run.models_needed) == 1 else ""
    if run.comparison_file.exists():
        followed = run.methods[target_of(run.comparison)].model
    learned, env = run.of_model(followed), run.config.env.name
    whole = read_fitted(learned)[0]
    small, content, same, about = _packed(whole, learned, trees)
    parts, seen = [*_training(whole, learned)], tuple(part.name for part in small.record.observation)
    if run.comparison_file.exists():
        mdp = learned.mdp
        method = Method(name, mdp.rule, controller_of(small), space=mdp.space, observation=seen or None)
        comparison = join([run.test([method], tracker=tracker), run.comparison])
        resamples: Any = {"seed": run.config.seed, "num_resamples": run.config.compare.num_resamples}
        tasks = f"{comparison.num_tasks} test tasks, with 95 % intervals. AUC is the mean return over the updates."
        parts += [Heading(f"Scores on {env}"), Paragraph(f"{tasks} {name} is this file.")]
        paired = differences(comparison, name, **resamples)
        parts += [comparison_table(comparison, **resamples), differences_table(comparison, name, paired)]
    versions = dict(sorted(whole.record.versions.items()))
    device = versions.pop("device", "unknown")
    if isinstance(whole, fqi.Model):
        device = f"{read_dataset(learned, verify=False).environment['device']}; the forests were fitted on a CPU"
    fitted_with = ", ".join(f"{package} {version}" for package, version in versions.items())
    made = run.command() or f"# the run in {run.path.name}"
    parts += [Heading("Made by"), Command(f"{made}\n{command}")]
    parts += [Paragraph(f"Simulated on {device}, with {fitted_with}.")]
    parts += [Heading("File"), Paragraph(f"{len(content) / 1000:.0f} kB: {about}")]
    document = Document(name, f"Proposes the updates of {whole.record.rule_name} on {env}.", parts)
    return *_write_pair(name, out, content, to_markdown(document, ""), force), same


def publish_folder(folder: Path, name: str, out: Path, *, force: bool = False) -> tuple[Path, Path]:
    """Write the model and the card of a folder that is no run, with model.safetensors and card.md, as `publish` does."""
    require_free(name, out, force)
    content, card = (storage.read_bytes(folder / file) for file in ("model.safetensors", "card.md"))
    load_model(folder / "model.safetensors")  # raises if it is not a model
    return _write_pair(name, out, content, card.decode("utf-8", "replace"), force)


def require_free(name: str, out: Path, force: bool) -> tuple[Path, Path, bool]:
    """Return the paths of model and card, and whether only the model exists; a bad name or existing files are an error."""
    if not name.replace("-", "").isalnum():
        raise InputError(f"--name: {name!r} must consist of letters, digits and hyphens.")
    file, card = out / f"{name}.safetensors", out / f"{name}.md"
    # A process that was killed between the two writes left a model without its card: the same command adds the card.
    is_half = file.is_file() and not os.path.lexists(card)
    storage.require_new(file, force=force or is_half)
    storage.require_new(card, force=force)
    return file, card, is_half


def _write_pair(name: str, out: Path, content: bytes, document: str, force: bool) -> tuple[Path, Path]:
    """Write a model and its card, which names the model's SHA-256."""
    file, card, is_half = require_free(name, out, force)
    text = f"{document}\nSHA-256: `{hashlib.sha256(content).hexdigest()}`\n".encode()

    def write_both(temporary: Path) -> None:
        temporary.write_bytes(text)  # before the model is replaced, so that a full disk changes neither
        if card.exists() and not recorded_model(card):
            card.unlink()  # of version 0.2: beside another model it could not be recognised
        if not (is_half and storage.read_bytes(file) == content):
            storage.write_new(file, content, force=force)

    storage.create_folder(out)
    with storage.write_lock(out, recursive=False):  # two commands with the same name must not mix their files
        storage.write_new(card, write_both, force=force)
    return file, card


def _packed(whole: AnyModel, run: Run, trees: int | None) -> tuple[Any, bytes, float, str]:
    """Return the packed model, its file, the share of observations with exactly the same proposal, and a description."""
    if not isinstance(whole, fqi.Model):
        if trees is not None:
            raise InputError(f"--trees: {trees} must not be given, a searched model has none.")
        return whole, storage.read_bytes(run.model_file), 1.0, "the network's weights and its record."
    small = whole.only_selected() if trees is None else whole.only_selected().with_trees(trees)
    with TemporaryDirectory() as folder:
        file = Path(folder, "model.safetensors")
        fqi.save_model(small, file, packed=True)
        content, small = storage.read_bytes(file), fqi.load_model(file)
    seen = read_dataset(run, verify=False).transitions([part.name for part in whole.record.observation]).observation
    seen = seen[:: max(1, len(seen) // 2000)]  # enough to compare the two models on
    same = float(np.mean(np.all(np.atleast_2d(whole.act(seen).T == small.act(seen).T), axis=0)))
    grown, kept = (each.record.regressor.options.get("trees") for each in (whole, small))
    thinned = f"{kept} of {grown} trees of each forest, " if kept != grown else ""
    proposed = f"On {100 * same:.2f} % of the observations in the training data it proposes what the whole model does."
    return small, content, same, f"the selected iteration, {thinned}numbers rounded. {proposed}"


def _training(model: AnyModel, run: Run) -> Iterator[Part]:
    """Yield the parts of a card on data, selection and ranges."""
    config, space, rollout, record = run.config, run.mdp.env.context_space, run.config.rollout, model.record
    bounds = zip(space.names, space.low, space.high, strict=True)
    tasks = ", ".join(f"{coordinate} {low:g} to {high:g}" for coordinate, low, high in bounds)
    batch = f"{rollout.num_envs} environments of {rollout.num_steps} steps"
    if rollout.num_envs is None:
        batch = f"{rollout.num_episodes} episodes of {rollout.horizon} steps"
    amounts, amount = "learners of a round, rounds", f"{config.collect.num_meta_episodes}, {config.collect.rounds}"
    if not isinstance(model, fqi.Model):
        amounts = "controllers of a generation, generations"
        amount = f"{2 * config.search.pairs}, {config.search.generations}"
    row, num = (config.env.name, tasks, amount, batch, str(config.meta.num_updates)), config.selection.num_tasks
    yield Heading("Trained on")
    yield Table(("family", "tasks", amounts, "batch", "updates"), [row])
    if isinstance(model, fqi.Model):
        data, selected = record.training_data, f"Iteration {record.selected_iteration} of {len(model.q_functions)}"
        made = f"{data.tuples} updates in all, seed {data.seed}, data {data.fingerprint[:16]}."
        yield Paragraph(f"{made} {selected} was selected on {num} validation tasks.")
        chosen = [(each.name or "step", each.low, each.high, each.scale) for each in record.branches]
    else:
        scores = ", ".join(f"{each.level} {each.score:.4g} (error {each.error:.2g})" for each in record.validation)
        made = f"Searched in {record.search_steps:.3g} steps, seed {record.seed}: a {record.level}."
        yield Paragraph(f"{made} Scores on {num} validation tasks: {scores}.")
        chosen = [*zip(record.names, record.low, record.high, record.scales, strict=True)]
    yield from range_tables(record, chosen)


def range_tables(record: Any, chosen: Sequence[tuple[str, float, float, str]]) -> Iterator[Part]:
    """Yield the ranges of what a model sees, and of what it proposes: names, ends and scales."""
    ends = zip(record.feature_names, record.feature_low, record.feature_high, strict=True)
    seen = [(name, f"{low:.4g}", f"{high:.4g}") for name, low, high in ends]
    steps = [(name, f"{low:g}", f"{high:g}", scale) for name, low, high, scale in chosen]
    yield Heading("Ranges")
    yield Paragraph("Where a loop of PPO or A2C leaves them, its own values are used, and a warning says so.")
    yield Table(("what it sees", "smallest", "largest"), seen, (1, 2))
    yield Table(("what it proposes", "smallest", "largest", "scale"), steps, (1, 2))
