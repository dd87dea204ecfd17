"""The methods that have a name of their own, and the registry that knows them.

A baseline is a `MethodSpec` under a name: rule, controller, the values it is tuned over unless a configuration says otherwise,
label and colour. `register("mine", partial(MethodSpec, controller="mine"), label="mine")` adds one.
"""

from functools import partial
from typing import Any

from metastep._core.registry import Registry
from metastep.evaluation.methods import MethodSpec
from metastep.rules.spaces import Range

REGISTRY: Registry[MethodSpec] = Registry("compare.methods")
register, names = REGISTRY.register, REGISTRY.names


def make(name: str) -> MethodSpec:
    """Return a registered method as data, under its own name."""
    entry = REGISTRY.entry(name)
    spec = entry.factory(name.rpartition(":")[2])
    return MethodSpec(**{**vars(spec), "label": spec.label or entry.label, "colour": spec.colour or entry.colour})


def _add(name: str, label: str, colour: str, **fields: Any) -> None:
    register(name, partial(MethodSpec, **fields), label=label, colour=colour)


# Okabe and Ito's palette: distinguishable with every common colour-vision deficiency.
_add("metafqi", "metaFQI", "#0072B2", controller="metafqi")
_add("metastep", "metastep", "#7B3FA0", controller="metafqi", model="metastep")
_add("fixed", "fixed step", "#E69F00", controller="fixed", needs_grid=("stepsize",))
_add("decay", "decay", "#8C6D31", controller="decay", needs_grid=("alpha",))
_geometric = {"needs_grid": ("stepsize",), "grid": {"alpha": (0.5, 0.7, 0.8, 0.9, 0.95, 0.99)}}
_add("geometric-decay", "geometric decay", "#B3A369", controller="geometric-decay", **_geometric)
_add("linear-annealing", "linear annealing", "#A6761D", controller="linear-annealing", needs_grid=("stepsize",))
_add("cosine-annealing", "cosine annealing", "#7F9F3F", controller="cosine-annealing", needs_grid=("stepsize",))
_add("rmsprop", "RMSprop", "#CC79A7", rule="rmsprop", controller="fixed", needs_grid=("stepsize",))
_add("adam", "Adam", "#009E73", rule="adam", controller="fixed", needs_grid=("stepsize",))
_kl = {
    "steps": Range(1e-6, 1e6, "divergence"),
    "grid": {"stepsize": (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1e3, 1e4, 1e5)},
}
_add("fixed-kl", "fixed KL", "#B5495B", controller="fixed", **_kl)
_adaptive = {
    "stepsize": (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0),
    "target": (1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1e3, 1e4),
}
_add("kl-adaptive", "KL-adaptive", "#66A61E", controller="kl-adaptive", grid=_adaptive)
_bandit = {"exploration": (0.1, 0.3, 1.0), "window": (5.0, 20.0)}
_add("bandit", "bandit within the run", "#8E6C8A", controller="bandit", needs_grid=("stepsize",), grid=_bandit)
# The paper's grid, and larger bounds: the best of the paper's is often the largest.
_bounds = (1e-4, 1e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 20.0, 100.0)
_add("hoof", "HOOF", "#D55E00", controller="hoof", grid={"max_divergence": _bounds})
_add("metagrad", "metagrad", "#56B4E9", controller="metagrad", needs_grid=("stepsize", "beta"))
_add("single", "single step size", "#7A7A7A", controller="single-action")
_add("oracle", "greedy oracle", "text", controller="greedy-oracle", controller_options={"num_stepsizes": 0})
_menu = {"controller_options": {"num_stepsizes": 25}, "model": "metastep"}  # steps along each direction
_add("menu-oracle", "oracle over the menu", "#444444", controller="greedy-oracle", **_menu)
