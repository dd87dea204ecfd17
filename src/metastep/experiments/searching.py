"""The stage that searches controllers: search every level, or resume it, then select the simplest that is as good as any."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from metastep._core import storage
from metastep._core.errors import InputError
from metastep._core.progress import Tracker
from metastep.evaluation import Comparison, Method, compare
from metastep.experiments import provenance
from metastep.mdp import ActorCriticMDP
from metastep.mdp.blocks import Stream
from metastep.rules.spaces import HyperparameterSpace
from metastep.search import LEVELS, Level, Network, SearchedModel, evolution
from metastep.search.controller import Searched
from metastep.search.evolution import Course, Objective, Search
from metastep.search.model import LevelScore, places, save_model, searched_model

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
    evolution.make_strategy(search, 1)  # raises if a package is missing
    if run.config.selection.num_tasks < 2:
        raise InputError("selection.num_tasks: 1 must be 2 or more where the learner is 'search'.")
    if "feedback" in search.levels:
        evolution.feedback_features(search, mdp)  # raises for unknown names
    if run.tasks is not None:
        raise InputError("learner: 'search' draws its tasks from the whole range; a list of tasks must not be given.")
    return mdp, search


def level_file(run: Run, level: str, folder: str = "levels") -> Path:
    """Return the file of a level's model or, in the folder `search`, of the state that its search resumes from."""
    return run.path / folder / f"{level}.safetensors"


def keep_course(run: Run, level: Level, course: Course) -> None:
    """Write the state of a search."""
    numbers = {name: getattr(course, name) for name in evolution.NUMBERS}
    about = storage.stamp(_KIND) | {"run": run.identity, "level": level} | numbers
    path = level_file(run, level, "search")
    storage.create_folder(path.parent)
    storage.write_tensors(path, evolution.course_arrays(course), about)


def kept_course(run: Run, level: Level) -> storage.Tensors | None:
    """Read and verify the state of a level's search; None if it has not started."""
    path = level_file(run, level, "search")
    if not path.exists():
        return None
    content = storage.read_tensors(path)
    record = content.metadata
    storage.require_stamp(record, _KIND, path, "remove it to search again")
    belongs = (record.get("run"), record.get("level")) == (run.identity, level)
    if not belongs or not isinstance(record.get("generation"), int):
        raise InputError(f"File {path} belongs to another run or level, or to none; put back its own, or remove it.")
    return content


def search_and_select(run: Run, tracker: Tracker) -> None:
    """Search every level, compare the best of each on the validation tasks, select, and write models and validation."""
    done = [run.model_file, run.validation_file, *(level_file(run, level) for level in run.config.search.levels)]
    if not all(file.exists() for file in done):
        mdp, search = build_search(run)
        with run.write_lock():
            courses = _search_levels(run, mdp, search, tracker)
            controllers = {level: Searched(network, course.best) for level, (network, course) in courses.items()}
            methods = [Method(level, mdp.rule, each, space=mdp.space) for level, each in controllers.items()]
            options: dict[str, Any] = {"stream": Stream.VALIDATION, **run.comparison_options(tracker)}
            validation = compare(methods, mdp, num_tasks=run.config.selection.num_tasks, **options)
            chosen, scores = judge_levels(validation, search.objective)
            storage.create_folder(level_file(run, chosen).parent)
            for level, (network, course) in courses.items():
                save_model(_model(run, mdp, network, course, scores), level_file(run, level))
            provenance.write_comparison(run, run.validation_file, validation)
            storage.write_atomically(run.model_file, storage.read_bytes(level_file(run, chosen)))


def _search_levels(
    run: Run, mdp: ActorCriticMDP, search: Search, tracker: Tracker
) -> dict[Level, tuple[Network, Course]]:
    """Search all levels, and write the state after each generation."""
    kept, num_tasks = {level: kept_course(run, level) for level in search.levels}, run.config.selection.num_tasks

    def begun(level: Level, like: Any) -> Course | None:
        content = kept[level]
        try:
            return None if content is None else evolution.course_from(content.arrays, content.metadata, like)
        except (InputError, KeyError, TypeError, ValueError) as error:
            path = level_file(run, level, "search")
            raise InputError(f"File {path} cannot be continued from ({error}); remove it to search again.") from None

    made = {level: content.metadata["generation"] if content else 0 for level, content in kept.items()}
    left = sum(evolution.num_blocks(search, [mdp], num_tasks, level, made[level]) for level in search.levels)
    how: dict[str, Any] = {"seed": run.config.seed, "num_validation": num_tasks}
    with tracker.stage("search", left, "blocks") as stage:
        files = evolution.Files(begun, partial(keep_course, run))
        return evolution.search_levels([mdp], search, files=files, advance=stage.advance, **how)


def _model(run: Run, mdp: ActorCriticMDP, network: Network, course: Course, scores: Any) -> SearchedModel:
    names, _ = places(mdp, network)
    low = high = np.zeros(0, np.float32)
    if names:
        seen = evolution.observed(mdp, Searched(network, course.best), names, run.config.seed, Stream.VALIDATION)
        low, high = seen.min(axis=0), seen.max(axis=0)
    return searched_model(
        mdp,
        network,
        course.best,
        feature_low=low.tolist(),
        feature_high=high.tolist(),
        configuration={"experiment": run.config.to_dict()},
        validation=scores,
        search_steps=course.steps,
        seed=run.config.seed,
    )


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

    def error(numbers: Any) -> float:
        return float(numbers.std(ddof=1) / np.sqrt(len(numbers)))

    best = max(scores.values(), key=np.mean)
    leads = {level: best - score for level, score in scores.items()}
    chosen = next(level for level, lead in leads.items() if lead.mean() <= _SURE * error(lead))  # the best, if no other
    return chosen, tuple(LevelScore(level, float(score.mean()), error(score)) for level, score in scores.items())


def read_level(run: Run, level: str = "") -> Any:
    """Return the model of one level of a run's search, by default the selected model of a run."""
    if not level:
        return run.model
    path = level_file(run, level)
    model = provenance.learned_here(run, path)
    if not isinstance(model, SearchedModel) or model.record.level != level:
        raise InputError(f"File {path} holds another level; put back the file of this run, or search again.")
    return model
