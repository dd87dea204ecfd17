"""`python -m paper`: reproduce figures and tables, write a page of results, check a folder."""

from pathlib import Path
from typing import Annotated, Any

import typer

from metastep import InputError
from metastep.cli.frame import ForceOption, Scale, SetOption, YesOption, main, print_findings, program, watch, working
from paper.registry import IDS

app = program("python -m paper")
_IDS_HELP = f"What to reproduce: all, or some of {', '.join(IDS)}."


@app.command()
@working
def reproduce(
    terminal: Any,
    ids: Annotated[list[str], typer.Argument(help=_IDS_HELP)],
    out: Annotated[Path | None, typer.Option(help="Folder; default: runs/reproduce-SCALE and the named --env.")] = None,
    scale: Annotated[Scale, typer.Option(help="Minutes, or the paper's settings.")] = "quick",
    seed: Annotated[int, typer.Option(help="Seed of everything random.", min=0, max=2**32 - 1)] = 0,
    env: Annotated[
        list[str] | None, typer.Option(help="Environment (repeat for more); halfcheetah only if named.")
    ] = None,
    overrides: SetOption = None,
    yes: YesOption = False,
) -> None:
    """Make figures and tables of the paper. Each has a claim, the measured effect and a verdict."""
    from metastep.experiments.reporting import in_words
    from metastep.experiments.stages import read_times
    from paper.runner import reproduce as made

    folder = out or Path("runs") / "-".join(["reproduce", scale, *sorted(set(env or ()))])
    for outcome in made(ids, folder, scale, seed, terminal, overrides or (), env or (), anyway=yes):
        print(outcome.line())
    if seconds := read_times(folder):
        print(f"what it took: {in_words(seconds)}")
    print(f"all rows: {folder / 'results.md'}")


@app.command()
def results(
    folders: Annotated[list[Path], typer.Argument(help="Folders of `python -m paper reproduce` or `metastep run`.")],
    out: Annotated[Path, typer.Option(help="The Markdown file to write.")],
    force: ForceOption = False,
) -> None:
    """Write one page of results: claims with verdicts, and every method's numbers."""
    if out.exists() and not (force and out.is_file()):
        raise InputError(f"File {out} exists already; use another name, or --force to replace a file.")
    watch("cpu")
    from paper.results import results_markdown

    out.write_text(results_markdown(folders), "utf-8")
    print(out)


@app.command()
def ties(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders of `python -m paper reproduce ties`, of several seeds.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the figure.")],
) -> None:
    """Choose the rule for ties from validation tasks of several folders, and draw AUC against N for each environment."""
    watch("cpu")
    from paper.ties import collected

    print(collected(folders, out).line())


@app.command()
def check(folder: Annotated[Path, typer.Argument(help="Folder of `python -m paper reproduce`.")]) -> None:
    """Verify every file of a reproduction and its runs; exit code 1 if anything is wrong."""
    watch("cpu")
    from paper.runner import check_reproduction

    print_findings(check_reproduction(folder), folder)


if __name__ == "__main__":
    main(app)
