"""Fitted Q-Iteration: regressors, the maximum over step sizes, the iteration, model files."""

from metastep.fqi.extra_trees import ExtraTrees, SklearnExtraTrees
from metastep.fqi.iteration import MetaFQI
from metastep.fqi.model import Model, model_from
from metastep.fqi.model_file import load_model, save_model
from metastep.fqi.record import ModelRecord, ObservationPart, TrainingData, ValidationCurve
from metastep.fqi.regressors import REGISTRY, Head, Regressor, make, names, register

__all__ = [
    "REGISTRY",
    "ExtraTrees",
    "Head",
    "MetaFQI",
    "Model",
    "ModelRecord",
    "ObservationPart",
    "Regressor",
    "SklearnExtraTrees",
    "TrainingData",
    "ValidationCurve",
    "load_model",
    "make",
    "model_from",
    "names",
    "register",
    "save_model",
]
