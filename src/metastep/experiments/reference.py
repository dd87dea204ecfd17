"""Settings in words: a configuration as TOML with a sentence for each field, and what is wrong with one."""

import difflib
import inspect
import json
import re
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from metastep import controllers, policies, rules
from metastep._core.errors import shown
from metastep._core.registry import Registry
from metastep._core.settings import REQUIRED, plainly, settings_of
from metastep.experiments.schema import Experiment
from metastep.fqi import regressors

# The registries whose options stand in sections of the schema, by the section's name.
_REGISTRIES: dict[str, Registry[Any]] = {
    "PolicySection": policies.REGISTRY,
    "RuleSection": rules.REGISTRY,
    "ControllerSection": controllers.REGISTRY,
    "RegressorSection": regressors.REGISTRY,
}


def to_toml(config: Experiment, origin: str = "an experiment") -> str:
    """Return a configuration as a file to edit and run; what is not set is a comment."""
    lines = [f"# Every setting of {origin}. Run it with: metastep run FILE.toml", ""]
    return "\n".join([*lines, *_table(config, "")]).rstrip() + "\n"


def _table(section: BaseModel, prefix: str) -> Iterator[str]:
    """Yield plain settings, then the options of a part, then the tables inside."""
    inner = {}
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if section_in(field.annotation) and value is not None:
            inner[name] = value
            continue
        yield f"# {field.description}"
        yield f"# {name} =" if value is None else f"{name} = {literal(value)}"
    if registry := _REGISTRIES.get(type(section).__name__):
        given, part = section.model_extra or {}, str(getattr(section, "name", ""))
        known = settings_of(registry.entry(part).factory)
        for option in registry.options(part):
            setting = known.get(option)
            yield from [f"# {setting.sentence}"] if setting is not None and setting.sentence else []
            if option in given:
                yield f"{option} = {literal(given[option])}"
            elif setting is not None and isinstance(setting.default, bool | int | float | str | tuple):
                yield f"# {option} = {literal(setting.default)}"
    for name, value in inner.items():
        yield from ("", f"# {type(section).model_fields[name].description}")
        if isinstance(value, BaseModel):
            yield f"[{prefix}{name}]"
            yield from _table(value, f"{prefix}{name}.")
            continue
        if isinstance(value, dict):
            tables = [(f"[{prefix}{name}.{_key(key)}]", entry.model_dump()) for key, entry in value.items()]
        else:
            tables = [(f"[[{prefix}{name}]]", entry.model_dump(exclude_defaults=True)) for entry in value]
        for heading, entries in tables:
            yield from (
                heading,
                *(f"{key} = {literal(item)}" for key, item in entries.items() if item not in ({}, None)),
                "",
            )


def section_in(kind: Any) -> type[BaseModel] | None:
    """Return the section that a field is, may be, or lists."""
    choices = [kind, *get_args(kind)]
    return next((choice for choice in choices if inspect.isclass(choice) and issubclass(choice, BaseModel)), None)


def literal(value: Any) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(name)} = {literal(item)}" for name, item in value.items()) + "}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(literal, value))}]"
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name)


def sentence(error: ValidationError) -> str:
    """Return the first problem of a configuration; an unknown key goes first, since it may explain a missing one."""
    problems = error.errors(include_url=False)
    problem = next((item for item in problems if item["type"] == "extra_forbidden"), problems[0])
    parts = (
        f"[{part}]" if isinstance(part, int) else f".{part if part.isidentifier() else shown(part)}"
        for part in problem["loc"]
    )
    dotted, message = "".join(parts).removeprefix("."), plainly(problem)
    if problem["type"] == "extra_forbidden":
        # The likeliest meaning: nearly the same last word in another place, else the most similar name.
        words = {name: name.rpartition(".")[2] for name in _all_settings(Experiment)}
        similar = difflib.get_close_matches(dotted.rpartition(".")[2], words.values(), n=1, cutoff=0.85)
        elsewhere = [name for name, word in words.items() if word in similar]
        (near,) = difflib.get_close_matches(dotted, elsewhere or words, n=1, cutoff=0.0)
        return f"{dotted}: is not a setting, did you mean {near!r}?"
    if problem["type"] == "missing":
        field = Experiment.model_fields.get(dotted)  # a section names its keys
        section = None if field is None else section_in(field.annotation)
        if section is None:
            return f"{dotted}: is missing, it must be set."
        needed = [key for key, inner in section.model_fields.items() if inner.is_required()]
        registry, name = _REGISTRIES.get(section.__name__), section.model_fields.get("name")
        options = registry.options(name.default) if registry is not None and name is not None else {}
        needed += [option for option, default in options.items() if default is REQUIRED]
        return f"{dotted}: is missing, it must be a table [{dotted}]{' with ' * bool(needed)}{', '.join(needed)}."
    if problem["type"] == "value_error" and not message.startswith("must"):  # a section's own check names the field
        return f"{dotted}.{message.rstrip('.')}.".removeprefix(".")
    return f"{dotted or 'configuration'}: {shown(problem['input'])} {message}."


def _all_settings(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield prefix + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _all_settings(field.annotation, f"{prefix}{name}.")
    if registry := _REGISTRIES.get(section.__name__):
        yield from (prefix + option for part in registry.names() for option in registry.options(part))
