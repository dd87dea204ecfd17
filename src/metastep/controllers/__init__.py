"""Controllers, which propose the step size of the next update, and the registry that names them."""

from metastep._core.settings import Registry
from metastep.controllers.learned import Exploring, MetaFQIController, SingleAction
from metastep.controllers.schedules import (
    Bandit,
    CosineAnnealing,
    Decay,
    Fixed,
    GeometricDecay,
    KLAdaptive,
    LinearAnnealing,
    Metagrad,
    RandomConstant,
)
from metastep.controllers.search import HOOF, GreedyOracle
from metastep.fqi import Model
from metastep.mdp.controller import Controller, Exploration, Resources
from metastep.search import Searched, SearchedModel

REGISTRY: Registry[Controller] = Registry("controller")
register, names, make = REGISTRY.register, REGISTRY.names, REGISTRY.make

_open_loop = (Exploration, RandomConstant, Fixed, Decay, GeometricDecay, LinearAnnealing, CosineAnnealing)
for _kind in (*_open_loop, KLAdaptive, Bandit, HOOF, Metagrad, SingleAction, MetaFQIController, Searched, GreedyOracle):
    register(_kind.name, _kind)


def controller_of(model: Model | SearchedModel) -> Controller:
    """Return the controller that follows a model."""
    return Searched(model=model) if isinstance(model, SearchedModel) else MetaFQIController(model)


__all__ = ["HOOF", "REGISTRY", "Bandit", "Controller", "CosineAnnealing", "Decay", "Exploration", "Exploring", "Fixed"]
__all__ += ["GeometricDecay", "GreedyOracle", "KLAdaptive", "LinearAnnealing", "MetaFQIController", "Metagrad"]
__all__ += ["RandomConstant", "Resources", "Searched", "SingleAction", "controller_of", "make", "names", "register"]
