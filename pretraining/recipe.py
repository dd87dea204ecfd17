"""Train the model `ppo`: all hyperparameters of PPO, searched over families and loops: `python -m pretraining train`.

Every family of the table has one of the loops (`pretraining.loops`), so that there are as many programs as families. Learners
of 44 families are the population; eight of other classes select the generation and the level; the ten of the final test are
not touched. Returns count in the unit of their task, fitness in that of its family, and scores on the selection families as a
share of what the best universal schedule of the rate gains over no learning: 1 is as good as that schedule.

The plan for one H200 and 16 cores, 15 to 20 minutes, from what sketches took:

- Compilation: 52 families, two programs each, 20 to 40 s of one core each: 104 x 30 s / 16 = 3 min, in threads and in the order
  of their use, while the GPU already works on those that are ready: it waits for one minute. A later slice of time finds them
  in JAX's cache on disk (JAX_COMPILATION_CACHE_DIR), and traces them again, 2 s each.
- A block is 512 learners of one family. Steps that follow one another decide how long it takes, not their width: 0.15 ms for a
  step of the environments, 0.3 ms for a gradient step. With 64 gradient steps an update: ours and zoo-lander 2 s,
  purejaxrl-brax 3 s, cleanrl, zoo-cartpole, zoo-mujoco and wide 5 s, sb3 8 s, many-updates 11 s; 5 s on average.
- Rates: 16 schedules share a block; 2 blocks of 8 families and one of 8 others, 2 min.
- Search: a generation is 2 families of 512 learners, 10 s. Three levels share 20 generations, 40 in all: 7 min.
- Selection: 8 families x 256 learners, six times, 3 min; levels, on other tasks, and ranges of features: 3 min.

So 80 blocks of search simulate 512 learners x 100 updates x 1,500 steps each on average, 6 x 10^9 steps in 7 min.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metastep import ActorCriticMDP, InputError, SearchedModel, Tracker, load_model
from metastep.envs import choices_of
from metastep.experiments import searching
from metastep.mdp.blocks import Stream
from metastep.mdp.runs import BlockRun, run_plans
from metastep.search import LEVELS, Level, LevelScore, Network, Searched, evolution, save_model, searched_model
from metastep.search.course import Course, Files, course_from
from metastep.search.evolution import HeldOut, Search
from metastep.search.model import places
from pretraining import loops, rates
from pretraining.families import SETTINGS, TEST, TRAINING, build
from pretraining.loops import LOOPS, SMALL_LOOPS, Loop
from pretraining.work import Ahead, Clock, Folder, in_order, open_folder

Found = dict[Level, tuple[Network, Course]]
_SELECTION = ("worm", "reacher", "reacher-discrete", "breakout", "key-hurry", "prey", "beam", "beam-late")
_SURE = 1.96  # standard errors over families by which the best level must lead to be chosen over a simpler one


@dataclass(frozen=True)
class Plan:
    """How much is searched, and on what."""

    search: tuple[str, ...]  # families whose learners are the population
    selection: tuple[str, ...]  # those that select the generation and the level
    test: tuple[str, ...] = tuple(TEST)
    loops: Mapping[str, Loop] = dataclasses.field(default_factory=lambda: LOOPS)
    learners: int = 512  # of a block: two for every pair of controllers; half of them for selection and test
    families_at_once: int = 2
    generations: int = 20
    validate_every: int = 20
    deviation: float = 0.3
    rate: float = 0.2
    units: int = 8
    knots: int = 5
    tuning_tasks: int = 32  # on which a schedule of the rate is tuned, for each family
    tuned_every: int = 6  # of the search families, those whose rates are tuned
    test_tasks: int = 256
    sizes: tuple[int, ...] = (5, 10, 20, 40)  # numbers of search families to compare

    def __post_init__(self) -> None:
        for name in ("search", "selection", "test"):
            object.__setattr__(self, name, in_order(SETTINGS, getattr(self, name)))
        groups = [{SETTINGS[name].family for name in own} for own in (self.search, self.selection, self.test)]
        for index, (one, other) in enumerate(((0, 1), (0, 2), (1, 2))):
            if both := groups[one] & groups[other]:
                text = ("search and selection", "search and test", "selection and test")[index]
                raise InputError(f"families: {both.pop().__name__} is in {text}, allowed is one of them.")
        if not self.search or not self.selection:
            raise InputError("families: none for search or selection, allowed is one or more for each.")
        if self.learners % 2 or self.learners < 2 * len(rates.GRID):
            raise InputError(f"learners: {self.learners} must be even and at least {2 * len(rates.GRID)}.")

    def to_json(self) -> dict[str, Any]:
        """Return all settings as JSON holds them."""
        known = dataclasses.asdict(self)
        known["loops"] = [loops.described(name, loop) for name, loop in self.loops.items()]
        found: dict[str, Any] = json.loads(json.dumps(known))
        return found

    def loop(self, family: str) -> str:
        """Return the name of a family's loop."""
        return loops.loops_of(tuple(SETTINGS), dict(self.loops))[family]

    def mdp(self, family: str, *, twins: int = 1) -> ActorCriticMDP:
        """Return the meta-MDP of a family under its loop; blocks of two twins are for search, of one for all else."""
        size = self.learners if twins == 2 else self.learners // 2
        return loops.build_mdp(family, self.loops[self.loop(family)], learners=size, twins=twins)

    def search_settings(self) -> Search:
        """Return how controllers are searched."""
        half, num = self.learners // 2, min(self.families_at_once, len(self.search))
        return Search(
            start=loops.START,
            generations=self.generations,
            pairs=half * num,
            deviation=self.deviation,
            rate=self.rate,
            knots=self.knots,
            units=self.units,
            validate_every=self.validate_every,
            block_size=half,
            families_at_once=num,
        )


_CLASSES = {TRAINING[name].family for name in _SELECTION}
_OTHERS = tuple(name for name, setting in TRAINING.items() if setting.family not in _CLASSES)
PLANS = {
    "full": Plan(_OTHERS, _SELECTION),
    "quick": Plan(  # 20 minutes on two cores
        ("springs", "integrator", "tabular", "network-discrete", "bandit-continuous", "catch"),
        ("tanks", "pursuit", "prey-discrete"),
        ("queues", "stock", "room"),
        SMALL_LOOPS,
        learners=64,
        families_at_once=2,
        generations=18,
        validate_every=6,
        tuning_tasks=16,
        tuned_every=1,
        test_tasks=32,
        sizes=(2, 4),
    ),
}


def train(
    folder: Folder, plan: Plan, seed: int, clock: Clock, tracker: Tracker, tuned_in: Folder | None = None
) -> SearchedModel:
    """Search, select and write the model, or go on where an earlier call was stopped.

    Rates that were tuned in another folder, with the same loops and seed, are taken from there.
    """
    file = folder.path / "model.safetensors"
    if not file.exists():
        population = {name: plan.mdp(name, twins=2) for name in plan.search}
        judges = {name: plan.mdp(name) for name in plan.selection}
        tuned = judges | {name: population[name] for name in [*population][:: plan.tuned_every]}
        with Ahead((tuned | population).values()) as ahead:
            scores = tune_rates(tuned_in or folder, tuned, plan, seed, clock, tracker)
            universal = rates.universal_rate(scores)
            references = {name: rates.reference(scores[name], universal) for name in judges}
            held_out: list[HeldOut] = [(mdp, *references[name]) for name, mdp in judges.items()]
            found = search_levels(folder, [*population.values()], plan, seed, held_out, ahead, clock, tracker)
            shares = judge(folder, found, judges, references, seed, clock, tracker)
            level, levels = select(shares)
            model = model_of(found[level], population, judges, seed, levels)
        about = {"universal_rate": rates.GRID[universal]._asdict(), "selection_scores": means_of(shares)}
        save_model(with_record(model, plan, about), file)
    model = load_model(file)  # type: ignore[assignment]
    if model.record.configuration.get("plan") != plan.to_json() or model.record.seed != seed:
        raise InputError(f"File {file} was trained with other settings; put back its own, or remove it.")
    return model


def tune_rates(
    folder: Folder, mdps: Mapping[str, ActorCriticMDP], plan: Plan, seed: int, clock: Clock, tracker: Tracker
) -> dict[str, rates.Scores]:
    """Return the scores (schedules, tasks) of all schedules of the rate for each family; each is kept once it is known."""
    files = {name: f"rates/{name}" for name in mdps}
    missing = {name: mdp for name, mdp in mdps.items() if folder.read(files[name]) is None}

    def keeping(name: str, mdp: ActorCriticMDP) -> Any:
        scores = yield from rates.trying(mdp, seed, plan.tuning_tasks)
        folder.write(files[name], rates.as_json(scores))
        clock.check()

    total = sum(rates.num_blocks(mdp, plan.tuning_tasks) for mdp in missing.values())
    with tracker.stage("rates", total, "blocks") as stage:
        run_plans([keeping(name, mdp) for name, mdp in missing.items()], partial(with_clock, stage, clock))
    return {name: np.array(folder.read(file), np.float64) for name, file in files.items()}


def with_clock(stage: Any, clock: Clock, amount: float) -> None:
    """Show progress, and stop where the time is up."""
    stage.advance(amount)
    clock.check()


def search_levels(
    folder: Folder,
    population: Sequence[ActorCriticMDP],
    plan: Plan,
    seed: int,
    held_out: Sequence[HeldOut],
    ahead: Ahead,
    clock: Clock,
    tracker: Tracker,
) -> Found:
    """Search all levels; every generation is kept."""
    run: Any = folder  # of a run, the files of a search need what a folder has
    search, half = plan.search_settings(), plan.learners // 2
    kept = {level: searching.kept_course(run, level) for level in search.levels}

    def begun(level: Level, like: Any) -> Course | None:
        content = kept[level]
        return None if content is None else course_from(content.arrays, content.metadata, like)

    def keep(level: Level, course: Course) -> None:
        searching.keep_course(run, level, course)
        clock.lap()

    made = {level: content.metadata["generation"] if content else 0 for level, content in kept.items()}
    left = [evolution.num_blocks(search, population, half, level, made[level], held_out) for level in search.levels]
    clock.start()
    with tracker.stage("search", sum(left), "blocks") as stage:
        how: Any = {"advance": partial(with_clock, stage, clock), "held_out": held_out, "units": rates.task_units}
        return evolution.search_levels(
            population, search, seed=seed, num_validation=half, files=Files(begun, keep, ahead.prepare), **how
        )


def judge(
    folder: Folder,
    found: Found,
    judges: Mapping[str, ActorCriticMDP],
    references: Mapping[str, tuple[float, float]],
    seed: int,
    clock: Clock,
    tracker: Tracker,
) -> dict[Level, dict[str, NDArray[np.float64]]]:
    """Return the shares of every level on other tasks of the selection families, by level and family."""
    if (known := folder.read("levels")) is None:
        cases = [(level, name) for level in found for name in judges]

        def plan() -> Any:
            ran = yield [
                block_of(judges[name], _for_all(judges[name], *_best(found[level])), seed) for level, name in cases
            ]
            return [
                rates.finite(rates.curve_scores(one, judges[name])) for one, (_, name) in zip(ran, cases, strict=True)
            ]

        with tracker.stage("levels", len(cases), "blocks") as stage:
            ran = run_plans([plan()], partial(with_clock, stage, clock))[0]
        known = {level: {} for level in found}
        for (level, name), scores in zip(cases, ran, strict=True):
            low, unit = references[name]
            known[level][name] = ((scores - low) / unit).tolist()
        known = folder.write("levels", known)
    return {level: {name: np.array(known[level][name]) for name in judges} for level in found}


def _best(found: tuple[Network, Course]) -> tuple[Network, NDArray[np.float32]]:
    return found[0], found[1].best


def _for_all(mdp: ActorCriticMDP, network: Network, weights: NDArray[np.float32]) -> Searched:
    """Return a controller with weights for every learner of a block, as a search has it, to be the same program."""
    return Searched(network, np.tile(weights, (mdp.block_size, 1)))


def block_of(mdp: ActorCriticMDP, controller: Any, seed: int, stream: Stream = Stream.VALIDATION) -> BlockRun:
    """Return one block of a controller on tasks of a stream that selected no generation."""
    return BlockRun(mdp, controller, mdp.tasks(seed, stream, 1), mdp.budget)


def means_of(shares: Mapping[Level, Mapping[str, NDArray[np.float64]]]) -> dict[str, dict[str, float]]:
    """Return the mean share of every level, by family."""
    return {level: {name: float(own.mean()) for name, own in families.items()} for level, families in shares.items()}


def select(shares: Mapping[Level, Mapping[str, NDArray[np.float64]]]) -> tuple[Level, tuple[LevelScore, ...]]:
    """Return the simplest level that is as good as any, and the mean share of every level with its standard error.

    The family is the unit of replication: the best level must lead a simpler one by two standard errors over families.
    """
    by_level = {level: np.array([*own.values()]) for level, own in means_of(shares).items()}

    def error(numbers: NDArray[np.float64]) -> float:
        return float(numbers.std(ddof=1) / np.sqrt(len(numbers))) if len(numbers) > 1 else 0.0

    order = [level for level in LEVELS if level in by_level]
    best = max(by_level.values(), key=np.mean)
    leads = {level: best - by_level[level] for level in order}
    chosen = next(level for level in order if leads[level].mean() <= _SURE * error(leads[level]))
    return chosen, tuple(LevelScore(each, float(by_level[each].mean()), error(by_level[each])) for each in order)


def model_of(
    found: tuple[Network, Course],
    population: Mapping[str, ActorCriticMDP],
    judges: Mapping[str, ActorCriticMDP],
    seed: int,
    levels: tuple[LevelScore, ...],
) -> SearchedModel:
    """Return the model of a level, with the ranges of what it sees on the selection families and some of the others."""
    (network, weights), mdps = _best(found), [*judges.values(), *[*population.values()][::9]]
    names, _ = places(mdps[0], network)
    low = high = np.zeros(0, np.float32)
    if names:
        rows = [evolution.observed(mdp, Searched(network, weights), names, seed, Stream.VALIDATION) for mdp in mdps]
        low, high = (np.array([getattr(each, end)(axis=0) for each in rows]) for end in ("min", "max"))
        low, high = low.min(axis=0), high.max(axis=0)
    recorded: Any = {"feature_low": low.tolist(), "feature_high": high.tolist(), "configuration": {}}
    recorded |= {"validation": levels, "search_steps": found[1].steps, "seed": seed}
    return searched_model(mdps[0], network, weights, **recorded)


def with_record(model: SearchedModel, plan: Plan, about: Mapping[str, Any]) -> SearchedModel:
    """Return the model with a record of all families and loops in place of the first one's.

    `setting` has `loops`, a list of tables, and `families`, a table of tables that name their loop; what all loops share, such
    as most options of the rule, is as in other records, and what differs is left out. `configuration` has the plan.
    """
    families = {name: described(name, plan) for name in (*plan.search, *plan.selection)}
    used = {own["loop"] for own in families.values()}
    listed = [loops.described(name, loop) for name, loop in plan.loops.items() if name in used]
    setting = {name: model.record.setting[name] for name in ("observation", "space")}
    rule = model.record.setting["rule"]
    setting["rule"] = {
        name: value for name, value in rule.items() if name not in ("epochs", "minibatch_size", "gradient_steps")
    }
    setting |= {"env": "several", "families": families, "loops": listed}
    record = dataclasses.replace(model.record, setting=setting, configuration={**about, "plan": plan.to_json()})
    return dataclasses.replace(model, record=record)


def described(family: str, plan: Plan) -> dict[str, Any]:
    """Return a family as a model's record has it."""
    setting, loop, env = SETTINGS[family], plan.loop(family), build(family)
    choices, use = choices_of(env), "search" if family in plan.search else "selection"
    actions: dict[str, Any] = {"actions": "continuous", "num_actions": env.num_actions}
    if choices is not None:
        actions = {"actions": "discrete", "num_actions": choices}
    discount = plan.loops[loop].discount or setting.discount
    return {"loop": loop, "use": use, "horizon": setting.horizon, "discount": discount, **actions} | {
        "num_observations": env.num_observations
    }


def open_plan(path: Any, plan: Plan, seed: int) -> Folder:
    """Open the folder of a plan and a seed."""
    return open_folder(path, {"plan": plan.to_json(), "seed": seed})
