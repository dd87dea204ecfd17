"""Fitted Q-Iteration: regressors, the maximum over step sizes, the iteration, model files."""

from metastep.fqi.base import ObservationPart
from metastep.fqi.iteration import MetaFQI
from metastep.fqi.model import (
    Branch,
    Model,
    ModelRecord,
    TrainingData,
    ValidationCurve,
    branches_of,
    load_model,
    model_from,
    model_of_heads,
    recorded_model,
    save_model,
)
from metastep.fqi.regressors import ExtraTrees, SklearnExtraTrees
from metastep.fqi.stepper import Proposal, Stepper

__all__ = ["Branch", "ExtraTrees", "MetaFQI", "Model", "ModelRecord", "ObservationPart", "Proposal"]
__all__ += ["SklearnExtraTrees", "Stepper", "TrainingData", "ValidationCurve"]
__all__ += ["branches_of", "load_model", "model_from", "model_of_heads", "recorded_model", "save_model"]
