"""The stage that searches controllers: search every level, or resume it, then select the simplest that is as good as any."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from metastep._core import storage as storage
from metastep._core.errors import InputError, shown
from metastep._core.progress import Tracker
from metastep.evaluation import Comparison, Method
from metastep.experiments import provenance
from metastep.experiments.config import build_rule
from metastep.experiments.reference import literal
from metastep.experiments.schema import Experiment
from metastep.mdp import ActorCriticMDP
from metastep.mdp.blocks import Stream
from metastep.pretrained import load
from metastep.rules.actor_critic import PPO
from metastep.rules.spaces import HyperparameterSpace
from metastep.search import LEVELS, Level, Network, SearchedModel, evolution
from metastep.search.controller import Searched, model_parts
from metastep.search.course import NUMBERS, Course, Files, course_arrays, course_from
from metastep.search.evolution import Objective, Search, Start
from metastep.search.model import LevelScore, SearchedRecord, places, save_model, searched_model
from metastep.simulation.engine import fills_batches

if TYPE_CHECKING:
    from metastep.experiments.run import Run

_SURE = 1.96  # standard errors by which the best level must lead to be chosen over a simpler one
_KIND = "search"


def build_search(run: Run) -> tuple[ActorCriticMDP, Search]:
    """Return the meta-MDP and the search of a run; settings that cannot be searched are an error."""
    mdp, search = run.mdp, Search(**dict(run.config.search))
    if not isinstance(mdp, ActorCriticMDP) or not isinstance(mdp.space, HyperparameterSpace):
        needs = "needs a rule that learns from steps and chooses from ranges"
        raise InputError(f"learner: 'search' {needs}, {mdp.rule.name!r} does not; take 'fitted-q'.")
    evolution.base_point(mdp, search.start)  # raises for names that are not chosen
    evolution.make_strategy(replace(search, pairs=2), 1)  # raises if a package is missing
    if run.config.selection.num_tasks < 2:
        raise InputError("selection.num_tasks: 1 must be 2 or more where the learner is 'search'.")
    if "feedback" in search.levels:
        evolution.feedback_features(search, mdp)  # raises for unknown names
    if run.tasks is not None:
        raise InputError("learner: 'search' draws its tasks from the whole range; a list of tasks must not be given.")
    start_of(mdp, search)  # raises if the model does not fit
    return mdp, search


def start_of(mdp: ActorCriticMDP, search: Search) -> tuple[Start | None, str]:
    """Return the controller of a model that a search begins from, if any, and the model's fingerprint."""
    if not search.model:
        return None, ""
    place = f"search.model: {shown(search.model)}"
    if not isinstance(model := load(search.model), SearchedModel):
        raise InputError(f"{place} was fitted, allowed are searched models.")
    if search.levels != (level := model.record.level,):
        raise InputError(f"search.levels: {list(search.levels)} must be ['{level}'], the level of search.model.")
    network, weights = model_parts(model, mdp, place)
    places(mdp, network)  # raises for features that are not known here
    return Start(network, weights), model.fingerprint


def start_settings(source: str, config: Experiment) -> list[str]:
    """Return the settings, as of `--set`, with which an experiment searches on from a model, for its table `models.update`.

    Ranges and level are the model's; where it makes more gradient steps than the loop, there are more epochs to choose from.
    """
    record = load(source).record
    if not isinstance(record, SearchedRecord):
        raise InputError(f"--start: {shown(source)} was fitted, allowed are searched models.")
    rollout, rule = config.rollout, build_rule(config)
    steps = (rollout.num_envs or 1) * (rollout.num_steps or 1)
    space = record.space_in(rule.own_steps(steps) if isinstance(rule, PPO) else 1)
    bounds = zip(space.names, space.low, space.high, space.scales, strict=True)
    ranges: dict[str, Any] = {name: {"low": low, "high": high, "scale": scale} for name, low, high, scale in bounds}
    wanted: dict[str, Any] = {f"meta.stepsize_{name}": value for name, value in ranges.pop("stepsize").items()}
    wanted["models.update.meta.choices"] = ranges
    wanted |= {"models.update.search.model": source, "models.update.search.levels": [record.level]}
    wanted["compare.methods"] = [name for name in config.compare.names if name not in LEVELS]
    if isinstance(rule, PPO) and "gradient_steps" in ranges:
        enough = rule.up_to(ranges["gradient_steps"]["high"], steps)
        if enough.epochs > rule.epochs:
            wanted |= {f"meta.rule.{name}": getattr(enough, name) for name in ("epochs", "gradient_steps")}
    return [f"{name}={literal(value)}" for name, value in wanted.items()]


def level_file(run: Run, level: str, folder: str = "levels") -> Path:
    """Return the file of a level's model or, in the folder `search`, of the state that its search resumes from."""
    return run.path / folder / f"{level}.safetensors"


def keep_course(run: Run, level: Level, course: Course, start: str = "") -> None:
    """Write the state of a search; `start` is the fingerprint of the model that it started from, if any."""
    numbers = {name: getattr(course, name) for name in NUMBERS} | ({"start": start} if start else {})
    path = level_file(run, level, "search")
    storage.create_folder(path.parent)
    about = storage.stamp(_KIND) | {"run": run.identity, "level": level} | numbers
    storage.write_tensors(path, course_arrays(course), about)


def kept_course(run: Run, level: Level) -> storage.Tensors | None:
    """Read and verify the state of a level's search; None if it has not started."""
    path = level_file(run, level, "search")
    if not path.exists():
        return None
    content = storage.read_tensors(path)
    record = content.metadata
    storage.require_stamp(record, _KIND, path, "remove it to search again")
    belongs = (record.get("run"), record.get("level")) == (run.identity, level)
    if not belongs or not all(isinstance(record.get(name), kind) for name, kind in NUMBERS.items()):
        raise InputError(f"File {path} belongs to another run or level, or to none; put back its own, or remove it.")
    return content


def search_and_select(run: Run, tracker: Tracker) -> None:
    """Search every level, compare the best of each on the validation tasks, select, and write models and validation."""
    done = [run.model_file, run.validation_file, *(level_file(run, level) for level in run.config.search.levels)]
    if not all(file.exists() for file in done):
        mdp, search = build_search(run)
        with run.write_lock():
            courses = _all_levels(run, mdp, search, tracker)
            controllers = {level: Searched(network, course.best) for level, (network, course) in courses.items()}
            methods = [Method(level, mdp.rule, each, space=mdp.space) for level, each in controllers.items()]
            validation = run.validate(methods, tracker=tracker)
            chosen, scores = judge_levels(validation, search.objective)
            storage.create_folder(level_file(run, chosen).parent)
            for level, (network, course) in courses.items():
                save_model(_model(run, mdp, network, course, scores), level_file(run, level))
            provenance.write_comparison(run, run.validation_file, validation)
            storage.write_atomically(run.model_file, storage.read_bytes(level_file(run, chosen)))


def _all_levels(run: Run, mdp: ActorCriticMDP, search: Search, tracker: Tracker) -> dict[Level, tuple[Network, Course]]:
    """Search all levels, and write the state after each generation."""
    kept, num_tasks = {level: kept_course(run, level) for level in search.levels}, run.config.selection.num_tasks

    def begun(level: Level, like: Any) -> Course | None:
        content = kept[level]
        try:
            return None if content is None else course_from(content.arrays, content.metadata, like)
        except (InputError, KeyError, TypeError, ValueError) as error:
            path = level_file(run, level, "search")
            raise InputError(f"File {path} cannot be continued from ({error}); remove it to search again.") from None

    begin, start = start_of(mdp, search)
    for level, content in kept.items():
        if content is not None and content.metadata.get("start", "") != start:
            path, again = level_file(run, level, "search"), "put it back, or remove the file to search again"
            raise InputError(f"File {path} began from another model than {search.model!r}; {again}.")
    made = {level: content.metadata["generation"] if content else 0 for level, content in kept.items()}
    left = sum(evolution.num_blocks(search, [mdp], num_tasks, level, made[level]) for level in search.levels)
    how: dict[str, Any] = {"seed": run.config.seed, "num_validation": num_tasks}
    if left and fills_batches(mdp.env):  # XLA compiles in one thread for a CPU, in many for a GPU
        evolution.compile_programs(search, mdp)
    with tracker.stage("search", left, "blocks") as stage:
        files = Files(begun, partial(keep_course, run, start=start))
        return evolution.search_levels([mdp], search, files=files, advance=stage.advance, begin=begin, **how)


def _model(run: Run, mdp: ActorCriticMDP, network: Network, course: Course, scores: Any) -> SearchedModel:
    names, _ = places(mdp, network)
    low = high = np.zeros(0, np.float32)
    if names:
        seen = evolution.observed(mdp, Searched(network, course.best), names, run.config.seed, Stream.VALIDATION)
        low, high = seen.min(axis=0), seen.max(axis=0)
    recorded: Any = {"feature_low": low.tolist(), "feature_high": high.tolist(), "validation": scores}
    recorded |= {"configuration": {"experiment": run.config.to_dict()}, "seed": run.config.seed}
    return searched_model(mdp, network, course.best, search_steps=course.steps, **recorded)


def judge_levels(validation: Comparison, objective: Objective) -> tuple[Level, tuple[LevelScore, ...]]:
    """Return the selected level, and the mean score of every level with its standard error.

    The simplest level that is as good as the best is selected: less than two standard errors behind it on the same tasks. Levels
    that diverged on a task are left out.
    """
    every = evolution.score(np.moveaxis(validation.returns, 2, 0), objective)
    by_task = dict(zip(validation.names, every, strict=True))
    scores = {level: by_task[level] for level in LEVELS if level in by_task and np.isfinite(by_task[level]).all()}
    if not scores:
        raise InputError("search: every level diverged on the validation tasks; look at the ranges of the choices.")
    best = max(scores.values(), key=np.mean)
    leads = {level: best - score for level, score in scores.items()}
    chosen = next(level for level, lead in leads.items() if lead.mean() <= _SURE * stats.sem(lead))  # or the best
    return chosen, tuple(LevelScore(level, float(own.mean()), float(stats.sem(own))) for level, own in scores.items())


def steps_of_levels(run: Run) -> tuple[dict[Level, float], float]:
    """Return the environment steps of every level, and those of all: where one begins from another, these steps are in both."""
    levels = sorted(run.config.search.levels, key=LEVELS.index)
    steps = {level: read_level(run, level).record.search_steps for level in levels}
    courses = [kept_course(run, level) for level in levels[:-1]]
    return steps, sum(steps.values()) - sum(each.metadata["branch_steps"] for each in courses if each is not None)


def read_level(run: Run, level: str = "") -> Any:
    """Return the model of one level of a run's search, by default the selected model of a run."""
    if not level:
        return run.model
    path = level_file(run, level)
    model = provenance.learned_here(run, path)
    if not isinstance(model, SearchedModel) or model.record.level != level:
        raise InputError(f"File {path} holds another level; put back the file of this run, or search again.")
    return model
