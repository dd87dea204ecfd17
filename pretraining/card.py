"""The card of the model: families, loops, scores and limits."""

from typing import Any

from metastep import SearchedModel
from metastep.experiments.publishing import range_tables
from metastep.experiments.searching import storage
from metastep.report.document import Command, Document, Heading, Paragraph, Part, Table, to_markdown
from pretraining.rates import Rate
from pretraining.score import Scores, read_scores, tables
from pretraining.work import Work

_LIMITS = (
    "Searched in simulation, on small networks and short budgets: hundreds of updates at most. Loops far from those above, other"
    " rules than PPO, images and recurrent policies are not covered. A loss on a family of the final test is listed as it is."
)


def write_card(work: Work, command: str, model: SearchedModel, scores: Scores | None = None) -> None:
    """Write card.md beside the model, with the scores that are known; `metastep publish` adds the checksum."""
    record, scores = model.record, scores or read_scores(work.folder, model)
    setting, known = record.setting, record.configuration
    universal = Rate(**known["universal_rate"])
    parts: list[Part] = [Heading("Trained on"), Table(*_families(setting["families"], known))]
    parts += [Heading("Loops"), Table(*_loops(setting["loops"]))]
    levels = ", ".join(f"{each.level} {each.score:.3f} (error {each.error:.2g})" for each in record.validation)
    made = f"Searched in {record.search_steps:.3g} steps, seed {record.seed}: a {record.level}."
    why = f"Shares of the gain of the universal rate ({universal}) on the selection families: {levels}."
    parts += [Paragraph(f"{made} {why}"), *(tables(scores, work.plan.test_tasks) if scores is not None else [])]
    parts += range_tables(record, [*zip(record.names, record.low, record.high, record.scales, strict=True)])
    parts += [Heading("Limits"), Paragraph(_LIMITS), Heading("Made by"), Command(command)]
    versions = dict(sorted(record.versions.items()))
    device = versions.pop("device", "unknown")
    listed = ", ".join(f"{package} {version}" for package, version in versions.items())
    parts += [Paragraph(f"Simulated on {device}, with {listed}.")]
    num = len(setting["families"])
    about = f"Proposes all hyperparameters of PPO's updates, in loops of your own; trained on {num} families."
    storage.write_atomically(work.folder.path / "card.md", to_markdown(Document("ppo", about, parts), "").encode())


def _families(families: dict[str, Any], known: dict[str, Any]) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    shares: dict[str, dict[str, float]] = known["selection_scores"]
    rows = []
    for name, own in families.items():
        actions = f"{own['num_actions']} {'choices' if own['actions'] == 'discrete' else 'real'}"
        share = ", ".join(f"{level} {found[name]:.2f}" for level, found in shares.items() if name in found)
        rows.append((name, own["use"], own["loop"], actions, str(own["horizon"]), f"{own['discount']:g}", share))
    return ("family", "for", "loop", "actions", "horizon", "discount", "share of the universal rate's gain"), rows


def _loops(listed: list[dict[str, Any]]) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    rows = []
    for loop in listed:
        network = f"{' x '.join(map(str, loop['hidden']))} {loop['activation']}"
        batch = f"{loop['num_envs']} x {loop['num_steps']}"
        learns = f"{loop['minibatch_size']}, {loop['gradient_steps']}"
        normalised = " and ".join(loop["normalises"]) or "nothing"
        rows.append((loop["name"], batch, learns, str(loop["num_updates"]), network, normalised))
    return ("loop", "environments x steps", "minibatch, gradient steps", "updates", "networks", "normalised"), rows
