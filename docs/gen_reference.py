"""Hook of MkDocs: fills in the parts of the reference that are written from the code.

A line that begins with `<!-- generated: NAME -->` on a page is replaced by what the function of that name in `GENERATED`
returns. So the pages cannot fall behind the schema, the command line and the registries.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

from typer.main import get_command
from typer.testing import CliRunner

import metastep
from metastep.cli import app
from metastep.experiments.reference import configuration_markdown
from metastep.features.diagnostics import DIAGNOSTICS

_MARK = re.compile(r"^<!-- generated: (\w+) -->.*$", flags=re.M)
_WIDTH = 100  # characters of the help texts
_WHY = "what-does-not-hold.md"
_WHY_TOO = f"[What does not hold, and why]({_WHY}) has what we found where we disagree."

# Where parts are registered, and what a name is good for.
REGISTRIES = {
    "metastep.envs": "Environments: `env.name`",
    "metastep.policies": "Policies: `policy.name`",
    "metastep.rules": "Update rules: `meta.rule`",
    "metastep.features": "Features: `meta.observation`",
    "metastep.controllers": "Controllers: `controller` of a method",
    "metastep.regressors": "Regressors: `fqi.regressor`",
}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """What MkDocs calls for every page before it is rendered."""
    if page.parent is None:  # a page that is a tab by itself has no neighbours to list, and wide tables
        page.meta["hide"] = ["navigation"]
    if page.file.src_uri.startswith("results"):
        page.meta["hide"] = ["toc"]  # the tables are wide
        if _WHY not in markdown:  # a command writes that page whole
            markdown = markdown.replace("\n## ", f"\n{_WHY_TOO}\n\n## ", 1)
    return _MARK.sub(lambda mark: GENERATED[mark.group(1)](), markdown)


def command_line_markdown() -> str:
    """One section for each verb: what `metastep VERB --help` prints."""
    return "\n\n".join(f"## `metastep {verb}`\n\n```text\n{_help(verb)}\n```" for verb in get_command(app).commands)


def _help(verb: str) -> str:
    shown = CliRunner().invoke(app, [verb, "--help"], terminal_width=_WIDTH, prog_name="metastep")
    if shown.exit_code:
        raise RuntimeError(f"metastep {verb} --help: {shown.output}")
    return "\n".join(line.rstrip() for line in shown.output.strip().splitlines())


def parts_markdown() -> str:
    """One table for each registry: every name with its options and the first sentence of its class."""
    tables = ["\n".join(_registry(module, title)) for module, title in REGISTRIES.items()]
    return "\n\n".join([*tables, "\n".join(_methods())])


def _registry(module: str, title: str) -> Iterator[str]:
    registry = attrgetter(module.removeprefix("metastep."))(metastep).REGISTRY
    yield from (f"## {title}", "", f"Registered in `{module}`.", "", "| name | options | what it is |", "|---|---|---|")
    for name in registry.names():
        options = ", ".join(f"`{option}`" for option in registry.options(name))
        summary = (inspect.getdoc(registry.entry(name).factory) or "").partition("\n\n")[0]
        yield f"| `{name}` | {options} | {' '.join(summary.split()).replace('|', '&#124;')} |"


def _methods() -> Iterator[str]:
    """A method is data: what it consists of says what it is."""
    yield "## Methods: `compare.methods`\n"
    yield "Registered in `metastep.baselines`. The values of a grid that stand here are tried unless a file says otherwise."
    yield "Where there are none, a file must give them; only step sizes along the experiment's rule have a default, ten values"
    yield "of their range, equally spaced on its scale, without the smallest.\n"
    yield "| name | label | rule | controller | grid |\n|---|---|---|---|---|"
    for name in metastep.baselines.names():
        spec = metastep.baselines.make(name)
        grid = "; ".join(
            f"`{option}`{': ' if values else ''}{', '.join(f'{value:g}' for value in values)}"
            for option, values in (dict.fromkeys(spec.needs_grid, ()) | dict(spec.grid)).items()
        )
        rule = f"`{spec.rule}`" if spec.rule else "the experiment's"
        yield f"| `{name}` | {spec.label} | {rule} | `{spec.controller}` | {grid} |"


def diagnostics_markdown() -> str:
    """What a loop may tell a stepper."""
    rows = (f"| `{name}` | {meaning} |" for name, meaning in DIAGNOSTICS.items())
    return "\n".join(["| name | meaning |", "|---|---|", *rows])


GENERATED: dict[str, Callable[[], str]] = {
    "configuration": configuration_markdown,
    "command_line": command_line_markdown,
    "parts": parts_markdown,
    "diagnostics": diagnostics_markdown,
}
