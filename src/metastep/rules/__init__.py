"""Update rules and the registry that names them."""

from metastep._core.settings import Registry
from metastep.rules.actor_critic import A2C, PPO, TRPO, ActorCriticRule
from metastep.rules.base import Rule, RuleState, Update, guard, unusable
from metastep.rules.gradient import NGA, Adam, GradientAscent, Menu, RMSProp

AnyRule = Rule | ActorCriticRule
REGISTRY: Registry[AnyRule] = Registry("meta.rule")
register, names, make = REGISTRY.register, REGISTRY.names, REGISTRY.make

register("nga", NGA, label="NGA")
register("gradient", GradientAscent, label="gradient ascent")
register("rmsprop", RMSProp, label="RMSprop")
register("adam", Adam, label="Adam")
register("menu", Menu, label="a menu of directions")
register("ppo", PPO, label="PPO")
register("a2c", A2C, label="A2C")
register("trpo", TRPO, label="TRPO")

__all__ = ["A2C", "NGA", "PPO", "REGISTRY", "TRPO", "ActorCriticRule", "Adam", "AnyRule", "GradientAscent", "Menu"]
__all__ += ["RMSProp", "Rule", "RuleState", "Update", "guard", "make", "names", "register", "unusable"]
