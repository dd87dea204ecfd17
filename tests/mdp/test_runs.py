"""Blocks run side by side, or in one batch, become what each becomes alone; plans get what they ask for."""

import dataclasses

import numpy as np
import pytest

from metastep.controllers import HOOF, Fixed, Metagrad
from metastep.mdp import runs
from metastep.mdp.blocks import Stream
from metastep.mdp.runs import BlockRun, run_blocks, run_plans
from metastep.rules import NGA, Adam
from metastep.simulation.engine import compiled
from tests.mdp.test_collection import small_mdp

MDP = small_mdp()


def asked(controller, rule=None, block=0, num_updates=2, mdp=MDP):
    return BlockRun(mdp.with_rule(rule or NGA()), controller, mdp.tasks(3, Stream.TEST, block), num_updates)


# Two rules, two dampings, grid points in the lanes, a controller that looks at the episodes, and two blocks of tasks.
MIXED = [
    asked(Fixed(0.3)),
    asked(Fixed(np.linspace(0.1, 0.9, 16)), block=1),
    asked(Fixed(0.2), Adam()),
    asked(Metagrad(0.2, 0.1), NGA(damping=0.1)),
    asked(HOOF(0.05, num_candidates=5))._replace(num_valid=3),  # the others are padding
]


@pytest.fixture(scope="module")
def alone():
    return [run_blocks([block], 0)[0] for block in MIXED]


def test_a_batch_of_many_blocks_is_each_of_them_alone(alone):
    together = run_blocks(MIXED, 0)
    for one, ran in zip(alone, together, strict=True):
        arrays = one.history.to_arrays() | {"theta": one.theta}
        for name, array in (ran.history.to_arrays() | {"theta": ran.theta}).items():
            np.testing.assert_allclose(array, arrays[name], rtol=2e-4, atol=2e-4)
        assert ran.report.keys() == one.report.keys()
        assert len(ran.theta) == len(ran.history.context) == (3 if ran.report else 16)
        for name, array in one.report.items():
            np.testing.assert_allclose(ran.report[name], array, rtol=1e-3)
    # Tasks, first policies and the noise of the first batch are those of the block, whatever the method.
    first, other = together[0].history, together[2].history
    np.testing.assert_array_equal(first.context, other.context)
    np.testing.assert_array_equal(first.mean_return[0], other.mean_return[0])
    assert not np.array_equal(first.mean_return[0], together[1].history.mean_return[0])


@pytest.mark.parametrize(("most", "sizes"), [(1, [1] * 5), (3, [2, 2, 1]), (8, [5])])
def test_a_gpu_is_given_groups_of_no_more_than_it_may_simulate(alone, monkeypatch, most, sizes):
    groups, done = [], []

    def watched(blocks, *rest):
        groups.append(len(blocks))
        return run_blocks(blocks, *rest)

    def plan():
        ran = yield MIXED
        return [block.history.mean_return for block in ran]

    monkeypatch.setattr(runs, "run_blocks", watched)
    monkeypatch.setattr(runs, "fills_batches", lambda env: True)
    found = run_plans([plan()], done.append, together=most)[0]
    assert sorted(groups, reverse=True) == sizes
    assert sum(done) == pytest.approx(5.0)
    for one, returns in zip(alone, found, strict=True):
        np.testing.assert_allclose(returns, one.history.mean_return, rtol=2e-4, atol=2e-4)
    # Batches of other numbers of blocks are padded to a power of two, and not compiled again.
    before = compiled(runs._simulate)._cache_size()
    run_blocks(MIXED[:3], 0)
    between = compiled(runs._simulate)._cache_size()
    run_blocks(MIXED[:4], 0)
    assert compiled(runs._simulate)._cache_size() == between <= before + 1


def test_blocks_of_other_shapes_are_not_put_together():
    wider = dataclasses.replace(MDP, block_size=8)
    blocks = [asked(Fixed(0.3)), asked(Fixed(0.3), mdp=wider), asked(Fixed(0.3), num_updates=1)]
    ready = [(0, place, block) for place, block in enumerate(blocks)]
    assert runs._group(ready, 3, only_full=False) == ([[entry] for entry in ready], [])
    assert runs._group(ready, 3, only_full=True) == ([], ready)


def test_plans_may_ask_again_and_for_nothing():
    def plan(step):
        assert (yield []) == []
        first = (yield [asked(Fixed(step), num_updates=1)])[0]
        better = (yield [asked(Fixed(2 * step), num_updates=1), asked(Fixed(step), block=1, num_updates=1)])[0]
        return first.history.hyperparameters.max(), better.history.hyperparameters.max()

    def idle():
        yield []
        return "nothing"

    found = run_plans([plan(0.1), idle(), plan(0.2)])
    assert found == [pytest.approx((0.1, 0.2)), "nothing", pytest.approx((0.2, 0.4))]
    assert run_plans([idle()]) == ["nothing"]
