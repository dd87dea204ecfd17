"""Settings are defined once, by the class that uses them: fields, types with bounds, defaults and docstring.

Registries name the classes. In your own module, `metastep.rules.register("mine", Mine)` makes a rule available to configurations
as `module:mine`; an environment may also be named by its class, `module:Mine`, without registration.
"""

import importlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from types import ModuleType, UnionType
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from annotated_types import Ge, Gt, Le, MinLen, Predicate
from pydantic import ConfigDict, PydanticSchemaGenerationError, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from metastep._core.errors import InputError, not_registered, shown, with_all


def fits_float32(value: float) -> bool:
    """Return whether a number is within float32's range, the simulation's type, without becoming 0 or infinite."""
    return value == 0.0 or 2.0**-126 <= abs(value) <= 3.4028234663852886e38


FLOAT32 = "must be from 1.2e-38 to 3.4e38 in size, or 0 where 0 is allowed, so that float32 can hold it"

Float = Annotated[float, Predicate(fits_float32)]  # a number that goes into a simulation
Count = Annotated[int, Ge(1), Le(10**9)]
Several = Annotated[int, Ge(2), Le(10**9)]  # an interval over tasks needs two
Share = Annotated[Float, Ge(0.0), Le(1.0)]
Positive = Annotated[Float, Gt(0.0)]
Layers = Annotated[tuple[Count, ...], MinLen(1)]  # sizes of the hidden layers of a network

# Numbers without bounds of their own have those of the machine's types.
_BOUNDED = {float: Float, int: Annotated[int, Ge(-(2**31)), Le(2**31 - 1)]}
_CONFIG = ConfigDict(strict=True, allow_inf_nan=False)
# Clearer messages than pydantic's.
_PLAINER = {
    "model_type": "must be a table of settings",
    "dict_type": "must be a table",
    "tuple_type": "must be a list",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "extra_forbidden": "must not be there",
    "predicate_failed": FLOAT32,
}

REQUIRED = inspect.Parameter.empty  # the default of a parameter that has none
T = TypeVar("T")
Part = TypeVar("Part")


class Setting(NamedTuple):
    """One parameter of a class."""

    kind: Any  # its type, with bounds
    default: Any
    sentence: str


@cache
def settings_of(owner: Callable[..., Any]) -> dict[str, Setting]:
    """Return the parameters of a class or function by name, each with its sentence from the docstring."""
    hints = _hints(owner)
    _, _, block = (inspect.getdoc(owner) or "").partition("Args:\n")
    block = re.split(r"\n\S", f"\n{block}")[0]
    sentences: dict[str, str] = {}
    for names, text in re.findall(r"\n {4}([a-z_, ]+): (.*?)(?=\n {4}[a-z_, ]+: |\n\n|\Z)", block, re.DOTALL):
        line = " ".join(text.split())
        sentences |= dict.fromkeys(names.split(", "), line[:1].upper() + line[1:])
    return {
        name: Setting(hints.get(name, Any), parameter.default, sentences.get(name, ""))
        for name, parameter in inspect.signature(owner).parameters.items()
    }


@cache
def _hints(owner: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of the parameters: of the fields of a dataclass, or of the constructor of another class."""
    source = owner.__init__ if inspect.isclass(owner) and "__init__" in vars(owner) else owner
    hints = get_type_hints(source, include_extras=True)
    return hints | (get_type_hints(owner, include_extras=True) if inspect.isclass(owner) else {})


def check_fields(owner: Any, section: str) -> None:
    """Raise an error if a field of an object is outside the bounds, or not among the choices, of its type."""
    kind: Callable[..., Any] = type(owner)
    for name, hint in _hints(kind).items():
        _check(hint, getattr(owner, name, None), f"{section}.{name}")


def parameters_of(factory: Callable[..., Any]) -> dict[str, Any] | None:
    """Return a factory's parameters with their defaults; None if it accepts any keyword, or has no signature."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return None
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return None
    return {name: parameter.default for name, parameter in parameters.items()}


def check_options(
    name: str, options: Mapping[str, Any], factory: Callable[..., Any], known: Sequence[str], field: str
) -> None:
    """Raise an error for unknown options, and for values of other types than those of the factory's parameters."""
    for option in options:
        if option not in known:
            raise not_registered(field, option, known, f"is not an option of {name}")
    check_values(factory, options, field)


def check_values(factory: Callable[..., Any], values: Mapping[str, Any], field: str) -> None:
    """Raise an error for values that do not have the types and bounds of a factory's parameters."""
    with suppress(NameError, TypeError, AttributeError):  # a user's annotations may not exist at run time
        hints = _hints(factory)
        for name, value in values.items():
            hint = hints.get(name, Any)
            _check(_BOUNDED.get(hint, hint), value, f"{field}.{name}")


def _check(kind: Any, value: Any, place: str) -> None:
    value = value.item() if isinstance(value, np.generic) else value
    value_type: Any = type(value)
    is_array = hasattr(value, "shape")  # one number for each learner; the part itself checks them
    if is_array or (adapter := _adapter(kind, value_type)) is None:
        return
    try:
        adapter.validate_python(with_all(tuple, value))
    except ValidationError as error:
        raise InputError(f"{place}: {shown(value)} {plainly(error.errors(include_url=False)[0])}.") from None


@cache
def _adapter(kind: Any, given: Any) -> TypeAdapter[Any] | None:
    """Return a validator for a type and the Python type `given` of a value; None if there are no bounds or choices."""
    if get_origin(kind) in (Union, UnionType):
        options = [option for option in get_args(kind) if option is not type(None)]
        # If an integer and a share are both allowed, 1 is the integer and 1.0 the share.
        exact = [option for option in options if get_origin(option) is Annotated and get_args(option)[0] is given]
        if given is type(None) or any(_adapter(option, given) is None for option in exact or options):
            return None
        kind = Union[tuple(exact or options)]  # noqa: UP007  (built at run time)
    elif get_origin(kind) is tuple:
        kind = tuple[tuple(_BOUNDED.get(part, part) for part in get_args(kind))]  # type: ignore[misc]
    elif kind not in (str, bool) and get_origin(kind) not in (Annotated, Literal):
        return None
    try:
        return TypeAdapter(kind, config=_CONFIG)
    except PydanticSchemaGenerationError:
        return None


def plainly(problem: ErrorDetails) -> str:
    """Return a problem found by pydantic as the end of a sentence, like "must be a whole number"."""
    message = re.sub(r"^\w+ should", "must", problem["msg"].removeprefix("Value error, "))
    return _PLAINER.get(problem["type"]) or re.sub(r" after validation, not \d+$", "", message)


def from_json(kind: TypeAdapter[T], value: Any, what: str) -> T:
    """Validate a JSON value; raise the first problem as an `InputError` of one sentence, which begins with `what`."""
    try:
        return kind.validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        what += ": " + ".".join(map(str, problem["loc"])) if problem["loc"] else ""
        if problem["type"] == "missing":
            raise InputError(f"{what} is missing.") from None
        raise InputError(f"{what} is {shown(problem['input'])}, it {plainly(problem)}.") from None
    except (TypeError, ValueError, RecursionError):
        raise InputError(f"{what} is {shown(value)}, allowed are numbers, text, lists and tables of JSON.") from None


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
