"""Families of tasks, one a page; configurations name one as `pretraining.families.lander:Lander`."""

from metastep.envs import Env
from pretraining.families.lander import Lander
from pretraining.families.reacher import Reacher

FAMILIES: dict[str, type[Env]] = {family.name: family for family in (Lander, Reacher)}

__all__ = ["FAMILIES"]
