"""Fitted Q-Iteration: regressors, the maximum over step sizes, the iteration, model files."""

from metastep.fqi.iteration import MetaFQI
from metastep.fqi.model import Model, model_from
from metastep.fqi.model_file import load_model, save_model
from metastep.fqi.record import Branch, ModelRecord, ObservationPart, TrainingData, ValidationCurve
from metastep.fqi.regressors import ExtraTrees, SklearnExtraTrees
from metastep.fqi.stepper import Proposal, Stepper

__all__ = [
    "Branch",
    "ExtraTrees",
    "MetaFQI",
    "Model",
    "ModelRecord",
    "ObservationPart",
    "Proposal",
    "SklearnExtraTrees",
    "Stepper",
    "TrainingData",
    "ValidationCurve",
    "load_model",
    "model_from",
    "save_model",
]
