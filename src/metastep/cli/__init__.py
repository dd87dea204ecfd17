"""The verbs of the command line. Heavy imports happen inside them, so that `--help` is quick."""

from pathlib import Path
from typing import Annotated, Any

import typer

from metastep import __version__
from metastep._core.errors import InputError
from metastep._core.parallel import prepare_jax
from metastep.cli import frame
from metastep.cli.frame import app, main, print_findings, this_command, verb, watch, with_options_of, working

__all__ = ["app", "main"]


@app.callback(invoke_without_command=True)
def options(version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False) -> None:
    """Learn how policy gradients should be updated, over families of related tasks."""
    if version:
        print(f"metastep {__version__}")
        raise typer.Exit


def _open(folder: frame.FolderArgument, allow_imports: frame.ImportsOption = False) -> Any:
    """Open the folder of a run."""
    prepare_jax(None)
    from metastep.experiments.run import Run

    return Run.open(folder).importing(allow_imports)


def _start(
    stage: str,
    source: Annotated[str, typer.Argument(help=frame.SOURCE_HELP)] = "",
    out: Annotated[Path | None, typer.Option(help="Folder of the run; default: runs/NAME, or runs/NAME-SCALE.")] = None,
    scale: frame.ScaleOption = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.", min=0, max=2**32 - 1)] = None,
    overrides: frame.SetOption = None,
    tasks: Annotated[Path | None, typer.Option(help="CSV or JSON file of contexts to train on.")] = None,
    data: Annotated[Path | None, typer.Option(help=frame.DATA_HELP)] = None,
    yes: frame.YesOption = False,
    allow_imports: frame.ImportsOption = False,
    start: Annotated[str | None, typer.Option(help="Searched model to begin from, to fine-tune it.")] = None,
    env: Annotated[str | None, typer.Option(help=frame.ENV_HELP)] = None,
) -> Any:
    """Create a run and record the command, or resume one, also by its folder."""
    from metastep.experiments.config import list_presets
    from metastep.experiments.run import start_run

    if not source and start is None:
        raise InputError(f"{stage}: SOURCE is missing, allowed are a preset, a .toml file or the folder of a run.")
    if start is not None or env is not None:
        source, out, overrides = _fine_tuned(source, start, env, out, scale, overrides or [])
    settings: dict[str, Any] = {"seed": seed, "overrides": overrides, "tasks": tasks, "data": data}
    if source not in list_presets() and (Path(source) / "config.json").exists():
        if yes or any(each is not None for each in (out, scale, *settings.values())):
            raise InputError(f"{stage}: {source} is a run, whose settings stay; give neither --out nor other settings.")
        return _open(Path(source), allow_imports)
    path = out or Path("runs") / "-".join([Path(source).stem, *([scale] if scale else [])])
    return start_run(source, scale, path, command=this_command(), anyway=yes, stage=stage, **settings)


def _fine_tuned(
    source: str, start: str | None, env: str | None, out: Path | None, scale: Any, overrides: list[str]
) -> tuple[str, Path, list[str]]:
    """Return source, folder and settings of a search that begins from a model, on a family that may be one's own."""
    from metastep.experiments.config import load
    from metastep.experiments.searching import start_settings

    own = [] if env is None else [f"env.name={env}"]
    if not source:  # the loop of the presets, with the usual discount
        if env is None:
            raise InputError("--env: is missing; name a family, NAME or module:Env, or give a preset or a file.")
        source, own = "pendulum-update", [*own, "rollout.discount=0.99"]
    family = (env or Path(source).stem).rpartition(":")[2].lower()
    path = out or Path("runs", f"{family}-{Path(start or 'update').stem}")
    if start is not None:
        own += start_settings(start, load(source, scale, [*own, *overrides]))
    return source, path, [*own, *overrides]


def _finish(opened: Any, terminal: Any) -> None:
    from metastep.experiments.reporting import print_outcome

    opened.run_all(tracker=terminal)
    print_outcome(opened)


@verb
@working
def demo(
    terminal: Any,
    out: Annotated[Path, typer.Option(help="Folder of the run.")] = Path("runs/demo"),
    overrides: frame.SetOption = None,
) -> None:
    """Run the main job on Minigolf in a minute or two. It goes from collecting to a report."""
    terminal.note("Learn which step to take (metaFQI), and in which direction (metastep), then compare on new tasks.")
    methods = '["metastep", "metafqi", "fixed", "fixed-kl", "rmsprop", "adam", "menu-oracle"]'
    smaller = ["reading=demo", f"compare.methods={methods}"]
    _finish(_start("demo", "minigolf", out, overrides=[*smaller, *(overrides or [])]), terminal)


@verb
@working
@with_options_of(_start, "opened", stage="run", start=None, env=None)
def run(terminal: Any, opened: Any) -> None:
    """Collect, fit, select, tune, compare and report. A stopped run resumes."""
    terminal.note(f"{opened.config.env.name} in {opened.path}")
    _finish(opened, terminal)


@verb
@working
@with_options_of(_start, "opened", stage="collect", start=None, env=None)
def collect(terminal: Any, opened: Any) -> None:
    """Collect training data, in the run's subfolder data. A stopped collection resumes."""
    dataset = opened.collect(tracker=terminal)
    counts, blocks = dataset.counts(), len(dataset.layout.blocks)
    found = f"{counts.flagged} flagged, {counts.excluded} excluded as not finite"
    print(f"{opened.path}: {counts.transitions} tuples in {blocks} blocks, {found}.")
    if counts.flagged == counts.transitions:
        print("Every tuple is flagged, its estimate zero or not finite: there is nothing to learn from this data.")


@verb
@working
@with_options_of(_open, "opened")
def fit(terminal: Any, opened: Any) -> None:
    """Fit the models of a run and select their iterations. Validation tasks decide; data that is missing is collected."""
    own = [""] if opened.config.learner == "fitted-q" else []
    for name in dict.fromkeys((*own, *opened.models_needed)):
        _show_validation(name, opened.learn(name, tracker=terminal))


def _show_validation(name: str, model: Any) -> None:
    """Print what every iteration of a fitted model, or level of a searched one, reached on the validation tasks."""
    if name:
        print(f"{name}:")
    for found in model.record.validation:
        if level := getattr(found, "level", ""):
            what, error, chosen = level, f" (standard error {found.error:.2g})", model.record.level
        else:
            what, error, chosen = f"N = {found.iteration}", "", f"N = {model.record.selected_iteration}"
        print(f"{what}: mean return over the updates {found.score:.4g}{error}{' selected' * (what == chosen)}")


@verb
@working
@with_options_of(_start, "opened", stage="search")
def search(terminal: Any, opened: Any) -> None:
    """Search the controllers of an experiment, or fine-tune a model (--start). A stopped search resumes."""
    from metastep.experiments.searching import steps_of_levels

    for name in opened.require_searched():
        _show_validation(name, opened.learn(name, tracker=terminal))
        _, steps = steps_of_levels(own := opened.of_model(name))
        print(f"{own.model_file}: {steps:.3g} environment steps of all levels")


@verb
@working
@with_options_of(_open, "opened")
def compare(terminal: Any, opened: Any) -> None:
    """Tune the baselines and compare all methods of a run. All run on the same test tasks."""
    from metastep.experiments.reporting import print_comparison

    print_comparison(opened.compare(tracker=terminal), opened.config)


@verb
@with_options_of(_open, "opened")
def report(opened: Any) -> None:
    """Write a run's report from the results of its stages."""
    print(opened.report())


@verb
def export(
    folder: frame.FolderArgument,
    parquet: Annotated[Path | None, typer.Option(help="Write the training tuples to this Parquet file.")] = None,
    minari: Annotated[str | None, typer.Option(help="Write them as a Minari dataset, like metastep/golf-v0.")] = None,
    force: frame.ForceOption = False,
) -> None:
    """Export a run's training data for other tools, to a new file."""
    from metastep.experiments.run import Run
    from metastep.mdp.dataset import to_parquet

    if parquet is None and minari is None:
        raise InputError("export: nothing to do, give --parquet FILE or --minari NAME.")
    if parquet is None and force:
        raise InputError("export: --force replaces a Parquet file; remove a Minari dataset with `minari delete NAME`.")
    data = Run.open(folder).dataset
    if parquet is not None:
        to_parquet(data, parquet, force=force)
        print(parquet)
    if minari is not None:
        try:
            from metastep.integrations.minari import to_minari
        except ImportError:
            raise InputError('export: --minari needs an extra, install it with pip install "metastep[gym]".') from None
        print(to_minari(data, minari))


@verb
def inspect(
    path: Annotated[Path, typer.Argument(help="A model file, or the folder of a run or of a dataset.")],
    coverage: Annotated[Path | None, typer.Option(help="CSV or JSON file of contexts: are they near training?")] = None,
    figure: Annotated[Path | None, typer.Option(help="SVG or PNG file to draw a searched model's features to.")] = None,
    force: frame.ForceOption = False,
    allow_imports: frame.ImportsOption = False,
) -> None:
    """Describe a model, a dataset or a run. Every file is verified."""
    prepare_jax("cpu")
    from metastep.experiments.checking import draw_model, inspect_path
    from metastep.experiments.coverage import inspect_coverage

    # Both before anything is printed: half a description would read like a whole one.
    parts = [inspect_path(path, allow_imports=allow_imports)]
    if coverage is not None:
        parts.append(inspect_coverage(path, coverage, allow_imports=allow_imports))
    if figure is not None:
        draw_model(path, figure, force=force)
        parts.append(f"figure: {figure}")
    print("\n".join(parts))


@verb
def check(folder: frame.FolderArgument, allow_imports: frame.ImportsOption = False) -> None:
    """Verify every file of a run. The exit code is 1 if one is damaged, missing, of another run or not ours."""
    prepare_jax("cpu")
    from metastep.experiments.checking import busy_in, check_folder

    busy = busy_in(folder)
    print_findings(check_folder(folder, allow_imports=allow_imports), folder, busy)


@verb
def config(preset: frame.PresetArgument, scale: frame.ScaleOption = None, overrides: frame.SetOption = None) -> None:
    """Print every setting of a preset as TOML, each with a sentence. A start for a file of your own."""
    prepare_jax("cpu")
    from metastep.experiments.config import load
    from metastep.experiments.reference import to_toml
    from metastep.experiments.run import Run

    found = load(preset, scale, overrides or ())
    Run(Path(), found).require_buildable()
    print(to_toml(found, f"{preset}, {scale or 'quick where there is such a table'}"), end="")


@verb
def envs() -> None:
    """List the environments, their contexts and the presets."""
    prepare_jax("cpu")
    from metastep import envs as environments
    from metastep.experiments.config import list_presets, load

    presets = {preset: load(preset).env.name for preset in list_presets()}
    for name in environments.names():
        env, own = environments.make(name), [preset for preset, used in presets.items() if used == name]
        choices, space = environments.choices_of(env), env.context_space
        actions = env.num_actions if choices is None else f"one of {choices}"
        print(f"{name}: observations: {env.num_observations}; actions: {actions}; presets: {', '.join(own) or 'none'}")
        for coordinate, low, high, unit in zip(space.names, space.low, space.high, space.units, strict=True):
            print(f"  {coordinate} from {low:g} to {high:g} {unit}".rstrip())
    print("Run a preset with: metastep run PRESET --scale quick")


@verb
def learn(
    model: Annotated[str, typer.Argument(help="A model of the library (see `metastep models`), a file or a run.")],
    task: Annotated[str, typer.Option(help=frame.TASK_HELP)] = "",
    family: Annotated[str, typer.Option(help=frame.FAMILY_HELP)] = "",
    out: Annotated[Path, typer.Option(help="Folder of policy, curve and report.")] = Path("runs/learned"),
    updates: Annotated[int | None, typer.Option(help="Updates to make; default: as in its experiment.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.", min=0, max=2**32 - 1)] = 0,
    device: frame.DeviceOption = None,
    allow_imports: frame.ImportsOption = False,
) -> None:
    """Train a policy on a new task with a fitted model. Nothing is left to tune; a stopped training resumes."""
    terminal = watch(device)
    from metastep.experiments.learn import learn as learn_policy
    from metastep.pretrained import load

    is_run = Path(model, "config.json").exists()  # whose model must be its own
    fitted = _open(Path(model), allow_imports).model if is_run else load(model)
    settings: dict[str, Any] = {"family": family, "seed": seed, "num_updates": updates, "allow_imports": allow_imports}
    first, last = learn_policy(fitted, task, out, command=this_command(), tracker=terminal, **settings)
    print(f"mean return {first:.4g} before the first update, {last:.4g} after the last.")
    print(f"policy: {out / 'policy.safetensors'}\ncurve: {out / 'curve.csv'}\nreport: {out / 'report.html'}")


@verb
def evaluate(
    policy: Annotated[Path, typer.Argument(help="A policy file, or the folder that `metastep learn` wrote.")],
    task: Annotated[str | None, typer.Option(help=f"Another task. {frame.TASK_HELP}")] = None,
    episodes: Annotated[int, typer.Option(help="Fresh episodes to simulate.", min=2)] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the episodes.", min=0, max=2**32 - 1)] = 1,
    device: frame.DeviceOption = None,
    allow_imports: frame.ImportsOption = False,
) -> None:
    """Simulate fresh episodes of a learned policy. Their mean return is printed."""
    watch(device)
    from metastep.experiments.learn import evaluate as evaluate_policy

    on, mean, error = evaluate_policy(policy, task=task, episodes=episodes, seed=seed, allow_imports=allow_imports)
    named = ", ".join(f"{name} = {value:g}" for name, value in on.items())
    print(f"{named}: mean return {mean:.5g}, standard error {error:.2g}, {episodes} episodes")


@verb
def publish(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run, or one with a model and its card.md.")],
    name: Annotated[str, typer.Option(help="Name of the model.")],
    out: Annotated[Path, typer.Option(help="Folder of the model file and its card.")] = Path("models"),
    trees: Annotated[int | None, typer.Option(min=1, help="Trees of every forest to keep; default: all.")] = None,
    device: frame.DeviceOption = None,
    cores: frame.CoresOption = None,
    allow_imports: frame.ImportsOption = False,
    force: frame.ForceOption = False,
) -> None:
    """Write the model of a run as a small file with a card."""
    terminal = watch(device, cores)
    from metastep.experiments import publishing

    if (run / "card.md").is_file():  # trained elsewhere, as by `python -m pretraining`
        if trees is not None:
            raise InputError(f"--trees: {trees} must not be given, {run} is no run.")
        print(*publishing.publish_folder(run, name, out, force=force), sep="\n")
        return
    how: dict[str, Any] = {"trees": trees, "command": this_command(), "force": force, "tracker": terminal}
    file, card, same = publishing.publish(_open(run, allow_imports), name, out, **how)
    print(f"{file}: {file.stat().st_size / 1000:.0f} kB, the same proposals as before for {100 * same:.2f} %\n{card}")


@verb
def models(name: Annotated[str, typer.Argument(help="Print the card of this one.")] = "") -> None:
    """List the models that come with the library, or print the card of one."""
    from metastep import pretrained

    if name:
        print(pretrained.card(name), end="")
        return
    for each in pretrained.names():
        model = pretrained.load(each)
        families = ", ".join(names := [*model.record.setting.get("families", [model.record.environment])])
        families = families if len(names) < 10 else f"{len(names)} families"
        print(f"{each}: {model.record.rule_name} on {families}, {model.learned_from}")
