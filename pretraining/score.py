"""The final test of a model, on families that took no part in anything else, and scores against the number of families.

`python -m pretraining score` does the final test first: each of ten families takes two blocks to tune its own rate and four to
compare. On one H200, whose programs take 2 min to compile, these 60 blocks of 256 learners take 2.2 min. Then it searches the
level that was selected with fewer families, 12 generations for each number: four times 64 blocks of search and selection and 10
of the test, 11 min, and where it is feedback, whose features are observed first, 1.4 min more. Every family, generation and
number is kept once it is done.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from metastep import InputError, SearchedModel, load_model
from metastep.evaluation.intervals import mean_interval
from metastep.mdp import ActorCriticMDP
from metastep.mdp.blocks import Stream
from metastep.report.document import Heading, Paragraph, Part, Table, write_picture
from metastep.report.figures import alone, points
from metastep.search import Searched
from metastep.search.evolution import finite
from pretraining import rates
from pretraining.rates import GRID, Rate, Rates
from pretraining.recipe import Mdps, block_of, open_plan, references, search_levels, tuned_rates
from pretraining.work import Ahead, Folder, Work, for_all

METHODS = ("idle", "universal", "own", "model")
Lead = tuple[float, float, float]  # mean, and the ends of its 95 % interval over tasks


class Row(NamedTuple):
    """A family of the final test: leads of the model in shares of the larger gain of the two schedules."""

    family: str
    loop: str
    own_rate: str
    over_universal: Lead
    over_own: Lead
    returns: tuple[float, ...]  # mean scores without learning, of both schedules and of the model


class Scores(NamedTuple):
    """The final test, and leads over the universal schedule by the number of search families."""

    rows: list[Row]
    universal: Rate
    by_number: dict[int, list[float]]  # one lead for each test family, cut off as other shares are


def score_all(work: Work, report: Any = lambda *_: None) -> Scores:
    """Test the model, then search with fewer families; `report` is called with what is known after each of them."""
    file = work.folder.path / "model.safetensors"
    if not file.exists():
        raise InputError(f"--out: {work.folder.path} has no model yet; run `python -m pretraining train` first.")
    model: Any = load_model(file)
    plan, scores = work.plan, Scores([], Rate(**model.record.configuration["universal_rate"]), {})
    mdps = plan.mdps(plan.test)
    mdps = {name: replace(mdp, block_size=max(plan.test_tasks, mdp.block_size)) for name, mdp in mdps.items()}
    with Ahead(mdps.values()):
        known: dict[str, Any] = {}
        for name, mdp in mdps.items():
            known[name] = final_test(work, name, mdp, model, scores.universal)
            scores = scores._replace(rows=[row_of(name, plan, own) for name, own in known.items()])
            keep(work, scores, model, report)
        each = plan.size_generations * plan.families_at_once + 2 * len(plan.selection) + len(plan.test)
        work.announce("with fewer families", len(plan.sizes) * each)
        for number in plan.sizes:
            if number < len(plan.search):
                leads = with_fewer(work, number, model.record.level, mdps, known, scores.universal)
                scores = scores._replace(by_number=scores.by_number | {number: leads})
                keep(work, scores, model, report)
    return scores


def keep(work: Work, scores: Scores, model: SearchedModel, report: Any) -> None:
    """Write what is known so far: the scores, the figure and what `report` adds."""
    known = {"rows": [row._asdict() for row in scores.rows], "by_number": [*scores.by_number.items()]}
    work.folder.write("scores", {"model": model.fingerprint, **known})
    if scores.by_number:
        how: Any = {"xlabel": "families in the search", "ylabel": "lead over the universal rate"}
        panel = points("", np.array([*scores.by_number.values()]), [*scores.by_number], **how)
        caption = "Mean lead on the families of the final test, in shares of a tuned rate's gain; 95 % over families."
        write_picture(alone("families", caption, panel), work.folder.path)
    report(model, scores)


def final_test(work: Work, name: str, mdp: ActorCriticMDP, model: SearchedModel, universal: Rate) -> dict[str, Any]:
    """Return the scores of all methods on the same test tasks of a family, by method, and its own best schedule."""
    own = GRID[rates.best_rate(tuned_rates(work, name, mdp))]

    def scores() -> Any:
        controllers = [*(Rates([rate]) for rate in (rates.IDLE, universal, own)), Searched(model=model)]
        ran = work.play(f"test {name}", [block_of(mdp, each, work.seed, Stream.TEST) for each in controllers])
        found = finite(np.stack([rates.curve_scores(one, mdp) for one in ran]))[:, : work.plan.test_tasks]
        return {"own_rate": str(own), **dict(zip(METHODS, found.tolist(), strict=True))}

    found: dict[str, Any] = work.kept(f"test/{name}", scores, model.fingerprint)
    return found


def with_fewer(work: Work, number: int, level: Any, mdps: Mdps, known: Any, universal: Rate) -> list[float]:
    """Search one level with the first so many families of the plan; return its leads on all families of the test."""
    plan = replace(work.plan, search=work.plan.search[:number], levels=(level,), generations=work.plan.size_generations)
    inside = work._replace(
        folder=open_plan(work.folder.path / f"families-{number}-{level}", plan, work.seed), plan=plan
    )

    def leads() -> list[float]:
        population, judges = plan.mdps(plan.search, twins=2), plan.mdps(plan.selection)
        worth = references(work, judges, GRID.index(universal))
        with Ahead((judges | population).values()) as ahead:
            network, course = search_levels(inside, population, judges, worth, ahead, is_whole=True)[level]
        controllers = [(mdp, for_all(mdp, network, course.best)) for mdp in mdps.values()]
        ran = inside.play(
            f"test with {number} families", [block_of(*each, work.seed, Stream.TEST) for each in controllers]
        )
        scores = (rates.curve_scores(one, mdps[name])[: plan.test_tasks] for name, one in zip(mdps, ran, strict=True))
        return [rates.share(own, *_reference(known[name])) for name, own in zip(mdps, scores, strict=True)]

    found: list[float] = inside.kept("leads", leads, {name: own["universal"] for name, own in known.items()})
    return found


def _reference(known: Any) -> tuple[float, float]:
    """Return the mean score of the universal schedule, and the larger gain of the two schedules."""
    idle, *both = (np.array(known[name]) for name in METHODS[:3])
    return float(both[0].mean()), rates.reference(np.stack([idle, max(both, key=np.mean)]), 1)[1]


def row_of(name: str, plan: Any, known: Any) -> Row:
    """Return the row of a family."""
    scores = {method: np.array(known[method]) for method in METHODS}
    leads = np.stack([scores["model"] - scores[other] for other in METHODS[1:3]]) / _reference(known)[1]
    over: Any = [tuple(map(float, each)) for each in zip(leads.mean(axis=1), *mean_interval(leads), strict=True)]
    means = tuple(float(own.mean()) for own in scores.values())
    return Row(name, plan.loop_of[name], known["own_rate"], over[0], over[1], means)


def lines(scores: Scores) -> list[tuple[str, ...]]:
    """Return the cells of every family."""

    def shown(lead: Lead) -> str:
        return f"{lead[0]:+.3f} ({lead[1]:+.3f} to {lead[2]:+.3f})"

    return [(r.family, r.loop, shown(r.over_universal), shown(r.over_own), r.own_rate) for r in scores.rows]


def tables(scores: Scores, num_tasks: int) -> list[Part]:
    """Return what a card says of the final test."""
    pairs = np.array([(row.over_universal, row.over_own) for row in scores.rows])
    wins, losses = (pairs[..., 1] > 0.0).sum(axis=0), (pairs[..., 2] < 0.0).sum(axis=0)
    text = (
        f"{num_tasks} tasks of each of {len(pairs)} families of other classes. Leads are shares of the gain of the universal rate"
        f" ({scores.universal}) or of the family's own tuned rate, the larger one, with 95 % intervals over tasks. Above 0 on"
        f" {wins[0]} families (below on {losses[0]}) and, over the family's own tuned rate, on {wins[1]} (below on {losses[1]})."
    )
    head: tuple[str, ...] = ("family", "loop", "over the universal rate", "over its own tuned rate", "its own rate")
    parts: list[Part] = [Heading("Final test"), Paragraph(text), Table(head, lines(scores))]
    by_number = [(str(number), f"{np.mean(leads):+.3f}") for number, leads in scores.by_number.items()]
    about = "The same level, searched for fewer generations with the first families of the list:"
    head = ("families in the search", "mean lead over the universal rate")
    return [*parts, Paragraph(about), Table(head, by_number, (0, 1))] if by_number else parts


def print_scores(scores: Scores) -> None:
    """Print a line for each family, and the means by the number of search families."""
    for family, loop, universal, own, rate in lines(scores):
        print(f"{family} ({loop}): over the universal rate {universal}, over its own ({rate}) {own}")
    for number, leads in scores.by_number.items():
        print(f"{number} families in the search: mean lead over the universal rate {np.mean(leads):+.3f}")


def read_scores(folder: Folder, model: SearchedModel) -> Scores | None:
    """Return the scores of a folder, if there are any of this model."""
    if (found := folder.read("scores")) is None or found["model"] != model.fingerprint:
        return None
    kept: Any = (
        {name: tuple(own) if isinstance(own, list) else own for name, own in row.items()} for row in found["rows"]
    )
    universal = Rate(**model.record.configuration["universal_rate"])
    return Scores([Row(**row) for row in kept], universal, {int(number): own for number, own in found["by_number"]})
