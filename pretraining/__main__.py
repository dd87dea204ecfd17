"""`python -m pretraining`: train the model `ppo`, score it on the final test, and write its card; or fit one on several runs."""

import dataclasses
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from metastep.cli.frame import ForceOption, ImportsOption, main, program, working

app = program("python -m pretraining")
_UNFINISHED = 3  # exit code where the time is up
OutOption = Annotated[Path, typer.Option(help="Folder; a stopped command goes on there.")]
PlanOption = Annotated[str, typer.Option(help="How much: full (a GPU), or quick (20 minutes on two cores).")]
MinutesOption = Annotated[
    float | None, typer.Option(help="Stop after so many minutes; the same command goes on.", min=0)
]
GenerationsOption = Annotated[int | None, typer.Option(help="Generations, in place of the plan's.", min=1)]
SeedOption = Annotated[int, typer.Option(help="Seed of everything random.", min=0, max=2**32 - 1)]


def _carry_on(
    terminal: Any, work: Any, out: Path, plan: str, minutes: float | None, generations: int | None, seed: int
) -> Any:
    """Work until it is done, or the time is up; write the card and return the model."""
    import jax

    from metastep import InputError
    from pretraining.card import write_card
    from pretraining.recipe import PLANS, open_plan
    from pretraining.score import read_scores
    from pretraining.work import Clock, OutOfTime

    if plan not in PLANS:
        raise InputError(f"--plan: {plan!r} must be one of {', '.join(PLANS)}.")
    clock, wanted = Clock(minutes), PLANS[plan]
    wanted = wanted if generations is None else dataclasses.replace(wanted, generations=generations)
    try:
        folder = open_plan(out, wanted, seed)
        found = work(folder, wanted, seed, clock, terminal)
        model = found[0] if isinstance(found, tuple) else found
        command = shlex.join(["python", "-m", "pretraining", *sys.argv[1:]])
        write_card(out, model, wanted, read_scores(folder, model), command)
        return found
    except OutOfTime:
        print("the time is up; the same command goes on.", flush=True)
        if jax.default_backend() != "cpu":
            os._exit(_UNFINISHED)  # without waiting for threads that compile
        raise typer.Exit(_UNFINISHED) from None


@app.command()
@working
def train(
    terminal: Any,
    out: OutOption = Path("runs/ppo"),
    plan: PlanOption = "full",
    minutes: MinutesOption = None,
    generations: GenerationsOption = None,
    seed: SeedOption = 0,
) -> None:
    """Search a controller of all hyperparameters over families and loops, and select its level."""
    from pretraining.recipe import train as search

    model = _carry_on(terminal, search, out, plan, minutes, generations, seed)
    for found in model.record.validation:
        marked = " selected" * (found.level == model.record.level)
        print(f"{found.level}: {found.score:.3f} of the universal rate's gain (error {found.error:.2g}){marked}")
    print(f"{out / 'model.safetensors'}: {model.record.search_steps:.3g} environment steps")


@app.command()
@working
def score(
    terminal: Any,
    out: OutOption = Path("runs/ppo"),
    plan: PlanOption = "full",
    minutes: MinutesOption = None,
    generations: GenerationsOption = None,
    seed: SeedOption = 0,
) -> None:
    """Run the model on the families of the final test, and search again with fewer families."""
    from pretraining.score import print_scores, score_all

    _, scores = _carry_on(terminal, score_all, out, plan, minutes, generations, seed)
    print_scores(scores)


@app.command()
@working
def pooled(
    terminal: Any,
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs, each of another family.")],
    name: Annotated[str, typer.Option(help="Name of the model.")],
    out: Annotated[Path, typer.Option(help="Folder of the model file and its card.")] = Path("models"),
    trees: Annotated[int | None, typer.Option(min=1, help="Trees of every forest to keep; default: all.")] = None,
    allow_imports: ImportsOption = False,
    force: ForceOption = False,
) -> None:
    """Fit one model on the training data of several runs, and write it as a small file with a card."""
    from metastep import Run
    from metastep.experiments.publishing import publish_model, require_free
    from pretraining.pooled import fit_pooled

    require_free(name, out, force)  # before hours of work
    opened = [Run.open(run).importing(allow_imports) for run in runs]
    how: Any = {"command": shlex.join(["python", "-m", "pretraining", *sys.argv[1:]]), "tracker": terminal}
    model = fit_pooled(opened, tracker=terminal)
    print(*publish_model(model, opened, name, out, trees=trees, force=force, **how)[:2], sep="\n")


if __name__ == "__main__":
    main(app)
