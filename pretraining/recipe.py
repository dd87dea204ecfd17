"""Train the model `ppo`: all hyperparameters of PPO, searched over families and loops: `python -m pretraining train`.

Every family of the table has one of the loops (`pretraining.loops`), so that there are as many programs as families. Learners
of 44 families are the population; eight of other classes select the generation and the level; the ten of the final test are
not touched. Families come in a random order that is always the same, and loops take turns in each group, those of a few robots
aside: all are in the search, all but `large` in the test, and the first eight of the table in the selection, among them some of
Stable-Baselines3, RL Zoo, CleanRL and PureJaxRL. Returns count in the unit of their task, fitness in that of its family, scores
on the selection families as a share of what the best universal schedule of the rate gains over no learning.

Levels branch first: the constant up to a third of the generations, from there the schedule up to two thirds, from there feedback
to the end. Then the schedule and the constant are searched to the end, to be compared with it. Where the time is up, the levels
that are there are compared, and the same command goes on later; docs/pretraining.md says how long all this takes on a GPU. A
schedule begins with a rate that falls, from one that suits the loop's own gradient steps; a model's are in percent of these.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import expit, logit

from metastep import ActorCriticMDP, InputError, SearchedModel, load_model
from metastep.envs import choices_of
from metastep.experiments import searching
from metastep.features.diagnostics import OF_LOOP
from metastep.mdp.blocks import Stream
from metastep.mdp.runs import BlockRun
from metastep.search import LEVELS, Level, LevelScore, Network, evolution, save_model, searched_model
from metastep.search.course import Course, Files, course_from
from metastep.search.evolution import Search, Start
from metastep.search.model import places
from metastep.search.network import BUDGET
from pretraining import loops, rates
from pretraining.families import SETTINGS, TEST, TRAINING, build
from pretraining.loops import LOOPS, MEDIUM_LOOPS, PERCENT, SMALL_LOOPS, SWAPPED, Loop
from pretraining.work import Ahead, Folder, OutOfTime, Work, for_all, open_folder

Mdps = Mapping[str, ActorCriticMDP]
Found = dict[Level, tuple[Network, Course]]
Weights = NDArray[np.float32]
Shares = dict[Level, dict[str, float]]  # of every level, by family
_SELECTION = ("worm", "reacher", "reacher-discrete", "breakout", "key-hurry", "prey", "beam", "beam-late")
INSIDE = 0.02  # distance from the ends of a range, where a logit has no slope
MARGIN = 0.03  # of the universal rate's gain, by which the best level must lead a simpler one


def shuffled(names: Sequence[str]) -> tuple[str, ...]:
    """Return names in a random order, always the same; no two search families of a generation have the same class."""
    return tuple(names[index] for index in np.random.default_rng(15).permutation(len(names)))


@dataclass(frozen=True)
class Plan:
    """How much is searched, and on what."""

    search: tuple[str, ...]  # families whose learners are the population, in the order of their turns
    selection: tuple[str, ...]  # those that select the generation and the level
    test: tuple[str, ...] = tuple(TEST)
    loops: Mapping[str, Loop] = dataclasses.field(default_factory=lambda: LOOPS)
    loop_of: Mapping[str, str] = dataclasses.field(default_factory=dict)  # by family; by default they take turns
    levels: tuple[Level, ...] = LEVELS
    learners: int = 512  # of a block: two for every pair of controllers; half of them for selection and test
    families_at_once: int = 4
    generations: int = 30
    validate_every: int = 10
    deviation: float = 0.4
    rate: float = 0.08
    units: int = 8
    knots: int = 5
    tuning_tasks: int = 32  # on which a schedule of the rate is tuned, for each family
    tuned_every: int = 6  # of the search families, those whose rates are tuned
    test_tasks: int = 256
    sizes: tuple[int, ...] = (5, 10, 20, 40)  # numbers of search families to compare
    size_generations: int = 10  # of each of these searches

    def __post_init__(self) -> None:
        groups = {"search": self.search, "selection": self.selection, "test": self.test}
        if unknown := [name for own in groups.values() for name in own if name not in SETTINGS]:
            raise InputError(f"families: {unknown[0]!r} is not in the table; allowed are {', '.join(SETTINGS)}.")
        kinds = {group: {kind for name in own for kind in _kinds(name)} for group, own in groups.items()}
        for one, other in (("search", "selection"), ("search", "test"), ("selection", "test")):
            if both := kinds[one] & kinds[other]:
                raise InputError(f"families: {both.pop().__name__} is in {one} and {other}, allowed is one of them.")
        if not self.search or not self.selection:
            raise InputError("families: none for search or selection, allowed is one or more for each.")
        if self.learners % 2 or self.learners < 2 * len(rates.GRID):
            raise InputError(f"learners: {self.learners} must be even and at least {2 * len(rates.GRID)}.")
        object.__setattr__(self, "loop_of", loops.assigned(groups.values(), self.loops) | dict(self.loop_of))

    def to_json(self) -> dict[str, Any]:
        """Return all settings as JSON holds them."""
        known = asdict(self) | {"loops": [loops.described(name, loop) for name, loop in self.loops.items()]}
        return dict(json.loads(json.dumps(known)))

    def mdps(self, families: Sequence[str], *, twins: int = 1) -> dict[str, ActorCriticMDP]:
        """Return the meta-MDPs of families under their loops; blocks of two twins are for search, of one for all else."""
        build_mdp = partial(loops.build_mdp, learners=self.learners // (3 - twins), twins=twins)
        return {name: build_mdp(name, self.loops[self.loop_of[name]]) for name in families}

    def search_settings(self) -> Search:
        """Return how controllers are searched."""
        half, num = self.learners // 2, min(self.families_at_once, len(self.search))
        names = ("levels", "generations", "deviation", "rate", "knots", "units", "validate_every")
        own: Any = {name: getattr(self, name) for name in names}
        return Search(start=loops.START, pairs=half * num, block_size=half, families_at_once=num, **own)


def _kinds(name: str) -> set[type]:
    """Return the class of a family, and those that it is derived from."""
    return {kind for kind in SETTINGS[name].family.__mro__ if "name" in vars(kind)}


_CLASSES = {kind for name in _SELECTION for kind in _kinds(name)}
_FEW = ("springs", "catch", "bandit-continuous", "tabular", "integrator", "network-discrete")
_OTHERS = ("tanks", "pursuit", "prey-discrete"), ("queues", "stock", "room")
_SMALL: Any = {"learners": 64, "families_at_once": 2, "generations": 18, "validate_every": 6, "tuning_tasks": 16}
_SMALL |= {"tuned_every": 1, "test_tasks": 32, "sizes": (2, 4)}
_MEDIUM: Any = {"levels": ("schedule",), "learners": 64, "families_at_once": 4, "generations": 80, "rate": 0.03}
# Few pairs say little about where to go: the mean moves by less than with those of a GPU.
_MEDIUM |= {"validate_every": 20, "tuning_tasks": 16, "tuned_every": 11, "test_tasks": 128, "sizes": ()}
_SEARCH = shuffled([name for name in TRAINING if not _kinds(name) & _CLASSES])
PLANS = {
    "full": Plan(_SEARCH, shuffled(_SELECTION), loop_of=SWAPPED["full"]),
    "medium": Plan(_SEARCH, shuffled(_SELECTION), loops=MEDIUM_LOOPS, loop_of=SWAPPED["medium"], **_MEDIUM),
    "quick": Plan(_FEW, *_OTHERS, SMALL_LOOPS, **_SMALL),  # 20 minutes on two cores
}


def open_plan(path: Any, plan: Plan, seed: int) -> Folder:
    """Open the folder of a plan and a seed."""
    return open_folder(path, {"plan": plan.to_json(), "seed": seed})


def train(work: Work) -> SearchedModel:
    """Search until all generations are there or the time is up, select among what is there, and write the model."""
    plan, file = work.plan, work.folder.path / "model.safetensors"
    if file.exists() and is_finished(model := load_model(file), plan):  # type: ignore[arg-type]
        return model  # type: ignore[return-value]
    population, judges = plan.mdps(plan.search, twins=2), plan.mdps(plan.selection)
    tuned = tuned_families(plan, population, judges)
    with Ahead((tuned | population).values()) as ahead:
        universal, scaled = best_rates(work, tuned)
        worth = references(work, judges, universal)
        found = search_levels(work, population, judges, worth, scaled, ahead)
        shares, weights = judge(work, found, judges, worth)
        level, levels = select(shares)
        network, course = found[level]
        about: Any = {"universal_rate": rates.GRID[universal]._asdict(), "scaled_rate": scaled._asdict()}
        about["selection_scores"] = shares
        about["generations"] = {name: own.generation for name, (_, own) in found.items()}
        about["judged"] = {name: own.scores[-1][0] for name, (_, own) in found.items()}  # the last one
        recorded: Any = {"validation": levels, "seed": work.seed, "search_steps": course.steps, "configuration": {}}

        def save(low: Any, high: Any, num: int) -> SearchedModel:
            ends = {"feature_low": low, "feature_high": high}
            model = searched_model(next(iter(judges.values())), network, weights[level], **ends, **recorded)
            save_model(model := with_record(model, plan, about | {"families_in_ranges": num}), file)
            return model

        save(*ranges(work, network, weights[level], {}))  # what fails from here on loses no model
        return save(*ranges(work, network, weights[level], judges | population))


def is_finished(model: SearchedModel, plan: Plan) -> bool:
    """Return whether all levels were searched and judged to their end, and ranges of features are those of all families."""
    known, num = model.record.configuration, len(plan.search) + len(plan.selection)
    ends = {level: plan.search_settings().of_level(level)[0].generations for level in plan.levels}
    return [known.get(name) for name in ("generations", "judged", "families_in_ranges")] == [ends, ends, num]


def tuned_rates(work: Work, family: str, mdp: ActorCriticMDP) -> rates.Scores:
    """Return the scores (schedules, tasks) of all schedules of the rate for a family."""
    num = work.plan.tuning_tasks
    tried = partial(work.run, "rates", rates.trying(mdp, work.seed, num), rates.num_blocks(mdp, num))
    return np.array(work.kept(f"rates/{family}", lambda: tried().tolist()), np.float64)


def tuned_families(plan: Plan, population: Mdps, judges: Mdps) -> Mdps:
    """Return the families that choose the universal schedule of the rate."""
    return {**judges, **{name: population[name] for name in plan.search[:: plan.tuned_every]}}


def best_rates(work: Work, tuned: Mdps) -> tuple[int, rates.Scaled]:
    """Return which schedule of the rate is the best for all of these families, and how the best falling rate depends on loops."""
    scores = {name: tuned_rates(work, name, mdp) for name, mdp in tuned.items()}
    own_steps = {name: mdp.of_loop["own_steps"] for name, mdp in tuned.items()}
    return rates.universal_rate(scores), rates.scaled_rate(scores, own_steps)


def references(work: Work, judges: Mdps, universal: int) -> dict[str, Any]:
    """Return what scores of families are worth: their share of what the universal schedule gains."""
    ends = {name: rates.reference(tuned_rates(work, name, mdp), universal) for name, mdp in judges.items()}
    return {name: partial(rates.share, low=low, unit=unit) for name, (low, unit) in ends.items()}


class _Paused(Exception):
    """A level is as far as it should be for now."""


def search_levels(
    work: Work, population: Mdps, judges: Mdps, worth: Any, scaled: rates.Scaled, ahead: Ahead, is_whole: bool = False
) -> Found:
    """Search all levels, and keep every generation; return those that are there when the time is up, unless `is_whole`."""
    search, families, half = work.plan.search_settings(), [*population.values()], work.plan.learners // 2
    held_out, found = [(mdp, worth[name]) for name, mdp in judges.items()], Found()
    how: Any = {"seed": work.seed, "num_validation": half, "held_out": held_out, "units": rates.task_units}
    run: Any = work.folder  # of a run, the files of a search need what a folder has

    def left(level: Level, at: int) -> int:
        return evolution.num_blocks(search, families, half, level, at, held_out)

    def form(level: Level, simpler: Start | None) -> Any:
        work.clock.check(work.clock.seconds(8 * (level == "feedback")))  # blocks that it simulates
        for first in range(len(families)):
            try:
                return asdict(evolution.network_of(level, search, families[first:], work.seed, simpler))
            except InputError as error:  # a family all of whose learners diverged: those after it are others
                print(f"{level}: {error}", flush=True)
        raise InputError(f"search: no families say what the features of {level} are like.")

    def go_on(start: Start, until: int) -> Course:
        """Search a level until its mean of a generation was judged."""
        level = start.network.level
        is_end = until == ends[level][0].generations  # the mean of the last generation is always judged
        judged = until if is_end else until - until % search.validate_every

        def reached(course: Course) -> Course:
            found[level] = start.network, course
            if course.generation >= until and course.scores[-1][0] >= judged:
                raise _Paused
            return course

        def begun(_: Level, like: Any) -> Course | None:
            content = searching.kept_course(run, level)
            return None if content is None else reached(course_from(content.arrays, content.metadata, like))

        def keep(_: Level, course: Course) -> None:
            searching.keep_course(run, level, course)
            reached(course)
            at = course.generation  # for which, and for judging it, there must be time
            work.clock.check(work.clock.seconds(left(level, at) - left(level, at + 1)))

        at = {each: found[each][1].generation if each in found else 0 for each in search.levels}
        work.announce(f"search {level}", sum(left(*each) for each in at.items()) + work.clock.reserve)
        ahead.prepare(start.network)
        with suppress(_Paused):
            planned = evolution.searching(families, search, start, files=Files(begun, keep), **how)
            work.run(f"search {level}", planned, left(level, at[level]) - left(level, until))
        return found[level][1]

    ends = {level: search.of_level(level) for level in sorted(search.levels, key=LEVELS.index)}
    starts, simpler = dict[Level, Start](), None
    ranged = len(population) * ("feedback" in ends)  # a schedule's are known without simulating
    work.clock.reserve = 0 if is_whole else len(judges) * (2 + len(ends)) + ranged
    try:
        for level, (own, branch, _) in ends.items():
            known: Any = work.kept(f"forms/{level}", partial(form, level, simpler))
            known = {name: tuple(each) if isinstance(each, list) else each for name, each in known.items()}
            network = Network(**known)
            weights = evolution.first_weights(network, work.seed, simpler)
            weights = with_rate(network, weights, families, None if simpler else scaled)
            starts[level] = Start(network, weights, simpler.steps if simpler else 0.0)
            course = go_on(starts[level], min(branch, own.generations))
            simpler = Start(network, course.branch, course.branch_steps)
        for level in reversed(ends):
            go_on(starts[level], ends[level][0].generations)
    except OutOfTime:
        if is_whole or not found:
            raise
    work.clock.reserve = 0
    return found


def with_rate(network: Network, weights: Weights, families: Any, scaled: rates.Scaled | None = None) -> Weights:
    """Return a schedule whose rate falls linearly from twice a constant's: evolution would take generations to find it.

    A constant's is half of what `scaled` says of each loop, by least squares of logits: a schedule is closest in the middle.
    """
    space, parts = families[0].space, network.split(weights := weights.copy())  # views
    place = space.names.index("stepsize")
    bounds, base = space.ranges[place], logit(np.clip(network.base[place], INSIDE, 1.0 - INSIDE))

    def added(wanted: Any) -> Any:
        return logit(np.clip([bounds.to_unit(rate) for rate in wanted], INSIDE, 1.0 - INSIDE)) - base

    if scaled is not None:
        known = evolution.features_of_loops(families)
        seen = [(np.array(known[network.features[i]]) - network.mean[i]) / network.spread[i] for i in network.of_loop]
        wanted = added([0.5 * scaled.of_loop(mdp.of_loop["own_steps"]) for mdp in families])
        best = np.linalg.lstsq(np.stack([np.ones(len(families)), *seen], axis=1), wanted)[0]
        parts.curves[:, place], parts.loop[:, place] = best[0], best[1:]
    if network.level == "schedule":
        first = 2.0 * bounds.from_unit(expit(base + parts.curves[0, place]), np)
        parts.curves[:, place] = added(first * np.linspace(1.0, 0.0, network.knots))
    return weights


def block_of(mdp: ActorCriticMDP, controller: Any, seed: int, stream: Stream = Stream.VALIDATION) -> BlockRun:
    """Return one block of a controller on tasks of a stream that selected no generation."""
    return BlockRun(mdp, controller, mdp.tasks(seed, stream, 1), mdp.budget)


def judge(work: Work, found: Found, judges: Mdps, worth: Mapping[str, Any]) -> tuple[Shares, dict[Level, Weights]]:
    """Return every level's shares on other tasks of the selection families, by family, and its weights.

    The weights are the last mean of the search, or the best that was judged where that leads by more than `MARGIN`: a few
    families cannot tell smaller differences, and the last mean has learned from all others.
    """

    def judged(level: Level, network: Network, rows: list[Weights]) -> Any:
        found = []
        for row in rows:
            blocks = [block_of(mdp, for_all(mdp, network, row), work.seed) for mdp in judges.values()]
            ran = zip(judges.items(), work.play(f"judge {level}", blocks), strict=True)
            found.append({name: worth[name](rates.curve_scores(one, mdp)) for (name, mdp), one in ran})
        return found

    shares, weights = Shares(), dict[Level, Weights]()
    for level, (network, course) in found.items():
        mean = np.asarray(course.state.mean, np.float32)
        rows = [course.best] if np.array_equal(course.best, mean) else [course.best, mean]
        own = work.kept(f"levels/{level}", partial(judged, level, network, rows), [row.tolist() for row in rows])
        means = [np.mean([*each.values()]) for each in own]
        better = -1 if means[-1] >= means[0] - MARGIN else 0
        shares[level], weights[level] = own[better], rows[better]
    return shares, weights


def select(shares: Shares) -> tuple[Level, tuple[LevelScore, ...]]:
    """Return the simplest level that is as good as any, and the mean share of every level with its standard error.

    As good is a mean share of at most `MARGIN` below that of the best level: errors over a few families would be too wide to
    select anything but the simplest one.
    """
    numbers = {level: np.array([*shares[level].values()]) for level in LEVELS if level in shares}
    errors = [float(stats.sem(own)) if len(own) > 1 else 0.0 for own in numbers.values()]
    scores = tuple(map(LevelScore, numbers, (float(own.mean()) for own in numbers.values()), errors))
    best = max(each.score for each in scores)
    return next(each.level for each in scores if each.score >= best - MARGIN), scores


def ranges(work: Work, network: Network, weights: Weights, mdps: Mdps) -> tuple[Any, Any, int]:
    """Return the least and the largest number of every feature that a controller sees, over families and their loops.

    The third number is how many these are, fewer where the time is up; a family all of whose learners diverge counts, but says
    nothing. Where none says anything, features are within two deviations of their mean before the search.
    """
    if {*network.features} <= {BUDGET, *OF_LOOP}:  # known without simulating
        known = evolution.features_of_loops([*mdps.values()]) | {BUDGET: [0.0, 1.0]} if mdps else {}
        ends = [(min(known[name]), max(known[name])) if known else (0.0, 1.0) for name in network.features]
        return [low for low, _ in ends], [high for _, high in ends], len(mdps)
    found = list[Any]()

    def observe(family: str) -> Any:
        def ends() -> Any:
            work.clock.check()
            mdp = mdps[family]
            names, controller = places(mdp, network)[0], for_all(mdp, network, weights)
            try:
                rows = evolution.observed(mdp, controller, names, work.seed, Stream.VALIDATION)
            except InputError as error:
                print(f"ranges of features go without {family}: {error}", flush=True)
                return []
            return rows.min(axis=0).tolist(), rows.max(axis=0).tolist()

        with suppress(OutOfTime):
            found.append(work.kept(f"ranges/{family}", ends, weights.tolist()))

    with work.tracker.stage("ranges", len(mdps), "families") as stage, ThreadPoolExecutor(4) as pool:
        for _ in pool.map(observe, mdps):
            stage.advance(1.0)
    usual = np.array(network.mean) + 2.0 * np.array([[-1.0], [1.0]]) * np.array(network.spread)
    low, high = zip(*[each for each in found if each] or [usual.tolist()], strict=True)
    return np.min(low, axis=0).tolist(), np.max(high, axis=0).tolist(), len(found)


def with_record(model: SearchedModel, plan: Plan, about: Mapping[str, Any]) -> SearchedModel:
    """Return the model with a record of all families and loops in place of the first one's.

    `setting` has `loops`, a list of tables, and `families`, a table of tables that name their loop; what all loops share, such
    as most options of the rule, is as in other records, and what differs is left out. `configuration` has the plan.
    """
    known, families = model.record.setting, dict[str, Any]()
    for name in (*plan.search, *plan.selection):
        env, choices = build(name), choices_of(build(name))
        own: Any = {"loop": plan.loop_of[name], "use": "search" if name in plan.search else "selection"}
        own |= {"actions": "continuous" if choices is None else "discrete", "num_actions": choices or env.num_actions}
        own |= {"num_observations": env.num_observations, "horizon": SETTINGS[name].horizon}
        families[name] = own | {"discount": plan.loops[own["loop"]].discount or SETTINGS[name].discount}
    used, differs = {own["loop"] for own in families.values()}, ("epochs", "minibatch_size", "gradient_steps")
    setting = {name: known[name] for name in ("observation", "space")} | {"env": "several", "families": families}
    setting["rule"] = {name: value for name, value in known["rule"].items() if name not in differs}
    setting["gradient_steps"] = "percent"  # of a loop's own
    setting["loops"] = [loops.described(name, loop) for name, loop in plan.loops.items() if name in used]
    each = zip(model.record.names, model.record.low, model.record.high, strict=True)
    bounds = ((PERCENT.low, PERCENT.high) if name == PERCENT.name else ends for name, *ends in each)
    ends: Any = dict(zip(("low", "high"), zip(*bounds, strict=True), strict=True))
    record = dataclasses.replace(model.record, setting=setting, configuration={**about, "plan": plan.to_json()}, **ends)
    return dataclasses.replace(model, record=record)
