"""Controllers that simulate, on environments outside JAX: the same tasks give the same prices on both sides."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from metastep.controllers import HOOF, GreedyOracle
from metastep.controllers.search import line_search, price
from metastep.mdp import EpisodicMetaMDP, Learners
from metastep.mdp.blocks import Stream
from metastep.testing import check_controller
from tests.controllers.problems import BLOCK, make_mdp
from tests.envs.host.twins import Twin


def on_host(mdp: EpisodicMetaMDP) -> EpisodicMetaMDP:
    rollout = mdp.estimator.rollout
    moved = dataclasses.replace(rollout, env=Twin(rollout.env))  # type: ignore[arg-type]
    return dataclasses.replace(mdp, estimator=dataclasses.replace(mdp.estimator, rollout=moved))


@pytest.fixture(scope="module")
def both() -> tuple[EpisodicMetaMDP, EpisodicMetaMDP, Learners]:
    mdp = make_mdp("cartpole")
    host = on_host(mdp)
    assert not host.estimator.engine.is_compiled
    return mdp, host, mdp.begin(mdp.tasks(0, Stream.TUNING, 0))


def test_hoof_prices_are_the_same(both: tuple[EpisodicMetaMDP, EpisodicMetaMDP, Learners]) -> None:
    mdp, host, learners = both
    candidates = jnp.linspace(0.0, 1.0, 3, dtype=jnp.float32)[:, None, None] * jnp.ones((1, BLOCK, 1), jnp.float32)
    for compiled, hosted in zip(price(mdp, learners, candidates), price(host, learners, candidates), strict=True):
        np.testing.assert_allclose(hosted, compiled, rtol=1e-3, atol=1e-6)


def test_the_oracles_search_is_the_same(both: tuple[EpisodicMetaMDP, EpisodicMetaMDP, Learners]) -> None:
    mdp, host, learners = both
    steps = jnp.asarray([[0.0], [0.5], [1.0]], jnp.float32)
    np.testing.assert_allclose(line_search(host, learners, steps), line_search(mdp, learners, steps), rtol=1e-4)


@pytest.mark.parametrize("controller", [HOOF(0.05, num_candidates=5), GreedyOracle(3)], ids=lambda c: c.name)
def test_the_contract_holds(
    both: tuple[EpisodicMetaMDP, EpisodicMetaMDP, Learners], controller: HOOF | GreedyOracle
) -> None:
    check_controller(controller, both[1], num_updates=1)
