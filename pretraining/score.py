"""The final test of a model, on families that took no part in anything else, and scores against the number of families.

Both in shares of what the universal schedule of the rate gains: `python -m pretraining score`.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metastep import SearchedModel, Tracker
from metastep.evaluation.intervals import mean_interval
from metastep.mdp import ActorCriticMDP
from metastep.mdp.blocks import Stream
from metastep.mdp.runs import run_plans
from metastep.report.document import Heading, Paragraph, Part, Table, write_picture
from metastep.report.figures import alone, points
from metastep.search import Searched
from pretraining import rates
from pretraining.rates import GRID, Rate, Rates
from pretraining.recipe import Plan, block_of, open_plan, train, tune_rates, with_clock
from pretraining.work import Ahead, Clock, Folder

Numbers = NDArray[np.float64]


class Row(NamedTuple):
    """A family of the final test: differences of the model, with the ends of 95 % intervals over tasks."""

    family: str
    loop: str
    own_rate: Rate
    over_universal: tuple[float, float, float]  # mean, low, high; shares of the universal schedule's gain
    over_own: tuple[float, float, float]
    returns: tuple[float, float, float, float]  # mean scores without learning, of both schedules and of the model


class Scores(NamedTuple):
    """The final test, and mean leads over the universal schedule by the number of search families."""

    rows: list[Row]
    universal: Rate
    by_number: dict[int, list[float]]  # one lead for each test family


def score_all(folder: Folder, plan: Plan, seed: int, clock: Clock, tracker: Tracker) -> tuple[SearchedModel, Scores]:
    """Train the model if it is not there, test it, and do the same with fewer families; a stopped call goes on."""
    model = train(folder, plan, seed, clock, tracker)
    mdps = {name: plan.mdp(name) for name in plan.test}
    mdps = {name: replace(mdp, block_size=max(plan.test_tasks, mdp.block_size)) for name, mdp in mdps.items()}
    with Ahead(mdps.values()):
        known = test(folder, mdps, plan, seed, model, clock, tracker)
        universal = _universal(model)
        rows = [row_of(name, plan, known[name]) for name in mdps]
        by_number = {len(plan.search): [row.over_universal[0] for row in rows]}
        order = np.random.default_rng(seed).permutation(len(plan.search))
        for number in plan.sizes:
            if number >= len(plan.search):
                continue
            fewer = replace(plan, search=tuple(plan.search[index] for index in order[:number]), sizes=())
            inside = open_plan(folder.path / f"families-{number}", fewer, seed)
            other = train(inside, fewer, seed, clock, tracker, folder)
            found = run_all(inside, mdps, {"model": Searched(model=other)}, seed, clock, tracker)
            leads = []
            for name in mdps:
                idle, reached = (np.array(known[name][which]) for which in ("idle", "universal"))
                leads.append(float((np.array(found[name]["model"]) - reached).mean() / _unit(idle, reached)))
            by_number[number] = leads
    scores = Scores(rows, universal, dict(sorted(by_number.items())))
    draw(folder, scores)
    folder.write("scores", {"rows": [row._asdict() for row in rows], "by_number": [*scores.by_number.items()]})
    return model, scores


def _universal(model: SearchedModel) -> Rate:
    return Rate(**model.record.configuration["universal_rate"])


def test(
    folder: Folder,
    mdps: Mapping[str, ActorCriticMDP],
    plan: Plan,
    seed: int,
    model: SearchedModel,
    clock: Clock,
    tracker: Tracker,
) -> dict[str, dict[str, Any]]:
    """Return the scores of all methods on the test tasks, by family and method, and the family's own best schedule."""
    tuned = tune_rates(folder, mdps, plan, seed, clock, tracker)
    best = {name: rates.best_rate(scores) for name, scores in tuned.items()}
    found: dict[str, dict[str, Any]] = {}
    for name, mdp in mdps.items():
        methods = {"idle": rates.IDLE, "universal": _universal(model), "own": GRID[best[name]]}
        controllers: dict[str, Any] = {method: Rates([rate]) for method, rate in methods.items()}
        controllers["model"] = Searched(model=model)
        found |= run_all(folder, {name: mdp}, controllers, seed, clock, tracker)
        found[name] |= {"own_rate": best[name]}
    return found


def run_all(
    folder: Folder,
    mdps: Mapping[str, ActorCriticMDP],
    controllers: Mapping[str, Any],
    seed: int,
    clock: Clock,
    tracker: Tracker,
) -> dict[str, dict[str, Any]]:
    """Run controllers on the same test tasks of each family; every family is kept once it is done."""
    missing = {name: mdp for name, mdp in mdps.items() if folder.read(f"test/{name}") is None}

    def keeping(name: str, mdp: ActorCriticMDP) -> Any:
        ran = yield [block_of(mdp, controller, seed, Stream.TEST) for controller in controllers.values()]
        scores = np.stack([rates.curve_scores(one, mdp) for one in ran])
        folder.write(f"test/{name}", dict(zip(controllers, rates.finite(scores).tolist(), strict=True)))

    if missing:
        what = next(iter(missing)) if len(missing) == 1 else f"{len(missing)} families"
        with tracker.stage(f"test {what}", len(missing) * len(controllers), "blocks") as stage:
            run_plans([keeping(*each) for each in missing.items()], partial(with_clock, stage, clock))
    return {name: folder.read(f"test/{name}") for name in mdps}


def _unit(idle: Numbers, reached: Numbers) -> float:
    return rates.reference(np.stack([idle, reached]), 1)[1]


def row_of(name: str, plan: Plan, found: Mapping[str, Any]) -> Row:
    """Return the row of a family."""
    own_rate = GRID[found["own_rate"]]
    scores = {method: np.array(found[method])[: plan.test_tasks] for method in ("idle", "universal", "own", "model")}
    unit = _unit(scores["idle"], scores["universal"])
    leads = np.stack([scores["model"] - scores[other] for other in ("universal", "own")]) / unit
    low, high = mean_interval(leads)
    over = [
        (float(mean), float(one), float(other)) for mean, one, other in zip(leads.mean(axis=1), low, high, strict=True)
    ]
    means = (float(scores[method].mean()) for method in ("idle", "universal", "own", "model"))
    return Row(name, plan.loop(name), own_rate, over[0], over[1], tuple(means))  # type: ignore[arg-type]


def draw(folder: Folder, scores: Scores) -> None:
    """Draw the mean lead over the universal schedule against the number of search families."""
    numbers = [*scores.by_number]
    values = np.array([scores.by_number[number] for number in numbers])
    how: Any = {"xlabel": "families in the search", "ylabel": "lead over the universal rate"}
    panel = points("", values, numbers, **how)
    caption = "Mean lead on the families of the final test, in shares of the universal rate's gain; 95 % over families."
    write_picture(alone("families", caption, panel), folder.path)


def _interval(numbers: tuple[float, float, float]) -> str:
    mean, low, high = numbers
    return f"{mean:+.3f} ({low:+.3f} to {high:+.3f})"


def tables(scores: Scores, num_tasks: int) -> list[Part]:
    """Return what a card says of the final test."""
    rows = scores.rows
    wins = [
        sum(lead[1] > 0.0 for lead in column)
        for column in zip(*((r.over_universal, r.over_own) for r in rows), strict=True)
    ]
    losses = [
        sum(lead[2] < 0.0 for lead in column)
        for column in zip(*((r.over_universal, r.over_own) for r in rows), strict=True)
    ]
    text = (
        f"{num_tasks} tasks of each of {len(rows)} families of other classes. Leads are shares of the gain of the universal rate"
        f" ({scores.universal}), with 95 % intervals over tasks. Above 0 on {wins[0]} families (below on {losses[0]}) and, over"
        f" the family's own tuned rate, on {wins[1]} (below on {losses[1]})."
    )
    body = [(r.family, r.loop, _interval(r.over_universal), _interval(r.over_own), str(r.own_rate)) for r in rows]
    head = ("family", "loop", "over the universal rate", "over its own tuned rate", "its own rate")
    parts: list[Part] = [Heading("Final test"), Paragraph(text), Table(head, body)]
    by_number = [(str(number), f"{np.mean(leads):+.3f}") for number, leads in scores.by_number.items()]
    return [*parts, Table(("families in the search", "mean lead over the universal rate"), by_number, (0, 1))]


def print_scores(scores: Scores) -> None:
    """Print a line for each family, and the means by the number of search families."""
    for row in scores.rows:
        print(f"{row.family} ({row.loop}): over the universal rate {_interval(row.over_universal)}, ", end="")
        print(f"over its own ({row.own_rate}) {_interval(row.over_own)}")
    for number, leads in scores.by_number.items():
        print(f"{number} families in the search: mean lead over the universal rate {np.mean(leads):+.3f}")


def read_scores(folder: Folder, model: SearchedModel) -> Scores | None:
    """Return the scores of a folder, if there are any."""
    found = folder.read("scores")
    if found is None:
        return None
    rows = []
    for row in found["rows"]:
        known: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in row.items()
        }
        rows.append(Row(**known | {"own_rate": Rate(*row["own_rate"])}))
    return Scores(rows, _universal(model), {int(number): leads for number, leads in found["by_number"]})
