"""The command line: parses, calls one function, prints. Heavy imports happen inside the verbs, so `--help` is quick."""

import os
from pathlib import Path
from typing import Annotated

import typer

from metastep import __version__
from metastep._core.device import prepare_jax
from metastep._core.errors import InputError
from metastep.cli.frame import app, finish_run, main, start_run, verb, watch
from metastep.cli.options import (
    CoresOption,
    Device,
    DeviceOption,
    FolderArgument,
    ForceOption,
    ImportsOption,
    OutOption,
    PresetArgument,
    ScaleOption,
    SchedulerOption,
    SeedOption,
    SetOption,
    TasksOption,
    WorkersOption,
    YesOption,
)

__all__ = ["app", "main"]


def print_version(wanted: bool) -> None:
    """Print the version and stop, where it was asked for."""
    if wanted:
        print(f"metastep {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=print_version, is_eager=True)
    ] = False,
) -> None:
    """Learn how policy gradients should be updated, over families of related tasks."""


@verb
def demo(
    out: Annotated[Path, typer.Option(help="Folder of the run.")] = Path("runs/demo"),
    device: DeviceOption = None,
    cores: CoresOption = None,
    workers: WorkersOption = None,
    scheduler: SchedulerOption = None,
) -> None:
    """Run the main job on Minigolf in a minute or two. It goes from collecting to a report."""
    terminal = watch(device, cores, workers, scheduler)
    terminal.note(
        "Minigolf: learn from simulated updates which step to take when (metaFQI), and in which direction (metastep), then "
        "compare on new tasks."
    )

    smaller = [
        "collect.num_meta_episodes=2048",
        "fqi.iterations=3",
        "models.metastep.collect.num_meta_episodes=64",
        "compare.num_tasks=32",
        "compare.num_tuning_tasks=20",
        "compare.methods.fixed-kl.grid.stepsize=[0.1, 1.0, 10.0, 100.0]",
        "compare.methods.rmsprop.grid.stepsize=[0.03, 0.1, 0.3]",
        "compare.methods.adam.grid.stepsize=[0.08, 0.2, 0.5]",
    ]
    methods = ["metastep", "metafqi", "fixed", "fixed-kl", "rmsprop", "adam", "menu-oracle"]
    folder = start_run("minigolf", out, overrides=[*smaller, f"compare.methods={methods}"])
    finish_run(folder, terminal)


@verb
def run(
    preset: PresetArgument,
    out: OutOption = None,
    scale: ScaleOption = None,
    seed: SeedOption = None,
    overrides: SetOption = None,
    tasks: TasksOption = None,
    data: Annotated[
        Path | None, typer.Option(help="A run whose training data to use, where only later settings differ.")
    ] = None,
    device: DeviceOption = None,
    cores: CoresOption = None,
    workers: WorkersOption = None,
    scheduler: SchedulerOption = None,
    yes: YesOption = False,
) -> None:
    """Collect, fit, select, tune, compare and report. A stopped run resumes where it was."""
    terminal = watch(device, cores, workers, scheduler)
    folder = start_run(preset, out, scale, seed=seed, overrides=overrides, tasks=tasks, data=data, anyway=yes)
    terminal.note(f"{preset} in {folder.path}")
    finish_run(folder, terminal)


@verb
def collect(
    preset: PresetArgument,
    out: Annotated[Path, typer.Option(help="Folder of the run; the dataset goes to its subfolder data.")],
    scale: ScaleOption = None,
    seed: SeedOption = None,
    overrides: SetOption = None,
    tasks: TasksOption = None,
    device: DeviceOption = None,
    cores: CoresOption = None,
    workers: WorkersOption = None,
    scheduler: SchedulerOption = None,
    yes: YesOption = False,
) -> None:
    """Collect training data. A stopped collection resumes where it was."""
    terminal = watch(device, cores, workers, scheduler)
    folder = start_run(preset, out, scale, seed=seed, overrides=overrides, tasks=tasks, anyway=yes)
    dataset = folder.collect(tracker=terminal)
    counts = dataset.counts()
    print(
        f"{out}: {counts.transitions} tuples in {len(dataset.layout.blocks)} blocks, {counts.flagged} flagged, "
        f"{counts.excluded} excluded as not finite."
    )
    if counts.flagged == counts.transitions:
        print("Every tuple is flagged, its estimate zero or not finite: there is nothing to learn from this data.")


@verb
def fit(
    folder: FolderArgument,
    device: DeviceOption = None,
    cores: CoresOption = None,
    workers: WorkersOption = None,
    scheduler: SchedulerOption = None,
    allow_imports: ImportsOption = False,
) -> None:
    """Fit the models of a run and select their iterations. Validation tasks decide; further models collect their data here."""
    terminal = watch(device, cores, workers, scheduler)
    from metastep.experiments.run import Run
    from metastep.experiments.stages import fit_all

    opened = Run.open(folder).importing(allow_imports)
    for name, model in fit_all(opened, tracker=terminal).items():
        if name:
            print(f"{name}:")
        for curve in model.record.validation:
            mark = " selected" if curve.iteration == model.record.selected_iteration else ""
            print(f"N = {curve.iteration}: mean return over the updates {curve.score:.4g}{mark}")


@verb
def compare(
    folder: FolderArgument,
    device: DeviceOption = None,
    cores: CoresOption = None,
    workers: WorkersOption = None,
    scheduler: SchedulerOption = None,
    allow_imports: ImportsOption = False,
) -> None:
    """Tune the baselines and compare all methods of a run. They meet on its test tasks."""
    terminal = watch(device, cores, workers, scheduler)
    from metastep.experiments.reporting import print_comparison
    from metastep.experiments.run import Run

    opened = Run.open(folder).importing(allow_imports)
    print_comparison(opened.compare(tracker=terminal), opened.config)


@verb
def report(folder: FolderArgument, allow_imports: ImportsOption = False) -> None:
    """Write a run's report from what its stages left."""
    prepare_jax(None)
    from metastep.experiments.run import Run

    print(Run.open(folder).importing(allow_imports).report())


@verb
def export(
    folder: FolderArgument,
    parquet: Annotated[Path | None, typer.Option(help="Write the training tuples to this Parquet file.")] = None,
    minari: Annotated[
        str | None, typer.Option(help="Write them as this Minari dataset, like metastep/golf-v0.")
    ] = None,
    force: ForceOption = False,
) -> None:
    """Export a run's training data for other tools, to a new file."""
    from metastep.experiments.run import Run

    if parquet is None and minari is None:
        raise InputError("export: nothing to do, give --parquet FILE or --minari NAME.")
    data = Run.open(folder).dataset
    if parquet is not None:
        from metastep.mdp.parquet import to_parquet

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
    coverage: Annotated[
        Path | None, typer.Option(help="CSV or JSON file of test contexts: how far are they from training?")
    ] = None,
    allow_imports: ImportsOption = False,
) -> None:
    """Say what a model or a dataset is; every file is verified."""
    prepare_jax(Device.cpu)
    from metastep.experiments.coverage import inspect_coverage
    from metastep.experiments.inspection import inspect_path

    # Both before anything is printed: half a description would read like a whole one.
    parts = [inspect_path(path, allow_imports=allow_imports)]
    if coverage is not None:
        parts.append(inspect_coverage(path, coverage, allow_imports=allow_imports))
    print("\n".join(parts))


@verb
def check(folder: FolderArgument, allow_imports: ImportsOption = False) -> None:
    """Verify every file of a run. Also what it was made from, and what should not be there; exit code 1 if anything is wrong."""
    prepare_jax(Device.cpu)
    from metastep.experiments.checking import busy_in, check_folder

    busy = busy_in(folder)
    findings = check_folder(folder, allow_imports=allow_imports)
    for path, problem in findings:
        print(f"{os.path.relpath(path, folder)}: {problem or 'ok'}")
    if busy:
        print(f"{busy} is writing here now; check again when it has ended.")
    wrong = sum(bool(problem) for _, problem in findings)
    if wrong:
        print(f"{wrong} of {len(findings)} files are not as they should be.")
        raise typer.Exit(1)
    print(f"all {len(findings)} files are as they should be.")


@verb
def config(preset: PresetArgument, scale: ScaleOption = None, overrides: SetOption = None) -> None:
    """Print every setting of a preset as TOML. Each has its sentence: a start for a file of your own."""
    prepare_jax(Device.cpu)
    from metastep.experiments.config import load
    from metastep.experiments.reference import to_toml
    from metastep.experiments.run import Run

    found = load(preset, scale.value if scale else None, overrides or ())
    Run(Path(), found).require_buildable()
    print(to_toml(found, f"{preset}, {scale.value if scale else 'quick where there is such a table'}"), end="")


@verb
def envs() -> None:
    """List the environments, their contexts and the presets."""
    prepare_jax(Device.cpu)
    from metastep.experiments.overview import print_overview

    print_overview()


from metastep.cli import tasks as _tasks  # noqa: E402, F401  (registers its verbs, after those above)
