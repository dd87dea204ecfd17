"""Verbs that use fitted models: learn a policy for a new task, evaluate it, list the models there are."""

from pathlib import Path
from typing import Annotated

import typer

from metastep.cli.frame import this_command, verb, watch
from metastep.cli.options import DeviceOption, ImportsOption

ModelArgument = Annotated[
    str,
    typer.Argument(help="A model that comes with the library (see `metastep models`), a file or the folder of a run."),
]
_TASK_HELP = "The task: NAME=VALUE,...; what is not named is in the middle of its range."


@verb
def learn(
    model: ModelArgument,
    task: Annotated[str, typer.Option(help=_TASK_HELP)] = "",
    out: Annotated[Path, typer.Option(help="Folder of policy, curve and report.")] = Path("runs/learned"),
    updates: Annotated[
        int | None, typer.Option(help="Updates to make; default: as many as the model's experiment compares.", min=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.", min=0, max=2**32 - 1)] = 0,
    device: DeviceOption = None,
    allow_imports: ImportsOption = False,
) -> None:
    """Train a policy on a new task with a fitted model, nothing left to tune; a stopped one resumes where it was."""
    terminal = watch(device)
    from metastep.experiments import new_task
    from metastep.pretrained import load

    learned = new_task.learn(
        load(model),
        task,
        out,
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
    """Simulate fresh episodes of a learned policy and print its mean return."""
    watch(device)
    from metastep.experiments import new_task

    found = new_task.evaluate(policy, task=task, episodes=episodes, seed=seed, allow_imports=allow_imports)
    named = ", ".join(f"{name} = {value:g}" for name, value in found.task.items())
    print(f"{named}: mean return {found.mean:.5g}, standard error {found.error:.2g}, {found.episodes} episodes")
