"""The figures and tables of the paper that can be reproduced, and the environments of each."""

import difflib
import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from metastep import InputError
from paper.environments import CHOICE, EVERY, FOUR, USUAL


class Entry(NamedTuple):
    """A figure or table of the paper."""

    place: str  # module:name of the function that makes it, imported when it is needed
    environments: tuple[str, ...] = ()  # that it can be made for, where there is a choice
    usual: tuple[str, ...] = USUAL  # whose presets it runs by default
    is_in_all: bool = True  # whether `all` includes it

    @property
    def make(self) -> Callable[..., Any]:
        """The function from a workbench to a product."""
        module, _, name = self.place.partition(":")
        return getattr(importlib.import_module(f"paper.{module}"), name)


REGISTRY: dict[str, Entry] = {
    "fig1": Entry("figure1:fig1", usual=()),  # two hills: greedy and planned steps
    "fig2": Entry("comparisons:fig2", CHOICE),  # metaFQI against fixed step sizes
    "fig3": Entry("comparisons:fig3", CHOICE),  # metaFQI against tuned baselines
    "fig-swingup": Entry("iterations:fig_swingup", usual=("swingup",)),
    "fig-iterations": Entry("iterations:fig_iterations", CHOICE),
    "fig-decay": Entry("comparisons:fig_decay", USUAL),  # the paper has none for HalfCheetah
    "table1": Entry("tuning:table1", CHOICE),  # tuned initial values
    "fig-cartpole60": Entry("ablations:fig_cartpole60", usual=("cartpole",)),  # for 60 updates, trained on 15
    "fig-context": Entry("ablations:fig_context", EVERY),
    "fig-robust": Entry("robust:fig_robust", ("cartpole", "halfcheetah"), usual=("cartpole",)),  # by random state
    "fig-fixed-context": Entry("ablations:fig_fixed_context", EVERY),
    "fig-single-action": Entry("ablations:fig_single_action", EVERY),
    "theory": Entry("bounds:theory", usual=()),  # Lipschitz constants with respect to the context
    "facts": Entry("facts_on_test:facts", EVERY, usual=FOUR),  # all that the paper says of its environments
    "ties": Entry("ties:ties", EVERY, usual=FOUR, is_in_all=False),  # which of equal steps, by validation tasks
    "planning": Entry("ties:planning", EVERY, usual=FOUR, is_in_all=False),  # the facts about N under each rule
    # Beyond the paper: direction and step chosen together.
    "direction": Entry("direction:direction", EVERY, usual=FOUR, is_in_all=False),  # against every tuned baseline
    "ablations": Entry("direction:ablations", FOUR, usual=FOUR, is_in_all=False),
    "strong": Entry("strong:strong", EVERY, usual=FOUR, is_in_all=False),  # against the strongest baselines
    "longer": Entry("strong:longer", ("halfcheetah",), usual=("halfcheetah",), is_in_all=False),  # over 500 updates
}
IDS = tuple(REGISTRY)


def resolve(names: Sequence[str], environments: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
    """Return the ids that were asked for, in the paper's order, each with the environments it is made for.

    `all` includes the ids of the paper or, where environments are named, those that can be made for them.
    """
    for name in names:
        if name != "all" and name not in REGISTRY:
            near = difflib.get_close_matches(name, (*IDS, "all"), n=1, cutoff=0.0)[0]
            raise InputError(f"id: {name!r} does not exist, did you mean {near!r}? There are {', '.join(IDS)}, all.")
    if not names:
        raise InputError(f"id: none was given, there are {', '.join(IDS)}, all.")
    for env in environments:
        if env not in EVERY:
            near = difflib.get_close_matches(env, EVERY, n=1, cutoff=0.0)[0]
            raise InputError(f"env: {env!r} must be one of {', '.join(EVERY)}, did you mean {near!r}?")
    chosen: dict[str, tuple[str, ...]] = {}
    for name, entry in REGISTRY.items():
        possible = tuple(env for env in entry.environments if env in environments) if environments else entry.usual
        if environments and not possible:
            if name in names:
                allowed = ", ".join(entry.environments) or "none by name"
                raise InputError(f"env: {name} cannot be made for {', '.join(environments)}, allowed is {allowed}.")
        elif name in names or ("all" in names and entry.is_in_all):
            chosen[name] = possible
    return chosen
