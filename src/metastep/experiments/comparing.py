"""The last stages of an experiment: tune and compare. Each takes up what it finds done."""

from collections.abc import Callable, Sequence
from functools import partial

from metastep.controllers import Run
from metastep.errors import InputError
from metastep.evaluation import Comparison, Method, MethodSpec, TuningTable, compare, join, tune
from metastep.experiments.build import build_mdp, build_regressor, config_of, method_spec
from metastep.experiments.folder import RunFolder
from metastep.experiments.origin import keep, kept, model_of, result_of
from metastep.experiments.schema import Experiment
from metastep.fqi import Model
from metastep.progress import Silent, Tracker


def compare_methods(folder: RunFolder, *, tracker: Tracker | None = None) -> Comparison:
    """Run every method on the test tasks, the baselines tuned; each method's result is kept as soon as it is there."""
    joined = compare_share(folder, (0, 1), tracker=tracker)
    assert joined is not None  # nobody else has a share
    return joined


def compare_share(folder: RunFolder, share: tuple[int, int], *, tracker: Tracker | None = None) -> Comparison | None:
    """Run every n-th method from the i-th on; None while results of other shares are missing."""
    if folder.comparison.exists():
        return compared(folder)
    names, (index, parts) = method_names(folder), share
    if parts > len(names):
        raise InputError(f"share: {index}/{parts} must have at most as many shares as there are methods, {len(names)}.")
    with folder.writing(f"compare in {parts} shares", shared=parts > 1):
        own = {name: method_result(folder, name, tracker=tracker) for name in names[index::parts]}
        if not all(folder.result(name).exists() for name in names):
            return None
        joined = join([own[name] if name in own else result_of(folder, name) for name in names])
        return keep(folder, folder.comparison, joined, uses=[f"results/{name}" for name in names])


def method_names(folder: RunFolder) -> list[str]:
    """The methods that a run compares, in the order of its tables."""
    return [method.own_name for method in folder.config.compare.methods]


def compared(folder: RunFolder) -> Comparison:
    """The comparison of a folder, if it is the join of the results there."""
    comparison = kept(folder, folder.comparison)
    if list(comparison.names) != method_names(folder):
        raise InputError(
            f"File {folder.comparison} compares other methods than this run; remove it to have it made again."
        )
    return comparison


def method_result(folder: RunFolder, name: str, *, tracker: Tracker | None = None) -> Comparison:
    """One method on the test tasks, tuned or trained first where it needs to be; run only if the folder does not hold it."""
    if folder.result(name).exists():
        return result_of(folder, name)
    with folder.writing(f"compare {name}"):
        spec = method_spec(folder.config, name)
        uses: list[str] = []
        if spec.grid:
            method, table = tuned(config_of(folder.config, spec), spec, tracker=tracker)
            result = on_test_tasks(folder.config, [method], tuning=[table], tracker=tracker)
        else:
            method = prepared(folder, spec, on_use=uses.append, tracker=tracker)
            result = on_test_tasks(folder.config, [method], tracker=tracker)
        keep(folder, folder.result(name), result, uses=uses)
    return result_of(folder, name)


def on_test_tasks(
    config: Experiment,
    methods: Sequence[Method],
    *,
    num_updates: int | None = None,
    tuning: Sequence[TuningTable] = (),
    tracker: Tracker | None = None,
) -> Comparison:
    """Methods on an experiment's test tasks, for as many updates as it says unless told otherwise."""
    return compare(
        methods,
        build_mdp(config),
        seed=config.seed,
        num_updates=num_updates or config.compare.num_updates,
        num_tasks=config.compare.num_tasks,
        tuning=tuning,
        tracker=tracker,
    )


def tuned(
    config: Experiment, spec: MethodSpec, *, num_updates: int | None = None, tracker: Tracker | None = None
) -> tuple[Method, TuningTable]:
    """A method tuned on the tuning tasks."""
    return tune(
        spec,
        build_mdp(config),
        seed=config.seed,
        num_tasks=config.compare.num_tuning_tasks,
        num_updates=num_updates or config.compare.num_updates,
        tracker=tracker,
    )


def prepared(
    folder: RunFolder, spec: MethodSpec, *, on_use: Callable[[str], object] = str, tracker: Tracker | None = None
) -> Method:
    """A method with nothing to tune, its controller loaded or trained where it needs to be.

    `on_use` is told "model", or "models/NAME/model", if the controller asks for a model of the run.
    """
    own = folder.of_model(spec.model)
    config = own.config
    mdp = build_mdp(config)

    def model() -> Model:
        on_use("/".join((*own.path.relative_to(folder.path).parts, "model")))
        return model_of(own)

    run = Run(
        mdp=spec.on(mdp),
        seed=config.seed,
        num_updates=config.compare.num_updates,
        num_training_episodes=config.collect.num_meta_episodes,
        num_stepsizes=config.fqi.num_stepsizes,
        regressor=partial(build_regressor, config),
        model=model,
        task_list=folder.tasks,
        tracker=tracker or Silent(),
    )
    return spec.method(mdp, controller=spec.build_controller({}).prepared(run))
