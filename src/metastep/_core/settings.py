"""Settings are defined once, by the class that uses them: its fields, their types with bounds, defaults and docstring.

`check_fields` holds objects to these bounds; `settings_of` reads all of it, so that a configuration can be made of it.
"""

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from numbers import Integral, Real
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt, Predicate

from metastep._core.errors import InputError, shown


def fits_float32(value: float) -> bool:
    """Whether float32, the simulation's type, can hold a number: a smaller one is flushed to 0, a larger one infinite."""
    return value == 0.0 or 2.0**-126 <= abs(value) <= 3.4028234663852886e38


FLOAT32 = "must be from 1.2e-38 to 3.4e38 in size, or 0 where 0 is allowed, so that float32 can hold it"

Float = Annotated[float, Predicate(fits_float32)]
"""A number that goes into a simulation; pydantic understands it, and so does `check_fields`."""
Count = Annotated[int, Ge(1), Le(10**9)]
Several = Annotated[int, Ge(2), Le(10**9)]  # an interval over tasks needs two
Share = Annotated[Float, Ge(0.0), Le(1.0)]
Positive = Annotated[Float, Gt(0.0)]

_BOUNDS: dict[type, tuple[str, str, Callable[[Any, Any], bool]]] = {
    Ge: ("ge", "must be greater than or equal to", lambda value, bound: value >= bound),
    Gt: ("gt", "must be greater than", lambda value, bound: value > bound),
    Le: ("le", "must be less than or equal to", lambda value, bound: value <= bound),
    Lt: ("lt", "must be less than", lambda value, bound: value < bound),
}
_NUMBERS: dict[type, tuple[type, str]] = {int: (Integral, "a whole number"), float: (Real, "a number")}
_WORDS = {str: "text", bool: "true or false", tuple: "a list"}


def _bounded(kind: Any) -> Any:
    """A number that a class gives no bounds for still has those of the machine."""
    return {float: Float, int: Annotated[int, Ge(-(2**31)), Le(2**31 - 1)]}.get(kind, kind)


class Setting(NamedTuple):
    """One parameter of a class."""

    kind: Any  # its type, bounds included
    default: Any  # `inspect.Parameter.empty` where there is none
    sentence: str


@cache
def settings_of(owner: Callable[..., Any]) -> dict[str, Setting]:
    """The parameters of a class or function by name, each with the sentence that its docstring has for it."""
    hints = _hints(owner)
    sentences = _sentences(inspect.getdoc(owner) or "")
    return {
        name: Setting(hints.get(name, Any), parameter.default, sentences.get(name, ""))
        for name, parameter in inspect.signature(owner).parameters.items()
    }


@cache
def _hints(owner: Callable[..., Any]) -> dict[str, Any]:
    """Annotations of the parameters: of a dataclass its fields, of another class its constructor."""
    source = owner.__init__ if inspect.isclass(owner) and "__init__" in vars(owner) else owner
    hints = get_type_hints(source, include_extras=True)
    return hints | (get_type_hints(owner, include_extras=True) if inspect.isclass(owner) else {})


def _sentences(docstring: str) -> dict[str, str]:
    """What `Args:` says of each parameter, as one line that starts with a capital."""
    _, _, block = docstring.partition("Args:\n")
    block = re.split(r"\n\S", f"\n{block}")[0]
    found: dict[str, str] = {}
    for names, text in re.findall(r"\n {4}([a-z_, ]+): (.*?)(?=\n {4}[a-z_, ]+: |\n\n|\Z)", block, re.DOTALL):
        line = " ".join(text.split())
        found |= dict.fromkeys(names.split(", "), line[:1].upper() + line[1:])
    return found


def check_fields(owner: Any, section: str) -> None:
    """Refuse an object with a number beyond the bounds of its type, or a word that its type does not list."""
    kinds: Callable[..., Any] = type(owner)
    for name, kind in _hints(kinds).items():
        if problem := _problem(kind, value := getattr(owner, name, None)):
            raise InputError(f"{section}.{name}: {shown(value)} {problem}.")


def check_values(factory: Callable[..., Any], values: Mapping[str, Any], section: str) -> None:
    """Refuse options that do not have the types and bounds which a factory's parameters name."""
    try:
        hints = _hints(factory)
    except (NameError, TypeError, AttributeError):  # a user's annotations may mean nothing at run time
        return
    for name, value in values.items():
        if hasattr(value, "shape"):  # an array has one number for each learner, which the part itself looks at
            continue
        if problem := _problem(_bounded(hints.get(name, Any)), value):
            raise InputError(f"{section}.{name}: {shown(value)} {problem}.")


def _problem(kind: Any, value: Any) -> str:
    if get_origin(kind) in (Union, UnionType):
        options = [option for option in get_args(kind) if option is not type(None)]
        # Where a whole number and a share are both allowed, 1 is the number and 1.0 the share.
        annotated = [option for option in options if get_origin(option) is Annotated]
        exact = [option for option in annotated if get_args(option)[0] is type(value)]
        problems = [_problem(option, value) for option in exact or options]
        return "" if value is None or "" in problems else problems[0]
    if get_origin(kind) is Literal and value not in get_args(kind):
        return f"must be one of {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) is tuple and isinstance(value, tuple | list):
        return _problem_within(get_args(kind), value)
    if get_origin(kind) is tuple or kind in (str, bool):
        wanted = get_origin(kind) or kind
        return "" if isinstance(value, wanted) else f"must be {_WORDS[wanted]}"
    if get_origin(kind) is not Annotated:
        return ""
    number, words = _NUMBERS.get(get_args(kind)[0], (object, ""))
    if not isinstance(value, number) or (words and isinstance(value, bool)):
        return f"must be {words}"
    if isinstance(value, Real) and not math.isfinite(value):
        return "must be a finite number"
    for bound in kind.__metadata__:
        if isinstance(bound, Predicate) and not bound.func(value):
            return FLOAT32
        attribute, words, holds = _BOUNDS.get(type(bound), ("", "", None))
        if holds is not None and not holds(value, limit := getattr(bound, attribute)):
            return f"{words} {limit:g}"
    return ""


def _problem_within(kinds: tuple[Any, ...], values: Sequence[Any]) -> str:
    """What is wrong with a list whose entries have these types; the last one may be an ellipsis."""
    if kinds[1:] == (...,):
        kinds = kinds[:1] * len(values)
    if len(kinds) != len(values):
        return f"must be a list of {len(kinds)}"
    return next(filter(None, map(_problem, map(_bounded, kinds), values)), "")
