"""metastep learns how policy gradients should be updated: the step size of every update, over families of related tasks.

The public names are imported when they are first used, so that `import metastep` costs next to nothing.
"""

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metastep import controllers, envs, evaluation, features, policies, report, rules, testing
    from metastep._core.errors import InputError
    from metastep._core.logs import CSVLog
    from metastep._core.progress import Tracker
    from metastep.envs import make_env
    from metastep.evaluation import Comparison, Method, MethodSpec, compare, tune
    from metastep.evaluation import load as load_comparison
    from metastep.evaluation import methods as baselines
    from metastep.experiments.config import load as load_experiment
    from metastep.experiments.run import Run, run
    from metastep.experiments.schema import Experiment
    from metastep.fqi import MetaFQI, Model, Stepper, regressors
    from metastep.mdp import ActorCriticMDP, EpisodicMetaMDP, MetaMDP
    from metastep.pretrained import load
    from metastep.search import SearchedModel, load_model
    from metastep.simulation.gradients import Estimator
    from metastep.simulation.rollouts import Rollout

try:
    __version__ = version("metastep")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0.0.0"

# Where the public names are: modules of this package, and what stands in one of them.
_PACKAGES = ("controllers", "envs", "evaluation", "features", "policies", "report", "rules", "testing")
_MODULES = {"baselines": "evaluation.methods", "regressors": "fqi.regressors", **{name: name for name in _PACKAGES}}
_HOMES = {
    name: (module, name)
    for module, names in {
        "_core.errors": "InputError",
        "_core.logs": "CSVLog",
        "_core.progress": "Tracker",
        "envs": "make_env",
        "evaluation": "Comparison Method MethodSpec compare tune",
        "experiments.run": "Run run",
        "experiments.schema": "Experiment",
        "fqi": "MetaFQI Model Stepper",
        "mdp": "ActorCriticMDP EpisodicMetaMDP MetaMDP",
        "pretrained": "load",
        "search": "SearchedModel load_model",
        "simulation.gradients": "Estimator",
        "simulation.rollouts": "Rollout",
    }.items()
    for name in names.split()
} | {"load_comparison": ("evaluation", "load"), "load_experiment": ("experiments.config", "load")}

__all__ = ["Comparison", "Estimator", "Experiment", "InputError", "MetaFQI", "MetaMDP", "Method", "MethodSpec", "Model"]
__all__ += ["ActorCriticMDP", "EpisodicMetaMDP", "Rollout", "Run", "SearchedModel", "Stepper", "Tracker", "__version__"]
__all__ += ["compare", "load", "load_comparison", "load_experiment", "load_model", "make_env", "run", "tune"]
__all__ += ["baselines", "controllers", "envs", "evaluation", "features", "policies", "regressors", "report", "rules"]
__all__ += ["CSVLog", "testing"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"metastep.{_MODULES[name]}")
    if name not in _HOMES:
        raise AttributeError(f"module 'metastep' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(importlib.import_module(f"metastep.{module}"), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
