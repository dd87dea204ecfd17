"""A configuration as TOML with a sentence for each field, and the reference of all settings as Markdown."""

import inspect
import json
import re
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from metastep._core.settings import settings_of
from metastep.experiments.config import part_registries
from metastep.experiments.schema import Experiment

_HEAD = "| setting | what is allowed | default | meaning |\n|---|---|---|---|"
_WORDS = {int: "whole number", float: "number", bool: "true or false", str: "text", dict: "table", Any: "anything"}
_NO_LIMIT = 1e9
_BOUNDS: dict[type, tuple[str, str]] = {
    Ge: ("ge", "at least"),
    Gt: ("gt", "above"),
    Le: ("le", "at most"),
    Lt: ("lt", "below"),
}


def to_toml(config: Experiment, origin: str = "an experiment") -> str:
    """Return a configuration as a file to edit and run; what is not set is a comment."""
    lines = [f"# Every setting of {origin}. Run it with: metastep run FILE.toml", ""]
    return "\n".join([*lines, *_table(config, "")]).rstrip() + "\n"


def _table(section: BaseModel, prefix: str) -> Iterator[str]:
    """Yield plain settings, then the tables inside."""
    inner = {}
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if _inside(field.annotation) and value is not None:
            inner[name] = value
            continue
        yield f"# {field.description}"
        yield f"# {name} =" if value is None else f"{name} = {_literal(value)}"
    yield from _options(section)
    for name, value in inner.items():
        yield from ("", f"# {type(section).model_fields[name].description}")
        if isinstance(value, BaseModel):
            yield f"[{prefix}{name}]"
            yield from _table(value, f"{prefix}{name}.")
            continue
        if isinstance(value, dict):
            for key, entry in value.items():
                yield f"[{prefix}{name}.{_key(key)}]"
                yield from (f"{item} = {_literal(inner)}" for item, inner in entry.model_dump().items() if inner != {})
                yield ""
            continue
        for entry in value:
            yield f"[[{prefix}{name}]]"
            yield from (f"{key} = {_literal(item)}" for key, item in entry.model_dump(exclude_defaults=True).items())
            yield ""


def _options(section: BaseModel) -> Iterator[str]:
    """Yield the options of a part, each with its sentence; those that are not set are comments with their defaults."""
    given, registry = section.model_extra or {}, part_registries().get(type(section).__name__)
    if registry is None:
        return
    name = str(getattr(section, "name", ""))
    known = settings_of(registry.entry(name).factory)
    for option in registry.options(name):
        setting = known.get(option)
        yield from [f"# {setting.sentence}"] if setting is not None and setting.sentence else []
        if option in given:
            yield f"{option} = {_literal(given[option])}"
        elif setting is not None and isinstance(setting.default, bool | int | float | str | tuple):
            yield f"# {option} = {_literal(setting.default)}"


def configuration_markdown(schema: type[BaseModel] = Experiment) -> str:
    """Return one heading for each section of a configuration, and below it a table of its settings."""
    return "\n\n".join(_sections(schema, "", "Settings outside any section."))


def _sections(schema: type[BaseModel], path: str, sentence: str) -> Iterator[str]:
    """Yield a section, then the sections inside it."""
    inner = {name: field for name, field in schema.model_fields.items() if _inside(field.annotation)}
    fields = schema.model_fields.items()
    rows = [_row(name, field) for name, field in fields if name not in inner or get_origin(field.annotation) is dict]
    heading = f"## `[{path}]`" if path else "## Top level"
    yield "\n\n".join([heading, sentence, "\n".join([_HEAD, *rows])])
    for name, field in inner.items():
        kind = _inside(field.annotation)
        assert kind is not None
        place = f"{path}.{name}".lstrip(".") + (".NAME" if get_origin(field.annotation) is dict else "")
        yield from _sections(kind, place, inspect.getdoc(kind) or field.description or "")


def _inside(kind: Any) -> type[BaseModel] | None:
    """Return the section that a field is, may be, or lists."""
    choices = [kind, *get_args(kind)]
    return next((choice for choice in choices if inspect.isclass(choice) and issubclass(choice, BaseModel)), None)


def _row(name: str, field: FieldInfo) -> str:
    default = "must be set" if field.is_required() else "not set" if field.default is None else _code(field.default)
    cells = (f"`{name}`", _allowed(field.annotation, field.metadata), default, field.description or "")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _allowed(kind: Any, metadata: Any = ()) -> str:
    """Describe a type in the terms of TOML, with its bounds."""
    if get_origin(kind) is Annotated:
        kind, *inner = get_args(kind)
        metadata = (*metadata, *inner)
    return " ".join([_described(kind), *_bounds(metadata)])


def _described(kind: Any) -> str:
    arguments = get_args(kind)
    if get_origin(kind) is Literal:
        return ", ".join(map(_code, arguments))
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(_allowed(choice) for choice in arguments if choice is not NoneType)
    if get_origin(kind) is tuple:
        return f"list, each {_allowed(arguments[0])}"
    return _WORDS.get(get_origin(kind) or kind, getattr(kind, "__name__", str(kind)))


def _bounds(metadata: Any) -> list[str]:
    """Bounds of a number, except those that only keep it a number; pydantic wraps those of an annotated type once more."""
    bounds = [bound for item in metadata for bound in getattr(item, "metadata", [item]) if type(bound) in _BOUNDS]
    words = ((_BOUNDS[type(bound)][1], getattr(bound, _BOUNDS[type(bound)][0])) for bound in bounds)
    found = [f"{word} {value:,.10g}" for word, value in words if value < _NO_LIMIT]
    return [", ".join(found)] if found else []


def _code(value: Any) -> str:
    return f"`{_literal(value)}`"


def _key(name: str) -> str:
    """Return a name as TOML writes it, in quotes where it needs them."""
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name)


def _literal(value: Any) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(name)} = {_literal(item)}" for name, item in value.items()) + "}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    return json.dumps(value) if isinstance(value, str) else repr(value)
