"""Fitted Q-Iteration: regressors, the maximum over step sizes, the iteration, model files."""

from metastep.fqi.base import ObservationPart
from metastep.fqi.iteration import MetaFQI
from metastep.fqi.model import Branch, Model, TrainingData, ValidationCurve, load_model, model_from, save_model
from metastep.fqi.regressors import ExtraTrees, SklearnExtraTrees
from metastep.fqi.stepper import Proposal, Stepper

__all__ = ["Branch", "ExtraTrees", "MetaFQI", "Model", "ObservationPart", "Proposal", "SklearnExtraTrees", "Stepper"]
__all__ += ["TrainingData", "ValidationCurve", "load_model", "model_from", "save_model"]
