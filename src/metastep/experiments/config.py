"""Configurations from presets and files, and one sentence for whatever is wrong with them.

A preset is a TOML file whose tables are the sections of `Experiment`, at the paper's scale (SPEC section 6); its table
`[quick]` overrides some of them for a run of a minute or two. A user's own file has the same form.
"""

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ValidationError

from metastep.errors import InputError
from metastep.experiments.schema import Experiment, shown

__all__ = ["Experiment", "Scale", "list_presets", "load_file", "load_preset", "parse"]

Scale = Literal["quick", "paper"]

# Clearer than what pydantic says about these.
_PLAINER = {
    "model_type": "must be a table of settings",
    "dict_type": "must be a table",
    "tuple_type": "must be a list",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
}


def list_presets() -> tuple[str, ...]:
    """Names of the experiments that come with the library."""
    files = resources.files("metastep.experiments").joinpath("presets").iterdir()
    return tuple(sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")))


def load_preset(name: str, scale: Scale = "quick", overrides: Sequence[str] = ()) -> Experiment:
    """A preset at one of its scales, with overrides like `fqi.trees=20`."""
    if name not in list_presets():
        raise InputError(f"preset: {name!r} does not exist{_nearest(name, list_presets())}")
    text = resources.files("metastep.experiments").joinpath("presets", f"{name}.toml").read_text("utf-8")
    return _resolve(tomllib.loads(text), scale, overrides)


def load_file(path: str | Path, scale: Scale = "paper", overrides: Sequence[str] = ()) -> Experiment:
    """A user's own file; `scale="quick"` applies its `[quick]` table, which must then be there."""
    try:
        data = tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise InputError(f"File {path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"File {path} is not valid TOML: {_one_line(error)}.") from error
    if scale == "quick" and "quick" not in data:
        raise InputError(f"scale: 'quick' needs a table [quick] in {path}, which has none; give --scale paper.")
    return _resolve(data, scale, overrides)


def parse(data: Mapping[str, Any]) -> Experiment:
    """Check a configuration, or say in one sentence what is wrong with it."""
    try:
        return Experiment.model_validate(_with_tuples(data))
    except ValidationError as error:
        raise InputError(_sentence(error)) from error


def _resolve(data: dict[str, Any], scale: str, overrides: Sequence[str]) -> Experiment:
    if scale not in get_args(Scale):
        raise InputError(f"scale: {scale!r} must be one of {', '.join(get_args(Scale))}.")
    quick = data.pop("quick", {})
    if scale == "quick":
        if not isinstance(quick, dict):
            raise InputError(f"quick: {shown(quick)} must be a table of settings.")
        data = _merged(data, quick)
    for override in overrides:
        _apply(override, data)
    return parse(data)


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in changes.items():
        old = base.get(name)
        merged[name] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _apply(override: str, data: dict[str, Any]) -> None:
    key, equals, text = override.partition("=")
    if not equals:
        raise InputError(f"--set: {shown(override)} must have the form section.key=value.")
    *parents, name = key.strip().split(".")
    if not all((*parents, name)):
        raise InputError(f"--set: {shown(override)} lacks the name of a setting, as in section.key=value.")
    for parent in parents:
        inner = data.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise InputError(f"--set: {shown(override)} goes into {parent}, which is a value and not a table.")
        data = inner
    data[name] = _toml_value(override, text)


def _toml_value(override: str, text: str) -> Any:
    """A number, list, table, ... as TOML writes it; what is none of these is taken as text."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        if text.strip()[:1] in ("[", "{"):
            raise InputError(
                f'--set: {shown(override)} is no TOML value, text in a list or table needs quotes, as in key=["text"].'
            ) from None
        return text.strip()
    return parsed["value"] if len(parsed) == 1 else text.strip()


def _with_tuples(value: Any) -> Any:
    """TOML and JSON know lists only, the strict schema takes tuples only."""
    if isinstance(value, Mapping):
        return {key: _with_tuples(item) for key, item in value.items()}
    return tuple(_with_tuples(item) for item in value) if isinstance(value, list | tuple) else value


def _sentence(error: ValidationError) -> str:
    """The first problem of a configuration; an unknown key goes first, since it may explain one that is missing."""
    problems = error.errors(include_url=False)
    problem = next((item for item in problems if item["type"] == "extra_forbidden"), problems[0])
    dotted, message = _dotted(problem["loc"]), problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        return f"{dotted}: is not a setting{_nearest(dotted, _all_settings(Experiment))}"
    if problem["type"] == "missing":
        return f"{dotted}: is missing, it must be set."
    if problem["type"] == "value_error" and not message.startswith("must"):  # a section's own check names the field
        return f"{dotted}.{message}.".removeprefix(".")
    message = _PLAINER.get(problem["type"]) or re.sub(r"^\w+ should", "must", message)
    return f"{dotted or 'configuration'}: {shown(problem['input'])} {message}."


def _dotted(location: tuple[int | str, ...]) -> str:
    parts = (
        f"[{part}]" if isinstance(part, int) else f".{part if part.isidentifier() else shown(part)}"
        for part in location
    )
    return "".join(parts).removeprefix(".")


def _all_settings(section: type[BaseModel], prefix: str = "") -> list[str]:
    names = []
    for name, field in section.model_fields.items():
        names.append(prefix + name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            names += _all_settings(field.annotation, f"{prefix}{name}.")
    return names


def _nearest(name: str, candidates: Sequence[str]) -> str:
    """The likeliest meaning: the same last word in another place, else the most similar name."""
    last = name.rpartition(".")[2]
    elsewhere = [candidate for candidate in candidates if candidate.rpartition(".")[2] == last]
    near = difflib.get_close_matches(name, elsewhere or candidates, n=1, cutoff=0.0)
    return f", did you mean {near[0]!r}?"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or "nested too deeply"
