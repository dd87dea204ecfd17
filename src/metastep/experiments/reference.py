"""Settings in words: a configuration as TOML with a sentence for each field, and what is wrong with one."""

import difflib
import inspect
import json
import re
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from metastep import policies, rules
from metastep._core.errors import shown
from metastep._core.settings import plainly, settings_of
from metastep.experiments.schema import Experiment
from metastep.fqi import regressors

# The registries of the parts whose options stand in sections of the schema, by section.
_REGISTRIES: Any = {"policy.": policies.REGISTRY, "meta.rule.": rules.REGISTRY, "fqi.regressor.": regressors.REGISTRY}


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
    if registry := _REGISTRIES.get(prefix):
        options, part = section.model_extra or {}, str(getattr(section, "name", ""))
        for option in registry.options(part):
            setting = settings_of(registry.entry(part).factory)[option]
            yield from [f"# {setting.sentence}"] if setting.sentence else []
            if option in options:
                yield f"{option} = {literal(options[option])}"
            elif isinstance(setting.default, bool | int | float | str | tuple):
                yield f"# {option} = {literal(setting.default)}"
    for name, value in inner.items():
        yield from ("", f"# {type(section).model_fields[name].description}")
        if isinstance(value, BaseModel):
            yield f"[{prefix}{name}]"
            yield from _table(value, f"{prefix}{name}.")
            continue
        is_table = isinstance(value, dict)
        for key, entry in value.items() if is_table else ((None, entry) for entry in value):
            yield f"[[{prefix}{name}]]" if key is None else f"[{prefix}{name}.{_key(key)}]"
            entries = entry.model_dump(exclude_defaults=not is_table)
            yield from (f"{key} = {literal(item)}" for key, item in entries.items() if item not in ({}, None))
            yield ""


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
    names = (part if isinstance(part, int) or part.isidentifier() else shown(part) for part in problem["loc"])
    parts = (f"[{name}]" if isinstance(name, int) else f".{name}" for name in names)
    dotted, message = "".join(parts).removeprefix("."), plainly(problem)
    if problem["type"] == "extra_forbidden":
        # The likeliest meaning: nearly the same last word in another place, else the most similar name.
        words = {name: name.rpartition(".")[2] for name in _all_settings(Experiment)}
        similar = difflib.get_close_matches(dotted.rpartition(".")[2], words.values(), n=1, cutoff=0.85)
        elsewhere = [name for name, word in words.items() if word in similar]
        (near,) = difflib.get_close_matches(dotted, elsewhere or words, n=1, cutoff=0.0)
        return f"{dotted}: is not a setting, did you mean {near!r}?"
    if problem["type"] == "missing":
        section = section_in(getattr(Experiment.model_fields.get(dotted), "annotation", None))  # which names its keys
        needed = [key for key, inner in section.model_fields.items() if inner.is_required()] if section else []
        return f"{dotted}: is missing, it must be {f'a table with {needed[0]}' if needed else 'set'}."
    if problem["type"] == "value_error" and not message.startswith("must"):  # a section's own check names the field
        return f"{dotted}.{message.rstrip('.')}.".removeprefix(".")
    return f"{dotted or 'configuration'}: {shown(problem['input'])} {message}."


def _all_settings(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield prefix + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _all_settings(field.annotation, f"{prefix}{name}.")
    if registry := _REGISTRIES.get(prefix):
        yield from (prefix + option for part in registry.names() for option in registry.options(part))
