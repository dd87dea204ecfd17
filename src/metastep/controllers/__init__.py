"""Controllers: whatever proposes the step size of the next update, and the registry that names them."""

from metastep._core.registry import Registry
from metastep.controllers.greedy_oracle import GreedyOracle
from metastep.controllers.hoof import HOOF
from metastep.controllers.kl_adaptive import KLAdaptive
from metastep.controllers.metafqi import Exploring, MetaFQIController
from metastep.controllers.metagrad import Metagrad
from metastep.controllers.schedules import (
    CosineAnnealing,
    Decay,
    Fixed,
    GeometricDecay,
    LinearAnnealing,
    RandomConstant,
)
from metastep.controllers.single_action import SingleAction
from metastep.mdp.controller import Controller, Exploration, Run

REGISTRY: Registry[Controller] = Registry("controller")
register, names, make = REGISTRY.register, REGISTRY.names, REGISTRY.make

_open_loop = (
    Exploration,
    RandomConstant,
    Fixed,
    Decay,
    GeometricDecay,
    LinearAnnealing,
    CosineAnnealing,
)  # whatever the learners show
for _kind in (*_open_loop, KLAdaptive, HOOF, Metagrad, SingleAction, MetaFQIController, GreedyOracle):
    register(_kind.name, _kind)

__all__ = [
    "HOOF",
    "CosineAnnealing",
    "Decay",
    "Exploring",
    "Fixed",
    "GeometricDecay",
    "GreedyOracle",
    "KLAdaptive",
    "LinearAnnealing",
]
__all__ += ["Controller", "Exploration", "MetaFQIController", "Metagrad", "RandomConstant", "Run", "SingleAction"]
__all__ += ["REGISTRY", "make", "names", "register"]
