"""The methods that have a name of their own, and the registry that knows them.

A baseline is a `MethodSpec` under a name: rule, controller, the values it is tuned over unless a configuration says otherwise,
label and colour. `register("mine", partial(MethodSpec, controller="mine"), label="mine")` adds one.
"""

from functools import partial

from metastep.evaluation.methods import MethodSpec
from metastep.registry import Registry

REGISTRY: Registry[MethodSpec] = Registry("compare.methods")
register, names = REGISTRY.register, REGISTRY.names


def make(name: str) -> MethodSpec:
    """A registered method as data, under its own name."""
    entry = REGISTRY.entry(name)
    spec = entry.factory(name.rpartition(":")[2])
    return MethodSpec(**{**vars(spec), "label": spec.label or entry.label, "colour": spec.colour or entry.colour})


# Okabe and Ito's palette: distinguishable with every common colour-vision deficiency.
register("metafqi", partial(MethodSpec, controller="metafqi"), label="metaFQI", colour="#0072B2")
register("fixed", partial(MethodSpec, controller="fixed", grid={"stepsize": ()}), label="fixed step", colour="#E69F00")
register("decay", partial(MethodSpec, controller="decay", grid={"alpha": ()}), label="decay", colour="#8C6D31")
register(
    "geometric-decay",
    partial(MethodSpec, controller="geometric-decay", grid={"stepsize": (), "alpha": (0.5, 0.7, 0.8, 0.9, 0.95, 0.99)}),
    label="geometric decay",
    colour="#B3A369",
)
register(
    "rmsprop",
    partial(MethodSpec, rule="rmsprop", controller="fixed", grid={"stepsize": ()}),
    label="RMSprop",
    colour="#CC79A7",
)
register(
    "adam", partial(MethodSpec, rule="adam", controller="fixed", grid={"stepsize": ()}), label="Adam", colour="#009E73"
)
register(
    "hoof",
    partial(MethodSpec, controller="hoof", grid={"max_divergence": (1e-4, 1e-3, 1e-2, 2e-2, 5e-2)}),
    label="HOOF",
    colour="#D55E00",
)
register(
    "metagrad",
    partial(MethodSpec, controller="metagrad", grid={"stepsize": (), "beta": ()}),
    label="metagrad",
    colour="#56B4E9",
)
register("single", partial(MethodSpec, controller="single-action"), label="single step size", colour="#7A7A7A")
register(
    "oracle",
    partial(MethodSpec, controller="greedy-oracle", controller_options={"num_stepsizes": 0}),
    label="greedy oracle",
    colour="text",
)
