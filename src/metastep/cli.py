"""The command line: parses, calls one function, prints. Heavy imports happen inside the verbs, so `--help` is quick."""

import functools
import os
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from metastep.errors import InputError

app = typer.Typer(
    name="metastep",
    help="Learn the step size of policy-gradient methods over families of related tasks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def verb(function: Callable[..., None]) -> Callable[..., None]:
    """Register a verb: bad input is one sentence and exit code 2, and Ctrl-C says how to go on."""

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
            sys.stdout.flush()
        except InputError as error:
            print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            print("stopped; the same command resumes where it was.", file=sys.stderr)
            raise typer.Exit(130) from None
        except BrokenPipeError:
            # The reader of our output went away (`| head`): nothing is wrong, nothing more can be said.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    return app.command()(guarded)


class Scale(StrEnum):
    """How large an experiment is."""

    quick = "quick"
    paper = "paper"


class Device(StrEnum):
    """Where the simulation runs."""

    cpu = "cpu"
    gpu = "gpu"


PresetArgument = Annotated[str, typer.Argument(help="A preset (see `metastep envs`) or the path of a .toml file.")]
ScaleOption = Annotated[Scale, typer.Option(help="Minutes, or the paper's settings.")]
SeedOption = Annotated[int | None, typer.Option(help="Seed of everything random.", min=0, max=2**32 - 1)]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="Override a setting: section.key=value.")]
DeviceOption = Annotated[Device | None, typer.Option(help="Simulate on the CPU or on a GPU; default: what JAX finds.")]


def prepare_jax(device: Device | None) -> None:
    """Choose the device and cache compilations on disk, before anything compiles."""
    import jax

    if device is not None:
        jax.config.update("jax_platforms", "cpu" if device is Device.cpu else "cuda,cpu")
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "metastep" / "jax"
        jax.config.update("jax_compilation_cache_dir", str(cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    try:
        jax.devices()
    except RuntimeError as error:
        raise InputError(f"--device: {device} is not available here: {' '.join(str(error).split())[:200]}.") from None


def load_config(preset: str, scale: Scale, seed: int | None, overrides: list[str] | None) -> Any:
    """The resolved configuration of a preset or a file."""
    from metastep.experiments.config import load_file, load_preset

    changes = [*(overrides or []), *([f"seed={seed}"] if seed is not None else [])]
    if preset.endswith(".toml"):
        return load_file(preset, scale.value, changes)
    return load_preset(preset, scale.value, changes)


def parse_share(share: str) -> tuple[int, int]:
    """I/N as two numbers."""
    first, separator, second = share.partition("/")
    if not (separator and first.isdigit() and second.isdigit()):
        raise InputError(f"--share: {share!r} must be I/N, such as 0/4.")
    return int(first), int(second)


@verb
def collect(
    preset: PresetArgument,
    out: Annotated[Path, typer.Option(help="Folder of the dataset.")],
    scale: ScaleOption = Scale.quick,
    seed: SeedOption = None,
    overrides: SetOption = None,
    tasks: Annotated[Path | None, typer.Option(help="CSV or JSON file of contexts to train on.")] = None,
    share: Annotated[str, typer.Option(help="I/N: collect only this process' share of the blocks.")] = "0/1",
    device: DeviceOption = None,
) -> None:
    """Collect training data; a stopped collection resumes where it was."""
    config = load_config(preset, scale, seed, overrides)
    prepare_jax(device)
    from metastep.experiments.stages import collect_dataset
    from metastep.progress import Terminal

    print(collect_dataset(config, out, task_file=tasks, share=parse_share(share), tracker=Terminal()))


@verb
def envs() -> None:
    """List the environments, their contexts and the presets."""
    from metastep.experiments.overview import print_overview

    print_overview()


def main() -> None:
    """Entry point of the `metastep` command."""
    app()
