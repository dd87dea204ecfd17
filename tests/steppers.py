"""Models that are made in milliseconds: fitted on numbers that mean nothing, or of random weights."""

from functools import cache
from typing import Any

import numpy as np

from metastep import features
from metastep.fqi import ExtraTrees, MetaFQI, Model, ObservationPart, TrainingData, model_from
from metastep.fqi.model import branches_of
from metastep.mdp import ActorCriticMDP
from metastep.mdp.history import Transitions
from metastep.rules.actor_critic import A2C, PPO
from metastep.rules.spaces import HyperparameterSpace, Range, space_for
from metastep.search import LevelScore, Network, SearchedModel, searched_model
from tests.controllers.problems import make_training_mdp

TRAINING, ADDED = features.SETS["training"], features.SETS["progress"]
LOW, HIGH = 1e-4, 1e-1
KNOWN = {"experiment": {"meta": {"num_updates": 20}}}


@cache
def tiny_model(
    trees: int = 5, reach: float = 1e6, names: tuple[str, ...] = TRAINING, clips: tuple[float, ...] = (0.2,)
) -> Model:
    """A rate that depends on some of the features, and a clip range if there are two; ranges of features are very wide."""
    draw = np.random.default_rng(0)
    rows = draw.normal(0.0, 1.0, (2000, len(names))).astype(np.float32)
    rate = (10.0 ** draw.uniform(-4.0, -1.0, 2000)).astype(np.float32)
    clip = draw.integers(2, size=2000)
    space = space_for(PPO(clip_range=clips), Range(LOW, HIGH, "log"), {}, {})
    if len(clips) > 1:  # a small range in one half of the states, a large one else
        reward = np.where((rows[:, 4] > 0.0) == (clip == 1), 1.0, 0.0) - (np.log10(rate) + 2.5) ** 2
        form, chosen = MetaFQI(1, ExtraTrees(trees, 0.01), menu=space.branches), np.stack([clip, rate], axis=1)
    else:
        best = -2.5 + np.sin(2.0 * rows[:, 4]) + 0.5 * np.sin(2.0 * rows[:, 8])
        reward, step = -((np.log10(rate) - best) ** 2), {"stepsize_low": LOW, "stepsize_high": HIGH}
        form, chosen = MetaFQI(2, ExtraTrees(trees, 0.01), **step, stepsize_scale="log", meta_discount=0.5), rate
    fitted = form.fit(Transitions(rows, chosen.astype(np.float32), reward.astype(np.float32), rows[::-1].copy()))
    fitted.feature_low_[:], fitted.feature_high_[:] = -reach, reach
    return model_from(
        fitted,
        setting={"env": "none", "rule": {"name": "ppo"}, "num_envs": 2, "num_steps": 12},
        observation=[ObservationPart(name, 1) for name in names],
        training_data=TrainingData(2000, 0, "of a test"),
        configuration=KNOWN,
        branches=branches_of(space),
    )


def clip_model() -> Model:
    """A model that chooses PPO's clip range beside the rate."""
    return tiny_model(clips=(0.1, 0.3))


def diagnostics(update: int, seed: int = 0) -> dict[str, Any]:
    """What some loop reports."""
    draw = np.random.default_rng([seed, update])
    return {
        "returns": draw.normal(10.0 * update, 5.0, 8),
        "entropy": 1.0 - 0.1 * update,
        "explained_variance": draw.uniform(-2.0, 1.0),
        "approx_kl": draw.uniform(0.0, 0.05),
        "clip_fraction": draw.uniform(0.0, 0.3),
        "parameters": draw.normal(size=6),
    }


WHOLE = {
    "stepsize": Range(LOW, HIGH, "log"),
    "gradient_steps": Range(1.0, 12.0, name="gradient_steps"),
    "clip_range": Range(0.05, 0.5, name="clip_range"),
    "gae_lambda": Range(0.5, 1.0, name="gae_lambda"),
    "entropy_weight": Range(0.0, 0.1, name="entropy_weight"),
    "critic_rate": Range(0.5, 8.0, "log", name="critic_rate"),
}


@cache
def whole_model(observed: tuple[str, ...] = (), chosen: tuple[str, ...] = tuple(WHOLE), seed: int = 0) -> SearchedModel:
    """A model of random weights that chooses PPO's hyperparameters: constant, or with feedback from these features."""
    base, num = make_training_mdp(num_envs=2, num_steps=12), len(observed)
    low, high, scales = zip(*((WHOLE[name].low, WHOLE[name].high, WHOLE[name].scale) for name in chosen), strict=True)
    space = HyperparameterSpace(low, high, scales, chosen)
    mdp: ActorCriticMDP = base.with_rule(base.rule if "clip_range" in chosen else A2C(), space)
    network = Network(observed, (0.0,) * num, (1.0,) * num, (0.5,) * len(chosen), units=4 if observed else 0)
    return random_weights(mdp, network, 1e6, seed)


def random_weights(mdp: ActorCriticMDP, network: Network, reach: float, seed: int = 0) -> SearchedModel:
    weights = np.random.default_rng(seed).normal(size=network.num_weights).astype(np.float32)
    known: dict[str, Any] = {"configuration": KNOWN, "validation": [LevelScore(network.level, 1.0, 0.1)]}
    ends = [-reach] * len(network.features), [reach] * len(network.features)
    return searched_model(
        mdp, network, weights, feature_low=ends[0], feature_high=ends[1], search_steps=1e6, seed=seed, **known
    )
