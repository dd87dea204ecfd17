"""Configurations from presets and files, with one sentence for whatever is wrong in them.

A preset is a TOML file whose tables are the sections of `Experiment`, at full scale, which is the paper's; its table `[quick]`
overrides some of them for a run of a minute or two. Tables `[readings.NAME]` override others where `--set reading=NAME` asks for
it: a paper can be read in more than one way. `extends = "NAME"` merges the file over a preset, a base of presets or another
file. A user's own file has the same form.
"""

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ValidationError

from metastep import controllers, policies, rules
from metastep._core.errors import InputError, shown
from metastep._core.registry import Registry
from metastep._core.settings import plainly, with_tuples
from metastep._core.storage import read_bytes
from metastep.experiments.schema import Experiment
from metastep.fqi import regressors

__all__ = ["Experiment", "Scale", "list_presets", "load", "parse", "variant"]

Scale = Literal["quick", "full"]

_PRESETS = Path(__file__).parent / "presets"


def list_presets() -> tuple[str, ...]:
    """Return the names of the experiments that come with the library."""
    return tuple(sorted(file.stem for file in _PRESETS.glob("*.toml")))


def load(source: str | Path, scale: Scale | None = None, overrides: Sequence[str] = ()) -> Experiment:
    """Return the configuration of a preset, or of a file whose name ends in .toml, with overrides like `seed=3`.

    Without a scale, `quick` is taken where there is a table of that name.
    """
    data = _read(source)
    if scale not in (None, *get_args(Scale)):
        raise InputError(f"scale: {scale!r} must be one of {', '.join(get_args(Scale))}.")
    if scale == "quick" and "quick" not in data:
        raise InputError(f"scale: 'quick' needs a table [quick] in {source}, which has none; give --scale full.")
    quick, readings = data.pop("quick", None), data.pop("readings", {})
    if quick is not None and scale != "full":
        if not isinstance(quick, dict):
            raise InputError(f"quick: {shown(quick)} must be a table of settings.")
        data = _merged(data, quick)
    chosen = [override for override in overrides if override.partition("=")[0].strip() == "reading"]
    if chosen:
        name = _toml_value(chosen[-1], chosen[-1].partition("=")[2])
        known = readings if isinstance(readings, dict) else {}
        reading = known.get(name) if isinstance(name, str) else None
        if not isinstance(reading, dict):
            listed = ", ".join(map(str, known)) or "none"
            raise InputError(f"reading: {shown(name)} is not a table [readings.NAME] of {source}, which has {listed}.")
        data = _merged(data, reading)
    for override in overrides:
        data = data if override in chosen else _overridden(override, data)
    return parse(data)


def _read(source: str | Path, extending: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read a preset or file, merged over what it extends; `extending` are the files that led here."""
    if str(source).endswith(".toml"):
        file = Path(source)
        if extending:
            file = extending[-1].parent / file
    else:
        file = _preset(str(source), extending)
    if file.resolve() in [seen.resolve() for seen in extending]:
        raise InputError(f"extends: {' extends '.join(str(path) for path in (*extending, file))}, which is a circle.")
    content = read_bytes(file)
    try:
        data = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        text = " ".join(str(error).split()) or "nested too deeply"
        raise InputError(f"File {file} is not valid TOML: {text}.") from error
    if (base := data.pop("extends", None)) is None:
        return data
    if not isinstance(base, str):
        raise InputError(f"extends: {shown(base)} must be the name of a preset or the path of a .toml file.")
    merged: dict[str, Any] = _merged(_read(base, (*extending, file)), data)
    return merged


def _preset(name: str, extending: tuple[Path, ...]) -> Path:
    """Return the file of a preset; a base of presets, which is not complete, can only be extended."""
    bases = {file.stem: file for file in (_PRESETS / "bases").glob("*.toml")} if extending else {}
    known = {preset: _PRESETS / f"{preset}.toml" for preset in list_presets()} | bases
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise InputError(
            f"{'extends' if extending else 'preset'}: {shown(name)} does not exist, there are {', '.join(known)}, and files "
            f"that end in .toml.{hint}"
        )
    return known[name]


def parse(data: Mapping[str, Any]) -> Experiment:
    """Check a configuration; what is wrong with it is one sentence."""
    try:
        config = Experiment.model_validate(with_tuples(data))
    except ValidationError as error:
        raise InputError(_sentence(error)) from error
    for model in config.models:
        variant(config, model)
    return config


def variant(config: Experiment, model: str) -> Experiment:
    """Return the experiment of one of its models: with the settings that differ for it, and without other models."""
    if not model:
        return config
    data = config.to_dict()
    models = data.pop("models")
    if model not in models:
        raise InputError(f"models: {model!r} is not one of this experiment's, {', '.join(models) or 'it has none'}.")
    data["compare"]["methods"] = [{"name": "metafqi"}]
    try:
        return parse(_merged(data, models[model]))
    except InputError as error:
        raise InputError(f"models.{model}.{error}") from None


def _merged(base: Any, changes: Any) -> Any:
    """Merge tables key by key and lists of named tables entry by entry; replace everything else.

    A part of another name brings options of its own.
    """
    if isinstance(base, str) and isinstance(changes, dict):
        base = {"name": base}
    if isinstance(base, dict) and isinstance(changes, dict):
        if "name" in base and changes.get("name", base["name"]) != base["name"]:
            return changes
        return base | {name: _merged(base.get(name), value) for name, value in changes.items()}
    if _are_named(base) and _are_named(changes):
        updated = {entry["name"]: entry for entry in base}
        for entry in changes:
            updated[entry["name"]] = _merged(updated.get(entry["name"], {}), entry)
        return list(updated.values())
    return changes


def _are_named(entries: Any) -> bool:
    return isinstance(entries, list) and all(isinstance(entry, dict) and "name" in entry for entry in entries)


def _overridden(override: str, data: dict[str, Any]) -> dict[str, Any]:
    key, equals, text = override.partition("=")
    if not equals:
        raise InputError(f"--set: {shown(override)} must have the form section.key=value.")
    names = key.strip().split(".")
    if not all(names):
        raise InputError(f"--set: {shown(override)} lacks the name of a setting, as in section.key=value.")
    return _replaced(data, names, _toml_value(override, text), override)


def _replaced(data: Any, names: Sequence[str], value: Any, override: str, where: str = "") -> Any:
    """Return a copy of the settings with one of them set; a list of named tables is entered by name."""
    if not names:
        return _selected(data, value)
    name, *rest = names
    if isinstance(data, str):  # a part by its name alone, of which an option is set
        data = {"name": data}
    if _are_named(data):
        if all(entry["name"] != name for entry in data):
            data = [*data, {"name": name}]
        return [_replaced(e, rest, value, override, name) if e["name"] == name else e for e in data]
    if not isinstance(data, dict):
        raise InputError(f"--set: {shown(override)} goes into {where}, which is a value and not a table.")
    return data | {name: _replaced(data.get(name, {}) if rest else data.get(name), rest, value, override, name)}


def _selected(old: Any, new: Any) -> Any:
    """Pick from a list of named tables by a list of names; the entries keep their other settings."""
    if not (_are_named(old) and isinstance(new, list)):
        return new
    known = {entry["name"]: entry for entry in old}
    named = [{"name": entry} if isinstance(entry, str) else entry for entry in new]
    if not _are_named(named) or not all(isinstance(entry["name"], str) for entry in named):
        return new
    return [known.get(entry["name"], {}) | entry for entry in named]


def _toml_value(override: str, text: str) -> Any:
    """Return the value of an override: as TOML writes it, else plain text."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        if text.strip()[:1] in ("[", "{"):
            raise InputError(
                f'--set: {shown(override)} is no TOML value, text in a list or table needs quotes, as in key=["text"].'
            ) from None
        return text.strip()
    return parsed["value"] if len(parsed) == 1 else text.strip()


def _sentence(error: ValidationError) -> str:
    """Return the first problem of a configuration; an unknown key goes first, since it may explain a missing one."""
    problems = error.errors(include_url=False)
    problem = next((item for item in problems if item["type"] == "extra_forbidden"), problems[0])
    dotted, message = _dotted(problem["loc"]), plainly(problem)
    if problem["type"] == "extra_forbidden":
        return f"{dotted}: is not a setting{_nearest(dotted, _all_settings(Experiment))}"
    if problem["type"] == "missing":
        return f"{dotted}: is missing, it must be {_what_is_needed(dotted)}."
    if problem["type"] == "value_error" and not message.startswith("must"):  # a section's own check names the field
        return f"{dotted}.{message.rstrip('.')}.".removeprefix(".")
    return f"{dotted or 'configuration'}: {shown(problem['input'])} {plainly(problem)}."


def _dotted(location: tuple[int | str, ...]) -> str:
    parts = (
        f"[{part}]" if isinstance(part, int) else f".{part if part.isidentifier() else shown(part)}"
        for part in location
    )
    return "".join(parts).removeprefix(".")


def _what_is_needed(name: str) -> str:
    """Return how to set what is missing: a section names its keys."""
    section: Any = Experiment
    for part in name.split("."):
        field = section.model_fields.get(part)
        section = None if field is None else field.annotation
        if not (isinstance(section, type) and issubclass(section, BaseModel)):
            return "set"
    needed = [key for key, field in section.model_fields.items() if field.is_required()]
    registry, default = part_registries().get(section.__name__), section.model_fields.get("name")
    if registry is not None and default is not None and isinstance(default.default, str):
        needed += registry.required(default.default)
    return f"a table [{name}]" + (f" with {', '.join(needed)}" if needed else "")


def part_registries() -> dict[str, Registry[Any]]:
    """Return the registries whose options stand in sections of the schema, by the section's name."""
    return {
        "PolicySection": policies.REGISTRY,
        "RuleSection": rules.REGISTRY,
        "ControllerSection": controllers.REGISTRY,
        "RegressorSection": regressors.REGISTRY,
    }


def _all_settings(section: type[BaseModel], prefix: str = "") -> list[str]:
    names = []
    for name, field in section.model_fields.items():
        names.append(prefix + name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            names += _all_settings(field.annotation, f"{prefix}{name}.")
    registry = part_registries().get(section.__name__)
    if registry is not None:
        names += [prefix + option for part in registry.names() for option in registry.options(part)]
    return names


def _nearest(name: str, candidates: Sequence[str]) -> str:
    """Return the likeliest meaning: nearly the same last word in another place, else the most similar name."""
    words = {candidate: candidate.rpartition(".")[2] for candidate in candidates}
    similar = difflib.get_close_matches(name.rpartition(".")[2], words.values(), n=1, cutoff=0.85)
    elsewhere = [candidate for candidate, word in words.items() if word in similar]
    near = difflib.get_close_matches(name, elsewhere or candidates, n=1, cutoff=0.0)
    return f", did you mean {near[0]!r}?"
