"""Settings that can be found: a configuration as TOML with a sentence for each field, and the reference of all of them."""

import json
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from metastep.experiments.config import part_registries
from metastep.experiments.schema import Experiment, MethodSection
from metastep.settings import settings_of

_LIMITS = {Ge: ("ge", "at least"), Gt: ("gt", "above"), Le: ("le", "at most"), Lt: ("lt", "below")}


def to_toml(config: Experiment) -> str:
    """A configuration as a file that can be edited and run; what is not set stands there as a comment."""
    lines = ["# Every setting of an experiment. Run it with: metastep run FILE.toml", ""]
    lines += _table(config, "", config.to_dict())
    return "\n".join(lines).rstrip() + "\n"


def _table(section: BaseModel, prefix: str, values: dict[str, Any]) -> Iterator[str]:
    """Plain settings first, then the tables inside."""
    inner = []
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel) or (isinstance(value, tuple) and value and isinstance(value[0], MethodSection)):
            inner.append((name, field, value))
            continue
        yield f"# {field.description}"
        yield f"# {name} =" if value is None else f"{name} = {_toml(values[name])}"
    for name, value in (section.model_extra or {}).items():
        yield f"{name} = {_toml(values.get(name, value))}"
    for name, field, value in inner:
        dotted = f"{prefix}{name}"
        yield ""
        yield f"# {field.description}"
        if isinstance(value, BaseModel):
            yield f"[{dotted}]"
            yield from _table(value, f"{dotted}.", values[name])
            continue
        for method in values[name]:
            yield f"[[{dotted}]]"
            yield from _method(method)
            yield ""


def _method(method: dict[str, Any]) -> Iterator[str]:
    for name, value in method.items():
        if value not in (None, "", {}):
            yield f"{name} = {_toml(value)}"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_toml(item)}" for name, item in value.items()) + " }" if value else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return repr(value) if isinstance(value, float) else json.dumps(value)


def configuration_markdown() -> str:
    """The reference of all settings: section by section, each field with what is allowed, its default and its sentence."""
    return "\n".join(["# Configuration", "", *_reference(Experiment, "")]).rstrip() + "\n"


def _reference(section: type[BaseModel], prefix: str) -> Iterator[str]:
    doc = " ".join((section.__doc__ or "").split())
    yield f"## `[{prefix.rstrip('.')}]`" if prefix else "## Top level"
    yield from ("", doc, "", "| setting | allowed | default | |", "|---|---|---|---|")
    inner = []
    for name, field in section.model_fields.items():
        nested = _nested(field)
        if nested is not None:
            inner.append((name, nested))
        yield f"| `{name}` | {_allowed(field)} | {_default(field, nested)} | {field.description} |"
    registry = part_registries().get(section.__name__)
    for part in registry.names() if registry else ():
        options = [option for option in registry.options(part)] if registry else []
        facts = settings_of(registry.entry(part).factory) if registry else {}
        for option in options:
            sentence = facts[option].sentence if option in facts else ""
            default = facts[option].default if option in facts else ""
            shown = "" if isinstance(default, type) else f"`{_toml(default)}`"
            yield f"| `{option}` (of `{part}`) | | {shown} | {sentence} |"
    yield ""
    for name, nested in inner:
        yield from _reference(nested, f"{prefix}{name}.")


def _nested(field: FieldInfo) -> type[BaseModel] | None:
    """The section inside a field, also where the field is a list of them or may be None."""
    kinds = [field.annotation, *get_args(field.annotation)]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def _allowed(field: FieldInfo) -> str:
    kind = field.annotation
    options = get_args(kind) if get_origin(kind) is Literal else ()
    if options:
        return ", ".join(f"`{option}`" for option in options)
    name = getattr(kind, "__name__", str(kind)).replace("NoneType", "None")
    words = {"int": "whole number", "float": "number", "str": "text", "bool": "true or false", "dict": "table"}
    limits = [f"{words_} {getattr(bound, key):g}" for bound in field.metadata for key, words_ in [_LIMITS.get(type(bound), ("", ""))] if key]
    base = "a table" if _nested(field) else words.get(name, "list" if "tuple" in str(kind) else "text or numbers")
    return " ".join([base, *limits]) if limits else base


def _default(field: FieldInfo, nested: type[BaseModel] | None) -> str:
    if field.is_required():
        return "must be set"
    return "" if nested is not None or field.default is None else f"`{_toml(field.default)}`"
