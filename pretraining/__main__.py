"""`python -m pretraining`: train the model `ppo`, score it on the final test, and write its card."""

import os
import shlex
import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from metastep.cli.frame import main, program, with_options_of, working

app = program("python -m pretraining")
_UNFINISHED = 3  # exit code where the time is up before there is a result


def _command() -> str:
    return shlex.join(["python", "-m", "pretraining", *sys.argv[1:]])


def _open(
    out: Annotated[Path, typer.Option(help="Folder; a stopped command goes on there.")] = Path("runs/ppo"),
    plan: Annotated[
        str, typer.Option(help="How much: full (a GPU), medium or quick (an hour or 20 minutes on two cores).")
    ] = "full",
    minutes: Annotated[float | None, typer.Option(help="Stop after so many; the same command goes on.", min=0)] = None,
    generations: Annotated[int | None, typer.Option(help="In place of the plan's.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.", min=0, max=2**32 - 1)] = 0,
) -> Any:
    """Return the work of a plan in a folder, as a function of its tracker."""
    from metastep import InputError
    from pretraining.recipe import PLANS, open_plan
    from pretraining.work import Clock, Work

    if plan not in PLANS:
        raise InputError(f"--plan: {plan!r} must be one of {', '.join(PLANS)}.")
    wanted = PLANS[plan] if generations is None else replace(PLANS[plan], generations=generations)
    return partial(Work, open_plan(out, wanted, seed), wanted, seed, Clock(minutes))


@contextmanager
def _until_the_time_is_up() -> Any:
    import jax

    from pretraining.work import OutOfTime

    try:
        yield
    except OutOfTime:
        print("the time is up; the same command goes on.", flush=True)
        if jax.default_backend() != "cpu":
            os._exit(_UNFINISHED)  # without waiting for threads that compile
        raise typer.Exit(_UNFINISHED) from None


@app.command()
@working
@with_options_of(_open, "work")
def train(terminal: Any, work: Any) -> None:
    """Search a controller of all hyperparameters over families and loops, and select its level."""
    from pretraining.recipe import is_finished
    from pretraining.recipe import train as search
    from pretraining.score import write_card

    with _until_the_time_is_up():
        model = search(work := work(terminal))
        write_card(work, model, _command())
        for found in model.record.validation:
            marked = " selected" * (found.level == model.record.level)
            print(f"{found.level}: {found.score:.3f} of the universal rate's gain (error {found.error:.2g}){marked}")
        print(f"{work.folder.path / 'model.safetensors'}: {model.record.search_steps:.3g} environment steps")
        if not is_finished(model, work.plan):
            print("it is the best so far: the same command goes on with the search.", flush=True)


@app.command()
@working
@with_options_of(_open, "work")
def score(terminal: Any, work: Any) -> None:
    """Run the model on the families of the final test."""
    from pretraining.score import score_all

    with _until_the_time_is_up():
        for name, row in score_all(work(terminal))["rows"].items():
            shown = "{:+.3f} ({:+.3f} to {:+.3f})".format
            print(f"{name} ({row['loop']}): over the universal rate {shown(*row['over_universal'])}, ", end="")
            print(f"over its own ({row['own_rate']}) {shown(*row['over_own'])}")


@app.command()
@working
@with_options_of(_open, "work")
def sizes(
    terminal: Any, work: Any, level: Annotated[str, typer.Option(help="constant, schedule or feedback.")] = "schedule"
) -> None:
    """Search again with fewer families, which needs no model: scores on the final test by their number."""
    from metastep import InputError
    from metastep.search import LEVELS
    from pretraining.score import score_by_number

    if level not in LEVELS:
        raise InputError(f"--level: {level!r} must be one of {', '.join(LEVELS)}.")
    with _until_the_time_is_up():
        for number, leads in score_by_number(work(terminal), level).items():
            print(f"{number} families: {sum(leads) / len(leads):+.3f} over the universal rate on {len(leads)} others")


if __name__ == "__main__":
    # XLA measures kernels on the one GPU: threads that compile dozens of programs would wait for each other.
    if "xla_gpu_autotune_level" not in (flags := os.environ.get("XLA_FLAGS", "")):
        os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_autotune_level=0".strip()
    main(app)
