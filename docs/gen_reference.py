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
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from typer.main import get_command
from typer.testing import CliRunner

import metastep
from metastep.cli import app
from metastep.experiments.reference import literal, section_in
from metastep.experiments.schema import PartSection
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

_WORDS = {int: "whole number", float: "number", bool: "true or false", str: "text", dict: "table", Any: "anything"}
_BOUNDS = {Ge: ("ge", "at least"), Gt: ("gt", "above"), Le: ("le", "at most"), Lt: ("lt", "below")}
_NO_LIMIT = 1e9  # a larger bound only keeps a number a number


def configuration() -> str:
    """One heading for each section of a configuration, and below it a table of its settings."""
    return "\n\n".join(_sections(metastep.Experiment, "", "Settings outside any section."))


def _sections(schema: type[BaseModel], path: str, sentence: str, part: str = "") -> Iterator[str]:
    """Yield a section, then the sections inside it; `part` is the name of a part by default."""
    rows, inner = ["| setting | what is allowed | default | meaning |", "|---|---|---|---|"], {}
    for name, field in schema.model_fields.items():
        if section := section_in(field.annotation):
            inner[name] = section
            if get_origin(field.annotation) is not dict:
                continue
        default = "not set" if field.default is None else f"`{literal(field.default)}`"
        default = "must be set" if field.is_required() else default
        default = f"`{literal(part)}`" if name == "name" and part else default
        cells = (f"`{name}`", _allowed(field.annotation, field.metadata), default, field.description or "")
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    yield "\n\n".join([f"## `[{path}]`" if path else "## Top level", sentence, "\n".join(rows)])
    for name, section in inner.items():
        field = schema.model_fields[name]
        place = f"{path}.{name}".lstrip(".") + (".NAME" if get_origin(field.annotation) is dict else "")
        part = field.default.name if isinstance(field.default, PartSection) else ""
        sentences = [field.description] * (section is PartSection) + [inspect.getdoc(section)]
        yield from _sections(section, place, " ".join(filter(None, sentences)), part)


def _allowed(kind: Any, metadata: Any = ()) -> str:
    """Describe a type in the terms of TOML, with its bounds."""
    if get_origin(kind) is Annotated:
        kind, *more = get_args(kind)
        metadata = (*metadata, *more)
    arguments = get_args(kind)
    if get_origin(kind) is Literal:
        words = ", ".join(f"`{literal(choice)}`" for choice in arguments)
    elif get_origin(kind) in (Union, UnionType):
        words = " or ".join(_allowed(choice) for choice in arguments if choice is not NoneType)
    elif get_origin(kind) is tuple:
        words = f"list, each {_allowed(arguments[0])}"
    else:
        words = _WORDS.get(get_origin(kind) or kind, getattr(kind, "__name__", str(kind)))
    # Pydantic wraps the bounds of an annotated type once more.
    bounds = [bound for item in metadata for bound in getattr(item, "metadata", [item]) if type(bound) in _BOUNDS]
    named = ((_BOUNDS[type(bound)][1], getattr(bound, _BOUNDS[type(bound)][0])) for bound in bounds)
    found = [f"{word} {value:,.10g}" for word, value in named if value < _NO_LIMIT]
    return " ".join([words, ", ".join(found)]) if found else words


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
    "configuration": configuration,
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
