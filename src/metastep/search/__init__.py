"""Search for a controller of an update's hyperparameters by evolution strategies, on the area under the learning curve."""

from metastep.search.controller import Searched
from metastep.search.network import LEVELS, Level, Network, Weights

__all__ = ["LEVELS", "Level", "Network", "Searched", "Weights"]
