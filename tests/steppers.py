"""A model of PPO's learning rate that is fitted in milliseconds, on numbers that mean nothing."""

from functools import cache
from typing import Any

import numpy as np

from metastep import features
from metastep.fqi import ExtraTrees, MetaFQI, Model, ObservationPart, TrainingData, branches_of, model_from
from metastep.mdp import ActorCriticMDP
from metastep.mdp.history import Transitions
from metastep.rules.actor_critic import A2C, PPO
from metastep.rules.spaces import HyperparameterSpace, Range, space_for
from metastep.search import LevelScore, Network, SearchedModel, searched_model
from tests.controllers.problems import make_training_mdp

TRAINING = (
    "last_rate",
    "last_divergence",
    "clip_fraction",
    "entropy_change",
    "explained_variance",
    "change_in_errors",
    "relative_error",
    "step_ratio",
    "step_cosine",
    "budget",
    "first_entropy",
)
ADDED = features.SETS["progress"]
LOW, HIGH = 1e-4, 1e-1


@cache
def tiny_model(trees: int = 5, reach: float = 1e6, names: tuple[str, ...] = TRAINING) -> Model:
    """A rate that depends on all that the set `training` holds; ranges are so wide that nothing lies outside."""
    draw = np.random.default_rng(0)
    rows = draw.normal(0.0, 1.0, (2000, len(names))).astype(np.float32)
    rate = (10.0 ** draw.uniform(-4.0, -1.0, 2000)).astype(np.float32)
    best = -2.5 + np.sin(2.0 * rows[:, 4]) + 0.5 * np.sin(2.0 * rows[:, 8])
    reward = -((np.log10(rate) - best) ** 2)
    fitted = MetaFQI(
        2, ExtraTrees(trees, 0.01), stepsize_low=LOW, stepsize_high=HIGH, stepsize_scale="log", meta_discount=0.5
    ).fit(Transitions(rows, rate, reward.astype(np.float32), rows[::-1].copy()))
    fitted.feature_low_[:], fitted.feature_high_[:] = -reach, reach
    setting: dict[str, Any] = {"env": "none", "rule": {"name": "ppo"}, "num_envs": 2, "num_steps": 12}
    return model_from(
        fitted,
        setting=setting,
        observation=[ObservationPart(name, 1) for name in names],
        training_data=TrainingData(2000, 0, "of a test"),
        configuration={"experiment": {"meta": {"num_updates": 20}}},
    )


def diagnostics(update: int, seed: int = 0) -> dict[str, Any]:
    """What some loop tells."""
    draw = np.random.default_rng([seed, update])
    return {
        "returns": draw.normal(10.0 * update, 5.0, 8),
        "entropy": 1.0 - 0.1 * update,
        "explained_variance": draw.uniform(-2.0, 1.0),
        "approx_kl": draw.uniform(0.0, 0.05),
        "clip_fraction": draw.uniform(0.0, 0.3),
        "parameters": draw.normal(size=6),
    }


@cache
def clip_model() -> Model:
    """A model that chooses PPO's clip range beside the rate: a small range in one half of the states, a large one else."""
    draw = np.random.default_rng(0)
    rows = draw.normal(0.0, 1.0, (2000, len(TRAINING))).astype(np.float32)
    rate = (10.0 ** draw.uniform(-4.0, -1.0, 2000)).astype(np.float32)
    clip = draw.integers(2, size=2000)
    reward = np.where((rows[:, 4] > 0.0) == (clip == 1), 1.0, 0.0) - (np.log10(rate) + 2.5) ** 2
    space = space_for(PPO(clip_range=(0.1, 0.3)), Range(LOW, HIGH, "log"), {}, {})
    fitted = MetaFQI(1, ExtraTrees(5, 0.01), menu=space.branches).fit(
        Transitions(rows, np.stack([clip, rate], axis=1).astype(np.float32), reward.astype(np.float32), rows)
    )
    fitted.feature_low_[:], fitted.feature_high_[:] = -1e6, 1e6
    tiny = tiny_model().record
    return model_from(
        fitted,
        setting=tiny.setting,
        observation=tiny.observation,
        training_data=tiny.training_data,
        configuration=tiny.configuration,
        branches=branches_of(space),
    )


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
    base = make_training_mdp(num_envs=2, num_steps=12)
    low, high, scales = zip(*((WHOLE[name].low, WHOLE[name].high, WHOLE[name].scale) for name in chosen), strict=True)
    space = HyperparameterSpace(low, high, scales, chosen)
    mdp: ActorCriticMDP = base.with_rule(base.rule if "clip_range" in chosen else A2C(), space)
    num = len(observed)
    network = Network(observed, (0.0,) * num, (1.0,) * num, (0.5,) * len(chosen), units=4 if observed else 0)
    return searched_model(
        mdp,
        network,
        np.random.default_rng(seed).normal(size=network.num_weights).astype(np.float32),
        feature_low=[-1e6] * num,
        feature_high=[1e6] * num,
        configuration={"experiment": {"meta": {"num_updates": 20}}},
        validation=[LevelScore(network.level, 1.0, 0.1)],
        search_steps=1e6,
        seed=seed,
    )
