"""What all verbs share: registration, options, error messages, device and workers, exit."""

import functools
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from inspect import Signature, signature
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from metastep._core.errors import InputError, printable
from metastep._core.parallel import prepare_jax, use_cores

STOPPED = 130  # exit code after Ctrl-C, as shells have it
# They change no result, so that a recorded command leaves them out.
_WORKERS = ("--cores", "--workers", "--scheduler", "--tls-ca", "--tls-cert", "--tls-key")
_AT_THE_END = ExitStack()  # what to close when a verb ends

# Options and arguments that several verbs share.
Scale = Literal["quick", "full"]
PresetArgument = Annotated[str, typer.Argument(help="A preset (see `metastep envs`) or the path of a .toml file.")]
_SCALE_HELP = "full: the settings as they are; quick: with those of the table [quick], the default where there is one."
ScaleOption = Annotated[Scale | None, typer.Option(help=_SCALE_HELP)]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="Override a setting: section.key=value.")]
_DEVICE_HELP = "Simulate on the CPU or on a GPU; default: what JAX finds."
DeviceOption = Annotated[Literal["cpu", "gpu"] | None, typer.Option(help=_DEVICE_HELP)]
CoresOption = Annotated[int | None, typer.Option(help="Processors to use; default: all. Changes no result.", min=1)]
_WORKERS_HELP = "Number of worker processes to start (Dask). They share the cores, and take a GPU each."
_SCHEDULER_HELP = "Address of a Dask scheduler whose workers do the work, like tls://10.0.0.1:8786."
_TLS_HELP = "PEM file of the {} for --scheduler tls://...; needs the other two as well."
FolderArgument = Annotated[Path, typer.Argument(help="Folder of a run.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace the file where there is one.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Start even what would take weeks.")]
_IMPORTS_HELP = "Import the modules that the folder's configuration names: this runs their code."
ImportsOption = Annotated[bool, typer.Option("--allow-imports", help=_IMPORTS_HELP)]
SOURCE_HELP = "A preset (see `metastep envs`), a .toml file or the folder of a run."
DATA_HELP = "Reuse the training data of this run, whose settings must agree."
ENV_HELP = "Family of tasks in place of the source's: a name or module:Env."
FAMILY_HELP = "For a model of many families: a preset or a TOML file, whose loop is used."
TASK_HELP = "The task: NAME=VALUE,...; what is not named is in the middle of its range."


class Program(TyperGroup):
    """Verbs that answer bad input with one sentence and exit code 2, and Ctrl-C with how to resume."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with _AT_THE_END:
                super().invoke(ctx)
            sys.stdout.flush()
        except InputError as error:
            print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            print("stopped; the same command resumes where it was.", file=sys.stderr)
            raise typer.Exit(STOPPED) from None
        except BrokenPipeError:
            drop_output()  # the reader closed the pipe, like `| head`
        # a name that is too long, a folder that may not be read, a full disk behind the output
        except OSError as error:
            raise refused(error) from None


def program(name: str) -> typer.Typer:
    """Return a command line without verbs."""
    plain: Any = {"add_completion": False, "pretty_exceptions_enable": False, "rich_markup_mode": None}
    return typer.Typer(name=name, cls=Program, no_args_is_help=True, **plain)


app = program("metastep")
verb = app.command()


def refused(error: OSError) -> typer.Exit:
    """Print what the operating system refuses; where it is our own output, stop writing to it."""
    what = "The output" if error.filename is None else str(error.filename)
    if error.filename is None:
        drop_output()
    with suppress(OSError):
        print(f"error: {what:.300} cannot be used: {error.strerror or error}.", file=sys.stderr, flush=True)
    return typer.Exit(2)


def drop_output() -> None:
    """Discard further output, so that the interpreter does not fail on it at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def watch(
    device: DeviceOption = None,
    cores: CoresOption = None,
    workers: Annotated[int | None, typer.Option(help=_WORKERS_HELP, min=1, max=1024)] = None,
    scheduler: Annotated[str | None, typer.Option(help=_SCHEDULER_HELP)] = None,
    tls_ca: Annotated[Path | None, typer.Option(help=_TLS_HELP.format("certificate authority"))] = None,
    tls_cert: Annotated[Path | None, typer.Option(help=_TLS_HELP.format("certificate"))] = None,
    tls_key: Annotated[Path | None, typer.Option(help=_TLS_HELP.format("private key"))] = None,
) -> Any:
    """Choose device and workers, and return the progress display.

    To be called first: an environment may choose its engine by the device, and bad input must leave no folder behind.
    """
    from metastep._core.progress import Terminal

    use_cores(cores)
    if workers is not None and scheduler is not None:
        raise InputError(f"--workers: {workers} of them cannot be started where --scheduler names a cluster that runs.")
    if scheduler is None and (tls_ca or tls_cert or tls_key):
        raise InputError("--tls-ca, --tls-cert, --tls-key: they are for --scheduler tls://..., which is missing.")
    if workers is not None:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else one process takes most of the GPU
    prepare_jax(device)
    if workers is not None or scheduler is not None:
        try:
            from metastep.integrations import dask
        except ImportError:
            asked = "--workers" if scheduler is None else "--scheduler"
            raise InputError(f'{asked}: it needs an extra, install it with pip install "metastep[dask]".') from None
        tls = tls_ca, tls_cert, tls_key
        pool = dask.workers(workers or 1) if scheduler is None else dask.cluster_at(scheduler, *tls)
        _AT_THE_END.enter_context(pool)
    return Terminal()


def print_findings(findings: Sequence[tuple[Path, str]], folder: Path, busy: str = "") -> None:
    """Print files and their problems, "" for none; the exit code is 1 if there is one. `busy` says who writes there now."""
    for path, problem in findings:
        print(printable(f"{os.path.relpath(path, folder)}: {problem or 'ok'}"))  # a file's name may move the cursor
    if busy:
        print(f"{busy} is writing here now; check again when it has ended.")
    if wrong := sum(bool(problem) for _, problem in findings):
        print(f"{wrong} of {len(findings)} files have a problem.")
        raise typer.Exit(1)
    print(f"all {len(findings)} files are ok.")


def with_options_of(source: Callable[..., Any], name: str, **fixed: Any) -> Callable[..., Callable[..., None]]:
    """Give a verb the options of a function, but for those that are fixed, and what it returns as the argument `name`."""
    options = {key: option for key, option in signature(source).parameters.items() if key not in fixed}

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = [each for key, each in signature(function).parameters.items() if key != name]

        @functools.wraps(function)
        def call(**arguments: Any) -> None:
            result = source(**fixed, **{key: arguments.pop(key) for key in options})
            function(**{name: result}, **arguments)

        call.__signature__ = Signature([*own, *options.values()])  # type: ignore[attr-defined]
        return call

    return decorate


working = with_options_of(watch, "terminal")


def this_command() -> str:
    """Return what was typed, without options that change no result."""
    words, kept = iter(["metastep", *sys.argv[1:]]), []
    for word in words:
        name, equals, _ = word.partition("=")
        if name not in _WORKERS:
            kept.append(word)
        elif not equals:
            next(words, None)
    line = shlex.join(kept)
    return os.fsencode(line).decode("utf-8", "backslashreplace")  # a path need not be UTF-8, the file it goes to is


def main(program: typer.Typer = app) -> None:
    """Run the command line of a program."""
    # Replace closed streams, whose numbers other files would take, and let paths of any bytes be printed.
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        program()
    except OSError as error:  # outside the verbs: `--help` onto a full disk
        raise SystemExit(refused(error).exit_code) from None
    except SystemExit as end:
        if end.code == STOPPED:
            # Without the interpreter's cleanup, in which threads that compile or simulate would crash; files are whole.
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError):
                    stream.flush()
            os._exit(STOPPED)
        raise
