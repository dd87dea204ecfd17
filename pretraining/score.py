"""The final test of a model on families that took no part in anything else, scores by the number of families, and the card."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from metastep import InputError, SearchedModel, load_model
from metastep.evaluation.intervals import mean_interval
from metastep.experiments.publishing import range_tables
from metastep.experiments.searching import storage
from metastep.mdp import ActorCriticMDP
from metastep.mdp.blocks import Stream
from metastep.report.document import Command, Document, Heading, Paragraph, Part, Table, to_markdown, write_picture
from metastep.report.figures import alone, points
from metastep.search import Level
from metastep.search.controller import model_parts
from metastep.search.evolution import finite
from pretraining import rates, recipe
from pretraining.loops import PERCENT
from pretraining.rates import GRID, Rate, Rates
from pretraining.recipe import MARGIN, Mdps, Plan, block_of
from pretraining.work import Ahead, Work, for_all

METHODS = ("idle", "universal", "own", "model")
_LIMITS = (
    "Searched in simulation, on small networks and short budgets: hundreds of updates at most. Loops far from those above, other"
    " rules than PPO, images and recurrent policies are not covered. A loss on a family of the final test is listed as it is."
)
_OF_FAMILIES = ("family", "for", "loop", "actions", "horizon", "discount", "share of the universal rate's gain")
_OF_LOOPS = ("loop", "environments x steps", "minibatch, gradient steps", "updates", "networks", "normalised")


def score_all(work: Work) -> dict[str, Any]:
    """Test the model on all families of the final test; the card has what is known after each of them."""
    file = work.folder.path / "model.safetensors"
    if not file.exists():
        raise InputError(f"--out: {work.folder.path} has no model yet; run `python -m pretraining train` first.")
    model: Any = load_model(file)
    universal = Rate(**model.record.configuration["universal_rate"])
    mdps, rows = _test_mdps(work.plan), dict[str, Any]()
    scores = {"model": model.fingerprint, "rows": rows}
    with Ahead(mdps.values()) as ahead:
        ahead.prepare(model.network)
        for name, mdp in mdps.items():
            known = rates_tested(work, name, mdp, universal)
            rows[name] = row_of(known | model_tested(work, name, mdp, model)) | {"loop": work.plan.loop_of[name]}
            work.folder.write("scores", scores)
            write_card(work, model)
    return scores


def _test_mdps(plan: Plan) -> dict[str, ActorCriticMDP]:
    mdps = plan.mdps(plan.test).items()
    return {name: replace(mdp, block_size=max(plan.test_tasks, mdp.block_size)) for name, mdp in mdps}


def rates_tested(work: Work, name: str, mdp: ActorCriticMDP, universal: Rate) -> dict[str, Any]:
    """Return the scores of schedules of the rate on the test tasks of a family, by method, and its own best schedule."""
    own = GRID[recipe.tuned_rates(work, name, mdp).mean(axis=1).argmax()]
    known = {method: Rates([rate]) for method, rate in zip(METHODS, (rates.IDLE, universal, own), strict=False)}
    found = work.kept(f"test-rates/{name}", lambda: _scores(work, name, mdp, known), [str(universal), str(own)])
    return found | {"own_rate": str(own)}


def model_tested(work: Work, name: str, mdp: ActorCriticMDP, model: SearchedModel) -> dict[str, Any]:
    """Return the scores of a model on the test tasks of a family."""
    searched = for_all(mdp, *model_parts(model, mdp))
    return dict(work.kept(f"test/{name}", lambda: _scores(work, name, mdp, {"model": searched}), model.fingerprint))


def _scores(work: Work, name: str, mdp: ActorCriticMDP, controllers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scores of controllers on the test tasks of a family; None for learners that diverged."""
    ran = work.play(f"test {name}", [block_of(mdp, own, work.seed, Stream.TEST) for own in controllers.values()])
    rows = [rates.curve_scores(one, mdp)[: work.plan.test_tasks].tolist() for one in ran]
    sound = ([own if math.isfinite(own) else None for own in row] for row in rows)
    return dict(zip(controllers, sound, strict=True))


def score_by_number(work: Work, level: Level) -> dict[str, list[float]]:
    """Search one level with fewer families, none of which depends on the model, and draw its leads by their number."""
    if not work.plan.sizes:
        allowed = " and ".join(name for name, other in recipe.PLANS.items() if other.sizes)
        raise InputError(f"--plan: it has no numbers of families to compare, allowed are {allowed}.")
    plan, found = work.plan, dict[str, list[float]]()
    judges, population, mdps = plan.mdps(plan.selection), plan.mdps(plan.search, twins=2), _test_mdps(plan)
    with Ahead(mdps.values()):
        best = recipe.best_rates(work, recipe.tuned_families(plan, population, judges))
        known = {name: rates_tested(work, name, mdp, GRID[best[0]]) for name, mdp in mdps.items()}
    each = plan.size_generations * plan.families_at_once + 2 * len(plan.selection) + len(plan.test)
    work.announce("with fewer families", len(plan.sizes) * each)
    for number in plan.sizes:
        found[str(number)] = with_fewer(work, number, level, mdps, known, *best)
        work.folder.write("sizes", {"level": level, "leads": found})
        how: Any = {"xlabel": "families in the search", "ylabel": "lead over the universal rate"}
        panel = points("", np.array([*found.values()]), [*map(int, found)], **how)
        caption = (
            f"Mean lead of a {level} on the families of the final test, in shares of a rate's gain; 95 % over families."
        )
        write_picture(alone("families", caption, panel), work.folder.path)
    if (file := work.folder.path / "model.safetensors").exists():
        write_card(work, load_model(file))  # type: ignore[arg-type]
    return found


def with_fewer(work: Work, number: int, level: Level, mdps: Mdps, known: Any, universal: int, scaled: Any) -> Any:
    """Search one level with the first so many families of the plan; return its leads on all families of the test."""
    plan = replace(work.plan, search=work.plan.search[:number], levels=(level,), generations=work.plan.size_generations)
    folder = recipe.open_plan(work.folder.path / f"families-{number}-{level}", plan, work.seed)
    inside = work._replace(folder=folder, plan=plan)

    def leads() -> list[float]:
        population, judges = plan.mdps(plan.search, twins=2), plan.mdps(plan.selection)
        worth = recipe.references(work, judges, universal)
        with Ahead((judges | population | dict(mdps)).values()) as ahead:
            found = recipe.search_levels(inside, population, judges, worth, scaled, ahead, is_whole=True)
        network, course = found[level]
        controllers = {name: for_all(mdp, network, course.best) for name, mdp in mdps.items()}
        own = {name: _scores(inside, name, mdp, {"model": controllers[name]}) for name, mdp in mdps.items()}
        return [_lead(known[name] | own[name], "universal")[0] for name in mdps]

    return inside.kept("leads", leads, {name: own["universal"] for name, own in known.items()})


def _lead(known: Any, over: str) -> list[float]:
    """Return the lead of the model over another method in shares of the larger gain of the two schedules, with its 95 % interval.

    A learner that diverged counts as the worst that did not.
    """
    scores = dict(zip(METHODS, finite(np.array([known[method] for method in METHODS], np.float64)), strict=True))
    unit = rates.reference(np.stack([scores["idle"], max(scores["universal"], scores["own"], key=np.mean)]), 1)[1]
    leads = (scores["model"] - scores[over]) / unit
    low, high = mean_interval(leads[None])
    return [float(leads.mean()), float(low[0]), float(high[0])]


def row_of(known: Any) -> dict[str, Any]:
    """Return leads of the model over both schedules, with their 95 % intervals over tasks, and the means of all methods."""
    means = finite(np.array([known[method] for method in METHODS], np.float64)).mean(axis=1).tolist()
    leads = {f"over_{name}": _lead(known, name) for name in METHODS[1:3]}
    return {"own_rate": known["own_rate"], "means": dict(zip(METHODS, means, strict=True)), **leads}


def tables(scores: Any, sizes: Any, num_tasks: int, universal: Rate) -> list[Part]:
    """Return what a card says of the final test, and the command prints."""
    rows = scores["rows"]
    leads = np.array([(row["over_universal"], row["over_own"]) for row in rows.values()])
    wins, losses = (leads[..., 1] > 0.0).sum(axis=0), (leads[..., 2] < 0.0).sum(axis=0)
    text = (
        f"{num_tasks} tasks of each of {len(rows)} families of other classes. Leads are shares of the gain of the universal rate"
        f" ({universal}) or of the family's own tuned rate, the larger one, with 95 % intervals over tasks. Above 0 on {wins[0]}"
        f" families (below on {losses[0]}) and, over the family's own tuned rate, on {wins[1]} (below on {losses[1]})."
    )
    shown = "{:+.3f} ({:+.3f} to {:+.3f})".format
    pairs = {name: (shown(*row["over_universal"]), shown(*row["over_own"])) for name, row in rows.items()}
    body = [(name, row["loop"], *pairs[name], row["own_rate"]) for name, row in rows.items()]
    head: tuple[str, ...] = ("family", "loop", "over the universal rate", "over its own tuned rate", "its own rate")
    parts: list[Part] = [Heading("Final test"), Paragraph(text), Table(head, body)]
    if sizes is None:
        return parts
    by_number = [(number, f"{np.mean(own):+.3f}") for number, own in sizes["leads"].items()]
    about = f"A {sizes['level']}, searched for fewer generations with the first families of the list:"
    head = ("families in the search", "mean lead over the universal rate")
    return [*parts, Paragraph(about), Table(head, by_number, (0, 1))]


def write_card(work: Work, model: SearchedModel, command: str = "") -> None:
    """Write card.md beside the model, made by a command, with what is known; `metastep publish` adds the checksum."""
    made = work.folder.write("command", command) if command else work.folder.read("command")
    record, scores = model.record, work.folder.read("scores")
    setting, known, universal = record.setting, record.configuration, Rate(**record.configuration["universal_rate"])
    families, listed = [], []
    for name, own in setting["families"].items():
        actions = f"{own['num_actions']} {'choices' if own['actions'] == 'discrete' else 'real'}"
        shares = (f"{level} {found[name]:.2f}" for level, found in known["selection_scores"].items() if name in found)
        size = actions, str(own["horizon"]), f"{own['discount']:g}"
        families.append((name, own["use"], own["loop"], *size, ", ".join(shares)))
    for loop in setting["loops"]:
        network = f"{' x '.join(map(str, loop['hidden']))} {loop['activation']}"
        sizes = f"{loop['num_envs']} x {loop['num_steps']}", f"{loop['minibatch_size']}, {loop['gradient_steps']}"
        more = str(loop["num_updates"]), network, " and ".join(loop["normalises"]) or "nothing"
        listed.append((loop["name"], *sizes, *more))
    parts: list[Part] = [Heading("Trained on"), Table(_OF_FAMILIES, families)]
    parts += [Heading("Loops"), Table(_OF_LOOPS, listed)]
    levels = ", ".join(f"{each.level} {each.score:.3f} (error {each.error:.2g})" for each in record.validation)
    text = f"Searched in {record.search_steps:.3g} steps, seed {record.seed}, generations {known['generations']}: a "
    text += f"{record.level}, the simplest level within {MARGIN} of the best. Shares of the gain of the universal rate"
    parts.append(Paragraph(f"{text} ({universal}) on the selection families, cut off to -1 to 3: {levels}."))
    if scores is not None and scores["model"] == model.fingerprint:
        parts += tables(scores, work.folder.read("sizes"), work.plan.test_tasks, universal)
    names = [f"{name}, percent of the loop's own" if name == PERCENT.name else name for name in record.names]
    parts += range_tables(record, [*zip(names, record.low, record.high, record.scales, strict=True)])
    parts += [Heading("Limits"), Paragraph(_LIMITS), Heading("Made by"), Command(made or "python -m pretraining train")]
    versions = dict(sorted(record.versions.items()))
    device = versions.pop("device", "unknown")
    packages = ", ".join(f"{package} {version}" for package, version in versions.items())
    parts.append(Paragraph(f"Simulated on {device}, with {packages}."))
    about = f"Proposes all hyperparameters of PPO's updates, in loops of your own; trained on {len(families)} families."
    storage.write_atomically(work.folder.path / "card.md", to_markdown(Document("ppo", about, parts), "").encode())
