"""Verbs that use fitted models: learn a policy for a new task, evaluate it, list the models there are."""

from pathlib import Path
from typing import Annotated

import typer

from metastep.cli.frame import this_command, verb, watch
from metastep.cli.options import CoresOption, DeviceOption, ForceOption, ImportsOption

ModelArgument = Annotated[
    str,
    typer.Argument(help="A model that comes with the library (see `metastep models`), a file or the folder of a run."),
]
_TASK_HELP = "The task: NAME=VALUE,...; what is not named is in the middle of its range."


@verb
def learn(
    model: ModelArgument,
    task: Annotated[str, typer.Option(help=_TASK_HELP)] = "",
    family: Annotated[str, typer.Option(help="Of the task; to be named where the model was fitted on several.")] = "",
    out: Annotated[Path, typer.Option(help="Folder of policy, curve and report.")] = Path("runs/learned"),
    updates: Annotated[
        int | None, typer.Option(help="Updates to make; default: as many as the model's experiment compares.", min=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.", min=0, max=2**32 - 1)] = 0,
    device: DeviceOption = None,
    allow_imports: ImportsOption = False,
) -> None:
    """Train a policy on a new task with a fitted model. Nothing is left to tune; a stopped one resumes where it was."""
    terminal = watch(device)
    from metastep.experiments import new_task
    from metastep.pretrained import load

    learned = new_task.learn(
        load(model),
        task,
        out,
        family=family,
        seed=seed,
        num_updates=updates,
        command=this_command(),
        tracker=terminal,
        allow_imports=allow_imports,
    )
    print(f"mean return {learned.first:.4g} before the first update, {learned.last:.4g} after the last.")
    print(f"policy: {out / 'policy.safetensors'}\ncurve: {out / 'curve.csv'}\nreport: {out / 'report.html'}")


@verb
def evaluate(
    policy: Annotated[Path, typer.Argument(help="A policy file, or the folder that `metastep learn` wrote.")],
    task: Annotated[str | None, typer.Option(help=f"Another task. {_TASK_HELP}")] = None,
    episodes: Annotated[int, typer.Option(help="Fresh episodes to simulate.", min=2)] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the episodes.", min=0, max=2**32 - 1)] = 1,
    device: DeviceOption = None,
    allow_imports: ImportsOption = False,
) -> None:
    """Simulate fresh episodes of a learned policy. Their mean return is printed."""
    watch(device)
    from metastep.experiments import evaluating

    found = evaluating.evaluate(policy, task=task, episodes=episodes, seed=seed, allow_imports=allow_imports)
    named = ", ".join(f"{name} = {value:g}" for name, value in found.task.items())
    print(f"{named}: mean return {found.mean:.5g}, standard error {found.error:.2g}, {found.episodes} episodes")


@verb
def publish(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of finished runs; of several, one model is fitted on all data.")
    ],
    name: Annotated[str, typer.Option(help="Name of the model.")],
    out: Annotated[Path, typer.Option(help="Folder of the model file and its card.")] = Path("models"),
    trees: Annotated[int | None, typer.Option(min=1, help="Trees of every forest to keep; default: all.")] = None,
    device: DeviceOption = None,
    cores: CoresOption = None,
    allow_imports: ImportsOption = False,
    force: ForceOption = False,
) -> None:
    """Write the model of a run as a small file with a card. Of several runs it is one model for all families."""
    terminal = watch(device, cores)
    from metastep.experiments.publishing import publish as written
    from metastep.experiments.run import Run

    opened = [Run.open(run).importing(allow_imports) for run in runs]
    found = written(opened, name, out, trees=trees, command=this_command(), force=force, tracker=terminal)
    print(f"{found.model}: {found.num_bytes / 1000:.0f} kB, the same proposals as before for {100 * found.same:.2f} %")
    print(found.card)


@verb
def models(name: Annotated[str, typer.Argument(help="Print the card of this one.")] = "") -> None:
    """List the models that come along, or show a card."""
    from metastep import pretrained

    if name:
        print(pretrained.card(name), end="")
        return
    for each in pretrained.names():
        record = pretrained.load(each).record
        families = ", ".join(record.setting.get("families", [record.environment]))
        print(f"{each}: {record.setting['rule']['name']} on {families}, {record.training_data.tuples} updates")
    if not pretrained.names():
        print("There are none in this version; `metastep publish` makes one of a run.")
