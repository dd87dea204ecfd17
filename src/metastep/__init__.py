"""metastep learns how policy gradients should be updated: the step size of every update, over families of related tasks.

What stands here is imported when it is first used, so that `import metastep` costs next to nothing.
"""

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metastep import controllers, envs, evaluation, features, policies, report, rules, testing
    from metastep._core.errors import InputError
    from metastep._core.progress import Tracker
    from metastep.envs import make_env
    from metastep.evaluation import Comparison, Method, MethodSpec, baselines, compare, tune
    from metastep.evaluation import load as load_comparison
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

# Where each public name is, as module or module:name.
_HOMES = {
    "Comparison": "metastep.evaluation:Comparison",
    "Estimator": "metastep.simulation.gradients:Estimator",
    "Experiment": "metastep.experiments.schema:Experiment",
    "InputError": "metastep._core.errors:InputError",
    "MetaFQI": "metastep.fqi:MetaFQI",
    "MetaMDP": "metastep.mdp:MetaMDP",
    "ActorCriticMDP": "metastep.mdp:ActorCriticMDP",
    "EpisodicMetaMDP": "metastep.mdp:EpisodicMetaMDP",
    "Method": "metastep.evaluation:Method",
    "MethodSpec": "metastep.evaluation:MethodSpec",
    "Model": "metastep.fqi:Model",
    "SearchedModel": "metastep.search:SearchedModel",
    "Run": "metastep.experiments.run:Run",
    "Stepper": "metastep.fqi:Stepper",
    "Rollout": "metastep.simulation.rollouts:Rollout",
    "Tracker": "metastep._core.progress:Tracker",
    "baselines": "metastep.evaluation.baselines",
    "compare": "metastep.evaluation:compare",
    "controllers": "metastep.controllers",
    "envs": "metastep.envs",
    "evaluation": "metastep.evaluation",
    "features": "metastep.features",
    "load": "metastep.pretrained:load",
    "load_comparison": "metastep.evaluation:load",
    "load_experiment": "metastep.experiments.config:load",
    "load_model": "metastep.search:load_model",
    "make_env": "metastep.envs:make_env",
    "policies": "metastep.policies",
    "regressors": "metastep.fqi.regressors",
    "report": "metastep.report",
    "rules": "metastep.rules",
    "run": "metastep.experiments.run:run",
    "testing": "metastep.testing",
    "tune": "metastep.evaluation:tune",
}

__all__ = ["Comparison", "Estimator", "Experiment", "InputError", "MetaFQI", "MetaMDP", "Method", "MethodSpec", "Model"]
__all__ += ["ActorCriticMDP", "EpisodicMetaMDP", "Rollout", "Run", "SearchedModel", "Stepper", "Tracker", "__version__"]
__all__ += ["compare", "load", "load_comparison", "load_experiment", "load_model", "make_env", "run", "tune"]
__all__ += ["baselines", "controllers", "envs", "evaluation", "features", "policies", "regressors", "report", "rules"]
__all__ += ["testing"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'metastep' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def __dir__() -> list[str]:
    return sorted(__all__)
