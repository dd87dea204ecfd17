"""A feature is one class: simulated learners and other people's loops compute it with the same formula."""

import dataclasses

import numpy as np
import pytest

from metastep import features
from metastep._core.errors import InputError
from metastep.features.diagnostics import REGISTRY, Memory, needed, observed
from metastep.mdp.blocks import Stream
from tests.controllers.problems import BLOCK, make_mdp, make_training_mdp


class CostOfRate(features.Feature):
    """The divergence of the last update for each unit of its rate."""

    name, needs = "cost_of_rate", ("approx_kl", "rate")

    def __call__(self, seen):
        return seen["approx_kl"] / seen.xp.maximum(seen["rate"], 1e-6)


def test_one_class_serves_simulated_learners_and_loops(monkeypatch):
    monkeypatch.setattr(REGISTRY, "_entries", REGISTRY._entries.copy())
    features.register("cost_of_rate", CostOfRate)
    mdp = dataclasses.replace(make_training_mdp(), observation=("cost_of_rate", "last_rate"))
    features.require_known(mdp)
    assert mdp.setting["observation"] == [["cost_of_rate", 1], ["last_rate", 1]]
    rates = np.geomspace(1e-4, 1e-1, BLOCK, dtype=np.float32)
    learners = mdp.advance(mdp.begin(mdp.tasks(0, Stream.TRAIN, 0)), rates[:, None])
    simulated = np.asarray(features.meta_observation(mdp, learners))
    assert needed(mdp.observation) == ("approx_kl",)
    for lane in (0, BLOCK - 1):
        memory = Memory(updates=1, sound=1, rate=rates[lane])
        reported = {"approx_kl": np.asarray(learners.previous.divergence)[lane]}
        found = observed(mdp.observation, reported, memory, 5.0, np)
        np.testing.assert_allclose([*found.features.values()], simulated[lane], rtol=1e-5)
    with pytest.raises(
        InputError, match=r"meta.observation: 'cost_of_rate' is not known where the rule is 'nga', allow"
    ):
        features.require_known(dataclasses.replace(make_mdp(), observation=("cost_of_rate",)))


@pytest.mark.parametrize("mdp", [make_mdp(), make_training_mdp()], ids=["episodes", "steps"])
def test_learners_have_the_diagnostics_that_are_declared(mdp):
    seen = mdp.diagnostics(mdp.begin(mdp.tasks(0, Stream.TRAIN, 0)))
    assert set(seen.diagnostics) == set(mdp.diagnosed)
