"""Which figures and tables of the paper there are."""

import difflib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from metastep._core.errors import InputError
from paper.ablations import fig_cartpole60, fig_context, fig_fixed_context, fig_single_action
from paper.bounds import theory
from paper.comparisons import fig2, fig3, fig_decay
from paper.direction import ablations, direction, growth
from paper.environments import CHOICE, EVERY, FOUR, USUAL
from paper.held import facts
from paper.hills import fig1
from paper.iterations import fig_iterations, fig_swingup
from paper.joint import joint
from paper.outcome import Product
from paper.readings import reproduce_readings
from paper.recipe import search
from paper.robust import fig_robust
from paper.tuning import table1
from paper.workbench import Workbench


class Entry(NamedTuple):
    """A figure or table of the paper."""

    make: Callable[[Workbench], Product]
    environments: tuple[str, ...] = ()  # what it can be made for, where there is a choice
    usual: tuple[str, ...] = USUAL  # whose presets it runs unless told otherwise
    is_in_all: bool = True  # whether `all` makes it, too


REGISTRY: dict[str, Entry] = {
    "fig1": Entry(fig1, usual=()),  # two hills: greedy steps and planned ones
    "fig2": Entry(fig2, CHOICE),  # metaFQI against fixed step sizes
    "fig3": Entry(fig3, CHOICE),  # metaFQI against tuned baselines
    "fig-swingup": Entry(fig_swingup, usual=("swingup",)),
    "fig-iterations": Entry(fig_iterations, CHOICE),
    "fig-decay": Entry(fig_decay, USUAL),  # the paper has none for HalfCheetah
    "table1": Entry(table1, CHOICE),  # the tuned initial values
    "fig-cartpole60": Entry(fig_cartpole60, usual=("cartpole",)),  # for 60 updates, trained on 15
    "fig-context": Entry(fig_context, EVERY),
    "fig-robust": Entry(
        fig_robust, ("cartpole", "halfcheetah"), usual=("cartpole",)
    ),  # the forest's random state, double Q
    "fig-fixed-context": Entry(fig_fixed_context, EVERY),
    "fig-single-action": Entry(fig_single_action, EVERY),
    "theory": Entry(theory, usual=()),  # Lipschitz constants with respect to the context
    "facts": Entry(facts, EVERY, usual=(*USUAL, "swingup")),  # all that the paper says of its environments
    # Beyond the paper: direction and step chosen together.
    "direction": Entry(direction, EVERY, usual=FOUR, is_in_all=False),  # against every tuned baseline
    "ablations": Entry(ablations, FOUR, usual=FOUR, is_in_all=False),
    "growth": Entry(growth, FOUR, usual=FOUR, is_in_all=False),  # with the number of tuples
    "joint": Entry(joint, FOUR, usual=FOUR, is_in_all=False),  # one model for all environments
    "search": Entry(search, FOUR, usual=FOUR, is_in_all=False),  # of the model's settings, on validation tasks
    # What the paper leaves open, read in several ways and judged on tuning tasks: it precedes the results.
    "readings": Entry(reproduce_readings, EVERY, usual=(*USUAL, "swingup"), is_in_all=False),
}
IDS = tuple(REGISTRY)


def resolve(names: Sequence[str], environments: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
    """The ids that were asked for, in the paper's order, each with the environments it is made for.

    `all` is all ids but readings, or all that can be made for the environments where some are named.
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
        is_possible = bool(possible) or not environments
        if name in names and not is_possible:
            allowed = ", ".join(entry.environments) or "none by name"
            raise InputError(f"env: {name} cannot be made for {', '.join(environments)}, allowed is {allowed}.")
        if (name in names or ("all" in names and entry.is_in_all)) and is_possible:
            chosen[name] = possible
    return chosen
