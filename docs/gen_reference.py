"""Write the tables of the documentation that follow from the code.

    python docs/gen_reference.py --write    # bring every page up to date
    python docs/gen_reference.py            # list pages that are out of date; exit code 1 if there are any

A page holds each table between `<!-- generated: NAME -->` and `<!-- end -->`. `tests/test_docs.py` checks that all are current.
"""

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path

from typer.main import get_command
from typer.testing import CliRunner

import metastep
from metastep.cli import app
from metastep.experiments.reference import configuration_markdown
from metastep.features.diagnostics import DIAGNOSTICS

DOCS = Path(__file__).resolve().parent
_GENERATED = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", flags=re.S)
_WIDTH = 100  # characters of the help texts

# Where parts are registered, and the setting that names one.
REGISTRIES = {
    "metastep.envs": "Environments: `env.name`",
    "metastep.policies": "Policies: `policy.name`",
    "metastep.rules": "Update rules: `meta.rule`",
    "metastep.features": "Features: `meta.observation`",
    "metastep.controllers": "Controllers: `controller` of a method",
    "metastep.regressors": "Regressors: `fqi.regressor`",
}


def command_line() -> str:
    """One section for each verb: the output of `metastep VERB --help`."""
    return "\n\n".join(f"## `metastep {verb}`\n\n```text\n{_help(verb)}\n```" for verb in get_command(app).commands)


def _help(verb: str) -> str:
    shown = CliRunner().invoke(app, [verb, "--help"], terminal_width=_WIDTH, prog_name="metastep")
    if shown.exit_code:
        raise RuntimeError(f"metastep {verb} --help: {shown.output}")
    return "\n".join(line.rstrip() for line in shown.output.strip().splitlines())


def parts() -> str:
    """One table for each registry: names, options and the first sentence of each class."""
    tables = ["\n".join(_registry(module, title)) for module, title in REGISTRIES.items()]
    return "\n\n".join([*tables, "\n".join(_methods())])


def _registry(module: str, title: str) -> Iterator[str]:
    registry = attrgetter(module.removeprefix("metastep."))(metastep).REGISTRY
    yield from (
        f"## {title}",
        "",
        f"Registered in `{module}`.",
        "",
        "| name | options | description |",
        "|---|---|---|",
    )
    for name in registry.names():
        options = ", ".join(f"`{option}`" for option in registry.options(name))
        summary = (inspect.getdoc(registry.entry(name).factory) or "").partition("\n\n")[0]
        yield f"| `{name}` | {options} | {' '.join(summary.split()).replace('|', '&#124;')} |"


def _methods() -> Iterator[str]:
    yield "## Methods: `compare.methods`\n"
    yield "Registered in `metastep.baselines`. The grid shows the values that are tried unless a file sets others. A file must"
    yield "set those without values; only step sizes along the experiment's rule have a default: ten values of their range,"
    yield "equally spaced on its scale, without the smallest.\n"
    yield "| name | label | rule | controller | grid |\n|---|---|---|---|---|"
    for name in metastep.baselines.names():
        spec = metastep.baselines.make(name)
        grid = "; ".join(
            f"`{option}`{': ' if values else ''}{', '.join(f'{value:g}' for value in values)}"
            for option, values in (dict.fromkeys(spec.needs_grid, ()) | dict(spec.grid)).items()
        )
        rule = f"`{spec.rule}`" if spec.rule else "the experiment's"
        yield f"| `{name}` | {spec.label} | {rule} | `{spec.controller}` | {grid} |"


def diagnostics() -> str:
    """The numbers that a training loop may report to a stepper."""
    return "\n".join(
        ["| name | meaning |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in DIAGNOSTICS.items())]
    )


GENERATED: dict[str, Callable[[], str]] = {
    "configuration": configuration_markdown,
    "command_line": command_line,
    "parts": parts,
    "diagnostics": diagnostics,
}


def outdated() -> dict[Path, str]:
    """Pages whose tables differ from the code, each with its new text."""
    new = {}
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text("utf-8")
        current = _GENERATED.sub(lambda found: f"{found[1]}\n{GENERATED[found[2]]().strip()}\n\n{found[3]}", text)
        if current != text:
            new[page] = current
    return new


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Check or write the generated tables of the documentation.")
    parser.add_argument("--write", action="store_true", help="write the tables instead of listing outdated pages")
    write = parser.parse_args().write
    pages = outdated()
    for page, text in pages.items():
        print(f"{'wrote' if write else 'out of date:'} {page.relative_to(DOCS.parent)}")
        if write:
            page.write_text(text, "utf-8")
    sys.exit(bool(pages) and not write)
