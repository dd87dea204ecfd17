"""The controller `searched` follows its network: the same numbers as NumPy gives, one controller or one for each learner."""

import pickle
from dataclasses import replace
from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, logit

from metastep import features
from metastep._core.errors import InputError
from metastep.mdp import ActorCriticMDP
from metastep.mdp.blocks import Stream
from metastep.mdp.runs import BlockRun, run_blocks
from metastep.rules.actor_critic import PPO
from metastep.rules.spaces import HyperparameterSpace
from metastep.search import Network, Searched
from tests.controllers.problems import BLOCK, TRAINING, make_training_mdp

SEEN = ("last_divergence", "entropy_change", "budget")


@cache
def clip_mdp() -> ActorCriticMDP:
    """PPO whose rate and clip range are chosen."""
    space = HyperparameterSpace((1e-4, 0.05), (1e-1, 0.5), ("log", "linear"), ("stepsize", "clip_range"))
    return make_training_mdp().with_rule(TRAINING, space)


def network(knots: int = 3, units: int = 4) -> Network:
    return Network(SEEN, (-3.0, 0.0, 0.5), (1.0, 0.2, 0.3), (0.4, 0.7), knots, units)


def test_proposals_are_those_of_the_formula() -> None:
    mdp, seen = clip_mdp(), (*SEEN, "own_steps")
    form = replace(network(), features=seen, mean=(-3.0, 0.0, 0.5, 0.5), spread=(1.0, 0.2, 0.3, 1.0))
    weights = np.random.default_rng(0).normal(size=form.num_weights).astype(np.float32)
    ran = run_blocks([BlockRun(mdp, Searched(form, weights), mdp.tasks(0, Stream.TUNING, 0), 3)], 0)[0]
    learners = mdp.begin(mdp.tasks(0, Stream.TUNING, 0))
    curves, hidden, output, of_loop = form.split(weights)
    for update in range(3):
        found = features.compute(mdp, seen, learners)
        x = np.concatenate([np.asarray(found[name], np.float64) for name in seen], axis=1)
        z = np.clip((x - form.mean) / form.spread, -3.0, 3.0)
        hump = np.array([np.interp(update / mdp.budget, [0.0, 0.5, 1.0], curve) for curve in curves.T])
        layer = np.tanh(np.concatenate([z, np.ones((BLOCK, 1))], axis=1) @ hidden / np.sqrt(5.0)) @ output / 2.0
        np.testing.assert_allclose(x[:, 3], np.log10(mdp.rule.own_steps(mdp.sampler.batch_size)), rtol=1e-6)
        u = expit(logit(np.array(form.base)) + hump + z[:, 3:] @ of_loop + layer)
        wanted = np.stack([1e-4 * 1e3 ** u[:, 0], 0.05 + 0.45 * u[:, 1]], axis=1)
        np.testing.assert_allclose(ran.history.hyperparameters[update], wanted, rtol=2e-5)
        learners = mdp.advance(learners, jnp.asarray(ran.history.hyperparameters[update]))


@pytest.mark.parametrize(("knots", "units"), [(1, 0), (3, 0), (3, 4)])
def test_every_learner_may_have_its_own_weights(knots: int, units: int) -> None:
    mdp, form = clip_mdp(), network(knots, units)
    start = mdp.begin(mdp.tasks(0, Stream.TUNING, 0))
    rows = np.random.default_rng(1).normal(size=(BLOCK, form.num_weights)).astype(np.float32)
    many: Searched = pickle.loads(pickle.dumps(Searched(form, rows)))
    found = np.asarray(many.propose(many.init(mdp, start), start))
    for index, row in enumerate(rows):
        alone = Searched(form, row)
        np.testing.assert_allclose(found[index], alone.propose(alone.init(mdp, start), start)[index], rtol=1e-6)
    assert len(np.unique(found[:, 0])) == BLOCK


def test_what_does_not_fit_is_refused() -> None:
    mdp = clip_mdp()
    start = mdp.begin(mdp.tasks(0, Stream.TUNING, 0))
    form = network()
    flat = np.zeros(form.num_weights, np.float32)
    unknown = Network(("gains[nga]",), (0.0,), (1.0,), form.base, 1, 2)
    for controller, sentence in (
        (Searched(), "'searched' needs a model"),
        (Searched(form, flat[1:]), r"weights: their shape is \(29,\), allowed are \(30,\) and \(8, 30\)"),
        (Searched(Network((), (), (), (0.5,)), flat[:1]), "it has 1 outputs, but the space has stepsize, clip_range"),
        (Searched(unknown, flat[:10]), r"the feature 'gains\[nga\]' is not known where the rule is 'ppo'"),
    ):
        with pytest.raises(InputError, match=sentence):
            controller.init(mdp, start)
    assert isinstance(mdp.rule, PPO)
