"""Publish the model of a run, or one fitted on several families: a small file, and a card with data, ranges and scores."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from itertools import product
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from metastep import features, fqi
from metastep._core import storage
from metastep._core.errors import InputError
from metastep._core.progress import Tracker
from metastep._core.storage import require_new, write_new
from metastep.controllers import controller_of
from metastep.evaluation import Comparison, Method, differences, join
from metastep.experiments.config import build_mdp, parse
from metastep.experiments.provenance import read_dataset
from metastep.experiments.run import Run
from metastep.experiments.schema import Experiment
from metastep.experiments.stages import fit_on, read_fitted, validate
from metastep.fqi import Model, recorded_model
from metastep.fqi.base import AnyModel
from metastep.mdp.history import Transitions
from metastep.report.document import Command, Document, Heading, Paragraph, Part, Table, to_markdown
from metastep.report.tables import comparison_table, differences_table, target_of
from metastep.search import load_model


def publish(
    runs: Sequence[Run],
    name: str,
    out: Path,
    *,
    trees: int | None = None,
    command: str = "",
    force: bool = False,
    tracker: Tracker | None = None,
) -> tuple[Path, Path, float]:
    """Write the model of a run, or one fitted on the data of several runs, and its card, to `NAME.safetensors` and `NAME.md`.

    Of several models in a run, it is the one whose method the others are compared with. `trees` is the number of trees to keep of
    every forest, by default all. The card has the SHA-256 of the model, so that `load_model` detects a pair that does not belong
    together. Return both paths, and the share of observations for which the packed model proposes exactly the same.
    """
    _require_free(name, out, force)
    followed, (first, *others) = "", runs
    if not others:  # the model that the target method follows; without a comparison, the run's own
        followed = first.models_needed[0] if len(first.models_needed) == 1 else ""
        if first.comparison_file.exists():
            followed = first.methods[target_of(first.comparison)].model
        whole = read_fitted(first.of_model(followed))[0]
    elif any(run.config.learner == "search" for run in runs):
        raise InputError("publish: runs that search have no data to fit one model on; publish them one by one.")
    else:
        whole = pooled(runs, tracker=tracker)
    learned = [run.of_model(followed) for run in runs]
    small, content, same, about = _packed(whole, learned, trees)
    parts = [*_training(whole, learned)]
    for run in runs:
        if run.comparison_file.exists():
            comparison = join([measured(small, run, name, name, like=followed, tracker=tracker), run.comparison])
            resamples: Any = {"seed": run.config.seed, "num_resamples": run.config.compare.num_resamples}
            tasks = f"{comparison.num_tasks} test tasks, with 95 % intervals. AUC is the mean return over the updates."
            parts += [Heading(f"Scores on {run.config.env.name}"), Paragraph(f"{tasks} {name} is this file.")]
            paired = differences(comparison, name, **resamples)
            parts += [comparison_table(comparison, **resamples), differences_table(comparison, name, paired)]
    versions = dict(sorted(whole.record.versions.items()))
    devices = versions.pop("device", "unknown")
    if isinstance(whole, Model):
        distinct = dict.fromkeys(read_dataset(run, verify=False).environment["device"] for run in learned)
        devices = f"{', '.join(distinct)}; the forests were fitted on a CPU"
    fitted_with = ", ".join(f"{package} {version}" for package, version in versions.items())
    commands = [*(run.command() or f"# the run in {run.path.name}" for run in runs), command]
    parts += [Heading("Made by"), Command("\n".join(commands))]
    parts += [Paragraph(f"Simulated on {devices}, with {fitted_with}.")]
    parts += [Heading("File"), Paragraph(f"{len(content) / 1000:.0f} kB: {about}")]
    families = ", ".join(run.config.env.name for run in runs)
    document = Document(name, f"Proposes the updates of {whole.record.rule_name} on {families}.", parts)
    return *_write_pair(name, out, content, to_markdown(document, ""), force), same


def publish_folder(folder: Path, name: str, out: Path, *, force: bool = False) -> tuple[Path, Path]:
    """Write the model and the card of a folder that is no run, with model.safetensors and card.md, as `publish` does."""
    _require_free(name, out, force)
    content, card = (storage.read_bytes(folder / file) for file in ("model.safetensors", "card.md"))
    load_model(folder / "model.safetensors")  # raises if it is not a model
    return _write_pair(name, out, content, card.decode("utf-8", "replace"), force)


def _require_free(name: str, out: Path, force: bool) -> tuple[Path, Path, bool]:
    """Return the paths of model and card, and whether only the model exists; a bad name or existing files are an error."""
    if not name.replace("-", "").isalnum():
        raise InputError(f"--name: {name!r} must consist of letters, digits and hyphens.")
    file, card = out / f"{name}.safetensors", out / f"{name}.md"
    # A process that was killed between the two writes left a model without its card: the same command adds the card.
    is_half = file.is_file() and not os.path.lexists(card)
    require_new(file, force=force or is_half)
    require_new(card, force=force)
    return file, card, is_half


def _write_pair(name: str, out: Path, content: bytes, document: str, force: bool) -> tuple[Path, Path]:
    """Write a model and its card, which names the model's SHA-256."""
    file, card, is_half = _require_free(name, out, force)
    text = f"{document}\nSHA-256: `{hashlib.sha256(content).hexdigest()}`\n".encode()

    def write_both(temporary: Path) -> None:
        temporary.write_bytes(text)  # before the model is replaced, so that a full disk changes neither
        if card.exists() and not recorded_model(card):
            card.unlink()  # of version 0.2: beside another model it could not be recognised
        if not (is_half and storage.read_bytes(file) == content):
            write_new(file, content, force=force)

    storage.create_folder(out)
    with storage.write_lock(out, recursive=False):  # two commands with the same name must not mix their files
        write_new(card, write_both, force=force)
    return file, card


def _packed(whole: AnyModel, runs: Sequence[Run], trees: int | None) -> tuple[Any, bytes, float, str]:
    """Return the packed model, its file, the share of observations with exactly the same proposal, and a description."""
    if not isinstance(whole, Model):
        if trees is not None:
            raise InputError(f"--trees: {trees} must not be given, a searched model has none.")
        return whole, storage.read_bytes(runs[0].model_file), 1.0, "the network's weights and its record."
    small = whole.only_selected() if trees is None else whole.only_selected().with_trees(trees)
    with TemporaryDirectory() as folder:
        file = Path(folder, "model.safetensors")
        fqi.save_model(small, file, packed=True)
        content, small = storage.read_bytes(file), fqi.load_model(file)
    names = [part.name for part in whole.record.observation]
    seen = np.concatenate([read_dataset(run, verify=False).transitions(names).observation for run in runs])
    seen = seen[:: max(1, len(seen) // 2000)]  # enough to compare the two models on
    same = float(np.mean(np.all(np.atleast_2d(whole.act(seen).T == small.act(seen).T), axis=0)))
    grown, kept = (each.record.regressor.options.get("trees") for each in (whole, small))
    thinned = f"{kept} of {grown} trees of each forest, " if kept != grown else ""
    proposed = f"On {100 * same:.2f} % of the observations in the training data it proposes what the whole model does."
    return small, content, same, f"the selected iteration, {thinned}numbers rounded. {proposed}"


def _training(model: AnyModel, runs: Sequence[Run]) -> Iterator[Part]:
    """Yield the parts of a card on data, selection and ranges."""
    rows, record = [], model.record
    for run in runs:
        config, space, rollout = run.config, run.mdp.env.context_space, run.config.rollout
        bounds = zip(space.names, space.low, space.high, strict=True)
        tasks = ", ".join(f"{coordinate} {low:g} to {high:g}" for coordinate, low, high in bounds)
        batch = f"{rollout.num_envs} environments of {rollout.num_steps} steps"
        if rollout.num_envs is None:
            batch = f"{rollout.num_episodes} episodes of {rollout.horizon} steps"
        amount = f"{config.collect.num_meta_episodes}, {config.collect.rounds}"
        if not isinstance(model, Model):
            amount = f"{2 * config.search.pairs}, {config.search.generations}"
        rows.append((config.env.name, tasks, amount, batch, str(config.meta.num_updates)))
    amounts = "learners of a round, rounds" if isinstance(model, Model) else "controllers of a generation, generations"
    yield Heading("Trained on")
    yield Table(("family", "tasks", amounts, "batch", "updates"), rows)
    num = sum(run.config.selection.num_tasks for run in runs)
    if isinstance(model, Model):
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


def measured(model: Any, run: Run, name: str, label: str, *, like: str, tracker: Tracker | None = None) -> Comparison:
    """Run a model on the test tasks of a run; `like` names the model of the run whose rule and space it has."""
    seen, mdp = tuple(part.name for part in model.record.observation), run.of_model(like).mdp
    method = Method(name, mdp.rule, controller_of(model), label=label, space=mdp.space, observation=seen or None)
    return run.test([method], tracker=tracker)


def pooled(runs: Sequence[Run], *, tracker: Tracker | None = None) -> Model:
    """Fit one model on the training data of several runs, and select its iteration on the validation tasks of all of them.

    It observes the features that have no unit; these, the space and the rule must be the same in all runs. The settings of the
    fit are those of the first run.
    """
    families = {run.config.env.name: run for run in runs}
    if len(families) < max(2, len(runs)):
        names = ", ".join(run.config.env.name for run in runs)
        raise InputError(f"publish: the runs are of {names}, allowed are two families or more, each once.")
    configs = {name: _without_units(run.config) for name, run in families.items()}
    mdps = first, *others = [build_mdp(config) for config in configs.values()]
    for other, what in product(others, ("observation", "space", "rule.name")):
        if attrgetter(what)(first) != attrgetter(what)(other):
            raise InputError(f"publish: {first.env.name} and {other.env.name} must have the same {what}.")
    parts, reaches = [], {}
    for name, run in families.items():
        # Rewards are shares of the middle 90 % of a family's returns, so that no family counts more than another.
        returns = np.concatenate([history.mean_return.ravel() for history in run.dataset.blocks()])
        low, high = (float(end) for end in np.percentile(returns[np.isfinite(returns)], (5.0, 95.0)))
        if high <= low:
            raise InputError(f"Dataset {run.data_folder}: its returns do not vary, so there is nothing to learn.")
        reaches[name] = low, high - low
        part = run.dataset.transitions(first.observation)
        parts.append(part._replace(reward=part.reward / np.float32(high - low)))
    everything = Transitions(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))

    def shared(tables: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {name: value for name, value in tables[0].items() if all(t.get(name) == value for t in tables)}

    settings = [mdp.setting for mdp in mdps]
    setting = shared(settings) | {"rule": shared([each["rule"] for each in settings])}
    setting |= {"env": "several", "families": [*families]}
    recorded = {"families": {name: each.to_dict() for name, each in configs.items()}, "reaches": reaches}
    how: Any = {"tracker": tracker, "setting": setting, "configuration": recorded}
    data = storage.sha256_of_json({name: read_dataset(run, verify=False).checksum for name, run in families.items()})
    model = fit_on(configs[first.env.name], first, everything, data, **how)
    # Iterations are scored by the mean over families of their mean return, in the family's units.
    scores = []
    for name, run in families.items():
        comparison = validate(Run(run.path, configs[name], run.tasks), model, tracker=tracker)
        scores.append([curve[:, 1:].mean(dtype=np.float64) / reaches[name][1] for curve in comparison.returns])
    table = np.array(scores)  # (families, iterations)
    finite = np.flatnonzero(np.isfinite(table).all(axis=0)).tolist()
    if not finite:
        raise InputError("selection: every iteration diverged on validation tasks.")
    curves = [fqi.ValidationCurve(i + 1, float(table[:, i].mean()), tuple(table[:, i].tolist())) for i in finite]
    return model.with_validation(curves)


def _without_units(config: Experiment) -> Experiment:
    """Return the experiment with features that have no unit, hence the same meaning in every family."""
    free = {*features.SETS["training"], *features.SETS["unit-free"]}
    kept = [name for name in config.meta.observation if name in free]
    if not kept:
        raise InputError(f"publish: all that {config.env.name} observes carries a unit, so families cannot be pooled.")
    data = config.to_dict()
    return parse(data | {"meta": data["meta"] | {"observation": kept}})
