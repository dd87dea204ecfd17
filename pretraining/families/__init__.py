"""Families of tasks, one a page; configurations name one as `pretraining.families.lander:Lander`."""

from metastep.envs import Env
from pretraining.families.catch import Catch
from pretraining.families.grid import Grid
from pretraining.families.lander import Lander
from pretraining.families.network import DiscreteNetwork, RandomNetwork
from pretraining.families.reacher import Reacher
from pretraining.families.room import Room
from pretraining.families.springs import DiscreteSprings, Springs
from pretraining.families.tabular import Tabular
from pretraining.families.two_poles import TwoPoles

_ALL: tuple[type[Env], ...] = (Lander, Reacher, Springs, DiscreteSprings, Room, Tabular, Catch, Grid, TwoPoles)
_ALL += (RandomNetwork, DiscreteNetwork)
FAMILIES: dict[str, type[Env]] = {str(family.name): family for family in _ALL}

__all__ = ["FAMILIES"]
