"""A search over several families at once, judged on others."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from metastep import InputError
from metastep.mdp.runs import BlockRun
from metastep.search import evolution
from metastep.search.course import NUMBERS, Course, Files, course_arrays, course_from
from metastep.search.evolution import Search, Start, first_weights, searching
from metastep.search.network import BUDGET, Network
from tests.search.test_evolution import CONSTANT, MDP, play


def test_families_take_turns_and_the_mean_is_judged_on_others_in_their_units():
    """Three families, two of them at once; what is judged on has its scores in shares of a gain."""
    families = [MDP.with_budget(budget) for budget in (2, 3, 5)]
    search = Search(levels=("constant",), generations=3, pairs=8, validate_every=3, block_size=4, families_at_once=2)
    start, kept = Start(CONSTANT, first_weights(CONSTANT, 1)), list[Course]()

    def plan(held_out: Any = (), **files: Any) -> Any:
        return searching(families, search, start, seed=1, num_validation=4, files=Files(**files), held_out=held_out)

    course, asked = play(plan(keep=lambda _, course: kept.append(course)))
    assert [[block.num_updates for block in blocks] for blocks in asked[1:4]] == [[2, 3], [5, 2], [3, 5]]
    assert sum(map(len, asked)) == evolution.num_blocks(search, families, 4, "constant")
    for known in kept:
        numbers = {name: getattr(known, name) for name in NUMBERS}
        go_on = partial(course_from, course_arrays(known), numbers)
        resumed, _ = play(plan(begun=lambda _, like, go_on=go_on: go_on(like)))
        assert resumed.best.tobytes() == course.best.tobytes()
        assert resumed.state.mean.tobytes() == course.state.mean.tobytes()

    def constant(block: BlockRun) -> np.ndarray:
        return np.full(len(block.tasks.theta), 10.0 * block.num_updates)

    held_out = [
        (MDP.with_budget(7), lambda own: own.mean() / 140.0),
        (MDP.with_budget(9), lambda own: own.min() / 60.0),
    ]
    judged, asked = play(plan(held_out), constant)
    assert [block.num_updates for block in asked[0]] == [7, 9]
    assert judged.scores[0] == (0, pytest.approx((0.5 + 1.5) / 2))

    def one_diverges(block: BlockRun) -> np.ndarray:
        return np.where(np.arange(len(block.tasks.theta)) == 1, np.nan, np.arange(len(block.tasks.theta)))

    judged, _ = play(plan(), one_diverges)
    assert judged.scores[0] == (0, pytest.approx((0 + 0 + 2 + 3) / 4))  # the second of four counts as the worst
    with pytest.raises(InputError, match=r"search.pairs: 2 must be at least 3"):
        play(searching(families, Search(levels=("constant",), pairs=2), start, seed=1, num_validation=4))


def test_families_of_a_later_level_go_on_where_the_simpler_one_branched():
    families = [MDP.with_budget(budget) for budget in (2, 3, 5)]
    search = Search(levels=("constant", "schedule"), generations=4, pairs=8, block_size=4, families_at_once=1)
    schedule = Network((BUDGET,), (0.5,), (0.3,), CONSTANT.base, 3)
    plan = searching(families, search, Start(schedule, first_weights(schedule, 1)), seed=1, num_validation=4)
    _, asked = play(plan, lambda block: np.arange(len(block.tasks.theta)))
    # Two generations of the constant saw the families with 2 and 3 updates; the mean is judged on all before and after.
    assert [[block.num_updates for block in blocks] for blocks in asked] == [[2, 3, 5], [5, 5], [2, 2], [2, 3, 5]]
    assert sum(map(len, asked)) == evolution.num_blocks(search, families, 4, "schedule")
