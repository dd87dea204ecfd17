"""One model fitted on the training data of several runs, each of another family."""

from collections.abc import Sequence
from itertools import product
from operator import attrgetter
from typing import Any

import numpy as np

from metastep import Experiment, InputError, Model, Run, Tracker, features
from metastep.experiments.config import build_mdp, parse
from metastep.experiments.searching import storage
from metastep.experiments.stages import fit_on, validate
from metastep.fqi import ValidationCurve
from metastep.mdp.history import Transitions


def fit_pooled(runs: Sequence[Run], *, tracker: Tracker | None = None) -> Model:
    """Fit one model on the data of several runs, with the settings of the first; select on the validation tasks of all.

    It observes the features that have no unit; these, the space and the rule must be the same in all runs.
    """
    if any(run.config.learner == "search" for run in runs):
        raise InputError("pooled: runs that search have no data to fit one model on; publish them one by one.")
    families = {run.config.env.name: run for run in runs}
    if len(families) < max(2, len(runs)):
        names = ", ".join(run.config.env.name for run in runs)
        raise InputError(f"pooled: the runs are of {names}, allowed are two families or more, each once.")
    configs = {name: _without_units(run.config) for name, run in families.items()}
    mdps = first, *others = [build_mdp(config) for config in configs.values()]
    for other, what in product(others, ("observation", "space", "rule.name")):
        if attrgetter(what)(first) != attrgetter(what)(other):
            raise InputError(f"pooled: {first.env.name} and {other.env.name} must have the same {what}.")
    parts, reaches = [], {}
    for name, run in families.items():
        # Rewards are shares of the middle 90 % of a family's returns, so that no family counts more than another.
        returns = np.concatenate([history.mean_return.ravel() for history in run.dataset.blocks()])
        low, high = (float(end) for end in np.percentile(returns[np.isfinite(returns)], (5.0, 95.0)))
        if high <= low:
            raise InputError(f"Dataset {run.data_folder}: its returns do not vary, so there is nothing to learn.")
        reaches[name] = low, high - low
        part = run.dataset.transitions(first.observation)
        parts.append(part._replace(reward=part.reward / np.float32(high - low)))
    everything = Transitions(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))

    def shared(tables: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {name: value for name, value in tables[0].items() if all(t.get(name) == value for t in tables)}

    setting = shared([mdp.setting for mdp in mdps]) | {"rule": shared([mdp.setting["rule"] for mdp in mdps])}
    how: Any = {"tracker": tracker, "setting": setting | {"env": "several", "families": [*families]}}
    how["configuration"] = {"families": {name: each.to_dict() for name, each in configs.items()}, "reaches": reaches}
    fingerprint = storage.sha256_of_json({name: run.dataset.checksum for name, run in families.items()})
    model = fit_on(configs[first.env.name], first, everything, fingerprint, **how)
    # Iterations are scored by the mean over families of their mean return, in the family's units.
    scores = []
    for name, run in families.items():
        comparison = validate(Run(run.path, configs[name], run.tasks), model, tracker=tracker)
        scores.append([curve[:, 1:].mean(dtype=np.float64) / reaches[name][1] for curve in comparison.returns])
    table = np.array(scores)  # (families, iterations)
    finite = np.flatnonzero(np.isfinite(table).all(axis=0)).tolist()
    if not finite:
        raise InputError("selection: every iteration diverged on validation tasks.")
    curves = [ValidationCurve(i + 1, float(table[:, i].mean()), tuple(table[:, i].tolist())) for i in finite]
    return model.with_validation(curves)


def _without_units(config: Experiment) -> Experiment:
    """Return the experiment with features that have no unit, hence the same meaning in every family."""
    free = (*features.SETS["training"], *features.SETS["unit-free"])
    kept = [name for name in config.meta.observation if name in free]
    if not kept:
        raise InputError(f"pooled: all that {config.env.name} observes carries a unit, so families cannot be pooled.")
    data = config.to_dict()
    return parse(data | {"meta": data["meta"] | {"observation": kept}})
