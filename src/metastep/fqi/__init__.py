"""Fitted Q-Iteration: regressors, the maximum over step sizes, the iteration, model files."""

from metastep.fqi.iteration import MetaFQI
from metastep.fqi.model import Model, model_from
from metastep.fqi.model_file import load_model, save_model
from metastep.fqi.record import ModelRecord, ObservationPart, TrainingData, ValidationCurve
from metastep.fqi.regressors import ExtraTrees, SklearnExtraTrees

__all__ = [
    "ExtraTrees",
    "MetaFQI",
    "Model",
    "ModelRecord",
    "ObservationPart",
    "SklearnExtraTrees",
    "TrainingData",
    "ValidationCurve",
    "load_model",
    "model_from",
    "save_model",
]
