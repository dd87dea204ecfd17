"""Search for a controller of an update's hyperparameters by evolution strategies, on the area under the learning curve."""

from metastep.search.controller import Searched
from metastep.search.model import LevelScore, SearchedModel, SearchedRecord, load_model, save_model, searched_model
from metastep.search.network import LEVELS, Level, Network, Weights

__all__ = ["LEVELS", "Level", "LevelScore", "Network", "Searched", "SearchedModel", "SearchedRecord", "Weights"]
__all__ += ["load_model", "save_model", "searched_model"]
