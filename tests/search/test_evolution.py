"""The search itself: it finds a known optimum, compares like with like, and goes on where it was stopped."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from metastep._core.errors import InputError
from metastep.mdp.blocks import Stream
from metastep.mdp.history import History
from metastep.mdp.runs import BlockResult, BlockRun
from metastep.rules.actor_critic import PPO
from metastep.rules.spaces import Range, space_for
from metastep.search import evolution
from metastep.search.course import NUMBERS, Course, Files, course_arrays, course_from
from metastep.search.evolution import Search, Start, base_point, first_weights, network_of, searching
from metastep.search.network import LEVELS, Network
from tests.controllers.problems import make_training_mdp

RULE = PPO(epochs=2, minibatch_size=8)
SPACE = space_for(RULE, Range(1e-4, 1e-1, "log"), {}, {"clip_range": PPO.choices["clip_range"]})
MDP = make_training_mdp(RULE).with_rule(RULE, SPACE)
GOAL = np.array([0.8, 0.3])  # the best point of the unit cube, for every task
CONSTANT = Network((), (), (), base_point(MDP))
FEEDBACK = Network(("budget", "last_rate"), (0.5, 0.0), (0.3, 1.0), CONSTANT.base, 5, 3)
Evaluate = Callable[[BlockRun], np.ndarray]


def distance(block: BlockRun) -> np.ndarray:
    """Minus the squared distance to the goal, and an effect of the task that is much larger."""
    controller: Any = block.controller
    units = controller.network(controller.network.split(controller.weights), np.zeros((1, 0), np.float32), np)
    return 100.0 * block.tasks.context[:, 0] - ((units - GOAL) ** 2).sum(axis=-1)


def play(plan: Any, evaluate: Evaluate = distance) -> tuple[Course, list[list[BlockRun]]]:
    """Run a plan without simulating anything."""
    asked, results = [], None
    try:
        while True:
            asked.append(list(plan.send(results)))
            results = []
            for block in asked[-1]:
                scores = np.asarray(evaluate(block), np.float32)[: block.num_valid]
                returns = np.broadcast_to(scores, (block.num_updates + 1, len(scores)))
                context = block.tasks.context[: len(scores)]
                history = History(context, returns, returns > 1e9, returns * 0 + 3.0, returns, {})
                results.append(BlockResult(history, block.tasks.theta, {}))
    except StopIteration as end:
        return end.value, asked


def plan_of(search: dict[str, Any], network: Network = CONSTANT, **options: Any) -> Any:
    """Plan the search of one level alone, by default of constants."""
    alone = Search(levels=(network.level,), block_size=8, **search)
    start = Start(network, first_weights(network, 1))
    return searching([MDP], alone, start, seed=1, num_validation=8, files=Files(**options))


@pytest.mark.parametrize("strategy", ["open-es", "pgpe", "cma-es", "snes"])
def test_every_strategy_finds_the_best_point_although_tasks_differ_more(strategy):
    search = {"strategy": strategy, "generations": 30, "pairs": 16, "rate": 0.3, "validate_every": 10}
    course, asked = play(plan_of(search))
    units = CONSTANT(CONSTANT.split(course.best), np.zeros((1, 0), np.float32), np)
    np.testing.assert_allclose(np.ravel(units), GOAL, atol=0.06)
    assert [generation for generation, _ in course.scores] == [0, 10, 20, 30]
    assert course.scores[-1][1] > course.scores[0][1]
    alone = Search(levels=("constant",), block_size=8, **search)
    assert sum(map(len, asked)) == evolution.num_blocks(alone, [MDP], 8, "constant")
    assert course.steps == sum(3.0 * (b.num_updates + 1) * len(b.tasks.theta) for blocks in asked for b in blocks)


def test_pairs_share_everything_but_the_sign_and_generations_draw_new_tasks():
    _, asked = play(plan_of({"generations": 2, "pairs": 12, "validate_every": 9}))
    validation, first, second, _ = asked
    np.testing.assert_array_equal(validation[0].tasks.context, MDP.tasks(1, Stream.VALIDATION, 0).context)
    assert {(block.mdp.sampler.twins, len(block.tasks.theta)) for block in first} == {(2, 16)}
    for block, valid in zip(first, (8, 4), strict=True):
        halves = [np.split(array, 2) for array in (block.tasks.context, block.tasks.theta)]
        for one, other in halves:
            np.testing.assert_array_equal(one, other)
        up, down = (half[:valid] for half in np.split(np.asarray(block.controller.weights), 2))
        np.testing.assert_allclose(up + down, 0.0, atol=1e-6)  # the mean is still 0
        assert np.abs(up).min() > 0.0
    ours, theirs = ({jax.random.key_data(block.tasks.key).tobytes() for block in blocks} for blocks in (first, second))
    assert not ours & theirs


def test_twins_with_the_same_hyperparameters_learn_the_same():
    tasks = MDP.tasks(3, Stream.TRAIN, 0)
    twice = replace(MDP, sampler=replace(MDP.sampler, twins=2), block_size=2 * MDP.block_size)
    pair = tasks._replace(context=np.tile(tasks.context, (2, 1)), theta=np.tile(tasks.theta, (2, 1)))
    values = np.tile(np.float32([[1e-2, 0.2]]), (len(pair.theta), 1))
    after = twice.advance(twice.begin(pair), values)
    one, other = np.split(np.asarray(after.theta), 2)
    np.testing.assert_array_equal(one, other)
    alone = MDP.advance(MDP.begin(tasks), values[: len(tasks.theta)])
    np.testing.assert_allclose(one, alone.theta, rtol=1e-5, atol=1e-6)


def test_levels_share_the_generations_and_begin_from_the_simpler_one():
    search = Search(generations=10, pairs=8, block_size=8)
    assert [search.of_level(level)[0].generations for level in LEVELS] == [10, 7, 4]
    assert [search.of_level(level)[1] for level in LEVELS] == [3, 3, 4]
    weights, curve = np.float32([0.5, -1.0]), Network(("budget",), (0.5,), (0.3,), CONSTANT.base, 5)
    first = first_weights(curve, 1, Start(CONSTANT, weights))
    np.testing.assert_array_equal(curve.split(first).curves, np.tile(weights, (5, 1)))
    again = FEEDBACK.split(first_weights(FEEDBACK, 1, Start(curve, first)))
    np.testing.assert_array_equal(again.curves, curve.split(first).curves)
    assert not again.output.any()
    assert again.hidden.std() > 0.5


def test_a_search_that_was_stopped_goes_on_to_the_same_bytes():
    search, kept = {"generations": 6, "pairs": 8, "validate_every": 3}, []
    whole, _ = play(plan_of(search, keep=lambda _, course: kept.append(course)))
    assert [course.generation for course in kept] == [0, 1, 2, 3, 3, 4, 5, 6, 6]
    for course in kept:
        numbers = {name: getattr(course, name) for name in NUMBERS}
        go_on = partial(course_from, course_arrays(course), numbers)
        resumed, _ = play(plan_of(search, begun=lambda _, like, go_on=go_on: go_on(like)))
        assert resumed._replace(state=0, best=0, branch=0) == whole._replace(state=0, best=0, branch=0)
        for name, array in course_arrays(whole).items():
            assert course_arrays(resumed)[name].tobytes() == array.tobytes()
    other = course_arrays(kept[0]) | {"state/0": np.zeros(1, np.float32)}
    with pytest.raises(InputError, match="written by another strategy or with other settings"):
        play(plan_of(search, begun=lambda _, like: course_from(other, numbers, like)))


def test_a_controller_that_diverges_counts_as_the_worst_and_is_never_selected():
    def diverging(block: BlockRun) -> np.ndarray:
        scores = distance(block)
        return np.where(np.arange(len(scores)) % 5 == 0, np.nan, scores)

    def always(block: BlockRun) -> np.ndarray:
        return np.full(len(block.tasks.theta), np.nan)

    course, _ = play(plan_of({"generations": 3, "pairs": 8}), diverging)
    assert np.isfinite(course.state.mean).all()
    course, _ = play(plan_of({"generations": 2, "pairs": 8}), always)
    assert np.isfinite(course.best).all()
    assert not np.isfinite(course.scores[-1][1])
    units = evolution.advantage(np.array([1.0, np.nan, 3.0]), np.array([0.0, 1.0, 3.0]))
    np.testing.assert_allclose(units, [1.5, -1.5, 0.0])


def test_the_first_controller_is_the_rule_as_it_is_and_feedback_is_standardised():
    start = dict(zip(SPACE.names, np.asarray(SPACE.from_unit(np.asarray(CONSTANT.base)[None]))[0], strict=True))
    assert start["clip_range"] == pytest.approx(0.2, rel=1e-4)
    assert base_point(MDP, {"stepsize": 1e-3})[0] == pytest.approx(1 / 3, rel=1e-5)
    search = Search(observation=("last_rate", "own_steps", "clip_fraction"), units=3)
    network = network_of("feedback", search, [MDP], seed=1)  # of one loop, whose steps never differ
    assert network.features == ("last_rate", "clip_fraction", "budget")
    assert -6.0 < network.mean[0] < -1.0
    assert network.spread[0] > 0.1
    assert network.num_weights == 5 * 2 + 4 * 3 + 3 * 2
    assert network.level == "feedback"
    with pytest.raises(InputError, match=r"search\.levels"):
        Search(levels=("schedule", "schedule"))
