"""Registries of parts: environments, policies, rules, features, controllers, baselines, regressors.

In your own module, `metastep.rules.register("mine", Mine)` makes a rule available to configurations as `module:mine`; an
environment may also be named by its class, `module:Mine`, without registration.
"""

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, Generic, NamedTuple, TypeVar

from metastep._core.errors import InputError, not_registered
from metastep._core.settings import REQUIRED, check_options, parameters_of

Part = TypeVar("Part")


class Entry(NamedTuple, Generic[Part]):
    """A registered part."""

    factory: Callable[..., Part]
    label: str  # in tables and figures
    colour: str  # in figures; empty is the next of the palette


class Registry(Generic[Part]):
    """Factories by name, for the values of a setting `field`; `hidden` parameters of factories are not options."""

    def __init__(self, field: str, options_field: str = "", hidden: tuple[str, ...] = ()) -> None:
        self.field, self.options_field, self.hidden = field, options_field or field, hidden
        self._entries: dict[str, Entry[Part]] = {}

    def register(self, name: str, factory: Callable[..., Part], *, label: str = "", colour: str = "") -> None:
        """Make `factory(**options)` available under a name in this process."""
        if name in self._entries and self._entries[name].factory is not factory:
            raise InputError(f"{self.field}: the name {name!r} is taken already.")
        self._entries[name] = Entry(factory, label or name, colour)

    def names(self) -> tuple[str, ...]:
        """Return the registered names, sorted."""
        return tuple(sorted(self._entries))

    def entry(self, name: str, field: str = "") -> Entry[Part]:
        """Return the entry of a name; for `module:name`, import the module, which registers or defines the name."""
        module, _, short = name.rpartition(":")
        defined = vars(_import(module, field or self.field)).get(short) if module else None
        if short in self._entries:
            return self._entries[short]
        if callable(defined):
            return Entry(defined, short, "")
        package, _, part = short.rpartition(".")
        hint = f" One of your own is {package + ':' + part!r}." if package else ""
        raise not_registered(field or self.field, short, self.names(), hint=hint)

    def parameters(self, name: str) -> dict[str, Any]:
        """Return the parameters of a registered part's factory with their defaults, in its order."""
        return parameters_of(self.entry(name).factory) or {}

    def options(self, name: str) -> dict[str, Any]:
        """Return the parameters that a configuration may set."""
        return {option: default for option, default in self.parameters(name).items() if option not in self.hidden}

    def make(self, name: str, /, *given: Any, **options: Any) -> Part:
        """Build a registered part; the options are the fields of its class."""
        return self.build(name, options, given)

    def build(self, name: str, options: Mapping[str, Any], given: tuple[Any, ...] = (), field: str = "") -> Part:
        """Build a part with options; `given` are the factory's first arguments, `field` the setting that errors name."""
        factory, place = self.entry(name, field).factory, field or self.options_field
        if (parameters := parameters_of(factory)) is not None:
            known = [option for option in [*parameters][len(given) :] if option not in self.hidden]
            check_options(name, options, factory, known, place)
            for option in known:
                if option not in options and parameters[option] is REQUIRED:
                    raise InputError(f"{place}.{option}: is missing, {name} cannot be built without it.")
        try:
            return factory(*given, **options)
        except TypeError as error:
            raise InputError(f"{place}: {name} cannot be built with {dict(options)}: {error}.") from error


def require_modules(names: Iterable[str], where: str, *, allow_imports: bool) -> None:
    """Import the modules of names like `module:name`; if imports are not allowed, modules must be imported already."""
    for module in sorted({name.rpartition(":")[0] for name in names} - {"", *sys.modules}):
        if not allow_imports:
            danger = f"names parts of the module {module!r}, which would be run"
            raise InputError(f"{where} {danger}; give --allow-imports if you trust it.")
        _import(module, where)


def _import(module: str, field: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # anything that a user's module may raise
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300].rstrip(".")
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]
        where = " It must be installed or lie in the folder that the command is run in." if is_missing else ""
        raise InputError(f"{field}: the module {module!r} cannot be imported, {text}.{where}") from error
