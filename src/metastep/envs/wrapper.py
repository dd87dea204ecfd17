"""Environments around other environments."""

from dataclasses import dataclass, field, fields
from typing import Any

from metastep.envs.base import TaskFamily, choices_of, range_of
from metastep.envs.contexts import ContextSpace


def _as_inside() -> Any:
    """A field that is read from the environment inside, which alone makes two wrappers equal."""
    return field(init=False, repr=False, compare=False)


@dataclass(frozen=True)
class Wrapper:
    """Declares what the environment inside declares; a subclass adds the methods, and sets what it declares otherwise.

    Args:
        env: the environment inside.
    """

    env: TaskFamily
    name: str = _as_inside()
    context_space: ContextSpace = _as_inside()
    num_observations: int = _as_inside()
    num_actions: int = _as_inside()
    packages: tuple[str, ...] = _as_inside()
    reset_noise: int = _as_inside()
    step_noise: int = _as_inside()

    def __post_init__(self) -> None:
        for declared in fields(Wrapper)[1:]:
            object.__setattr__(self, declared.name, getattr(self.env, declared.name))

    @property
    def num_choices(self) -> int | None:
        """That of the environment inside, where it declares one."""
        return choices_of(self.env)

    @property
    def action_range(self) -> tuple[float, float] | None:
        """That of the environment inside, where it declares one."""
        return range_of(self.env)
