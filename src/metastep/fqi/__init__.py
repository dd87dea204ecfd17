"""Fitted Q-Iteration: forests, the maximum over step sizes, the iteration, model files."""

from metastep.fqi.iteration import MetaFQI
from metastep.fqi.model import Model, ModelRecord, ObservationPart, TrainingData, ValidationCurve
from metastep.fqi.model_file import load_model, save_model
from metastep.fqi.native import NativeExtraTreesRegressor

__all__ = [
    "MetaFQI",
    "Model",
    "ModelRecord",
    "NativeExtraTreesRegressor",
    "ObservationPart",
    "TrainingData",
    "ValidationCurve",
    "load_model",
    "save_model",
]
