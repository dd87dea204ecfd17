"""Options and arguments that several verbs share."""

from pathlib import Path
from typing import Annotated, Literal

import typer

Scale = Literal["quick", "full"]  # how large an experiment is
Device = Literal["cpu", "gpu"]  # where the simulation runs

PresetArgument = Annotated[str, typer.Argument(help="A preset (see `metastep envs`) or the path of a .toml file.")]
_SCALE_HELP = "full: the file as it is (presets: the paper's settings); quick, if it has such a table: with that."
ScaleOption = Annotated[Scale | None, typer.Option(help=_SCALE_HELP)]
SeedOption = Annotated[int | None, typer.Option(help="Seed of everything random.", min=0, max=2**32 - 1)]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="Override a setting: section.key=value.")]
DeviceOption = Annotated[Device | None, typer.Option(help="Simulate on the CPU or on a GPU; default: what JAX finds.")]
CoresOption = Annotated[
    int | None, typer.Option(help="Processors to use; default: all. No result depends on it.", min=1)
]
_WORKERS_HELP = "Start so many processes that do the work (Dask); they share the cores, and take a GPU each."
WorkersOption = Annotated[int | None, typer.Option(help=_WORKERS_HELP, min=1, max=1024)]
_SCHEDULER_HELP = "Address of a Dask scheduler whose workers do the work, like tls://10.0.0.1:8786."
SchedulerOption = Annotated[str | None, typer.Option(help=_SCHEDULER_HELP)]
_TLS_HELP = "PEM file for --scheduler tls://...; authority, certificate and key must be given together."
TLSOption = Annotated[Path | None, typer.Option(help=_TLS_HELP)]
OutOption = Annotated[Path | None, typer.Option(help="Folder of the run; default: runs/NAME, or runs/NAME-SCALE.")]
TasksOption = Annotated[Path | None, typer.Option(help="CSV or JSON file of contexts to train on.")]
FolderArgument = Annotated[Path, typer.Argument(help="Folder of a run.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace the file where there is one.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Start even what would take weeks.")]
_IMPORTS_HELP = "Import the modules that the folder's configuration names: this runs their code."
ImportsOption = Annotated[bool, typer.Option("--allow-imports", help=_IMPORTS_HELP)]
_MODEL_HELP = "A model that comes with the library (see `metastep models`), a file or the folder of a run."
ModelArgument = Annotated[str, typer.Argument(help=_MODEL_HELP)]
TASK_HELP = "The task: NAME=VALUE,...; what is not named is in the middle of its range."
