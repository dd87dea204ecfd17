import dataclasses
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from metastep._core.errors import InputError
from metastep._core.provenance import describe
from metastep.controllers import HOOF, Exploration, Fixed, GeometricDecay, MetaFQIController, SingleAction
from metastep.evaluation import Method, MethodSpec, baselines, compare, join
from metastep.evaluation.comparison import comparison_plan
from metastep.evaluation.methods import tuning_plan
from metastep.mdp.blocks import Stream
from metastep.rules import NGA, Adam, Menu, RMSProp
from metastep.rules.spaces import MenuSpace, Range
from tests.controllers.problems import BLOCK, make_mdp, make_training_mdp
from tests.one_block import run

FIXED = Method("f", NGA(), Fixed(0.5))


def compared(methods: Any, mdp: Any = None, **changes: Any) -> Any:
    return compare(methods, mdp or make_mdp(), **({"seed": 0, "num_tasks": 2, "num_updates": 1} | changes))


def test_methods_with_the_same_steps_have_bitwise_the_same_curves_and_all_rules_start_from_the_same_batch() -> None:
    methods = [Method(rule.name, rule, Fixed(0.5)) for rule in (NGA(), Adam(), RMSProp())]
    methods.append(Method("same", NGA(), GeometricDecay(0.5, 1.0)))
    first, *others, same = compared(methods, num_tasks=BLOCK + 3, num_updates=3).returns
    np.testing.assert_array_equal(first, same)
    assert len(np.unique(first)) > BLOCK * 3  # and not because nothing happens
    for other in others:
        np.testing.assert_array_equal(other[:, 0], first[:, 0])
        assert not np.array_equal(other, first)


def test_a_comparison_is_the_shared_loop_block_by_block() -> None:
    mdp = make_mdp()
    result = compared([Method("u", NGA(), Exploration())], seed=5, num_tasks=BLOCK + 3, num_updates=2)
    for block, lanes in ((0, slice(0, BLOCK)), (1, slice(BLOCK, BLOCK + 3))):
        episode, _ = run(mdp, Exploration(), mdp.tasks(5, Stream.TEST, block), 2, ("theta",))
        episode = episode.select_learners(0, lanes.stop - lanes.start)
        np.testing.assert_array_equal(result.context[lanes], episode.context)
        np.testing.assert_array_equal(result.returns[0, lanes], episode.mean_return.T)
        np.testing.assert_array_equal(result.hyperparameters[0, lanes], np.swapaxes(episode.hyperparameters, 0, 1))
        np.testing.assert_array_equal(result.flagged[0, lanes], episode.flagged.T)
        np.testing.assert_array_equal(result.num_steps[0, lanes], episode.num_steps.sum(axis=0))
        np.testing.assert_array_equal(result.theta[0, lanes], episode.features["theta"][-1])


def test_directions_are_kept_apart_from_steps() -> None:
    rule, ranges = Menu(("nga", "gradient")), (Range(0.1, 0.4), Range(0.5, 0.9))
    menu, how = make_mdp().with_rule(rule, MenuSpace(rule.directions, ranges)), {"num_tasks": 10, "num_updates": 2}
    result = compared([Method("u", rule, Exploration())], menu, **how)
    assert (result.methods[0].directions, result.methods[0].scale) == (("nga", "gradient"), "linear")
    assert result.direction.dtype == np.int8
    assert set(result.direction.ravel()) == {0, 1}
    assert result.hyperparameters.shape == (1, 10, 2, 1)
    np.testing.assert_array_equal(result.hyperparameters[..., 0] >= 0.5, result.direction == 1)
    other = compared([FIXED], **how)
    assert other.methods[0].directions == ()
    assert not other.direction.any()
    both = join([result, dataclasses.replace(other, settings=result.settings)])
    np.testing.assert_array_equal(both.direction[0], result.direction[0])
    np.testing.assert_array_equal(both.hyperparameters[1], np.float32(0.5))
    with_kl = MenuSpace(rule.directions, (ranges[0], Range(0.5, 0.9, "divergence")))
    assert Method("u", rule, Exploration()).record(with_kl).scale == "mixed"
    # Task 7 is the same whether 10 or 20 are asked for.
    np.testing.assert_array_equal(other.returns, compared([FIXED], num_tasks=20, num_updates=2).returns[:, :10])


def test_explicit_tasks_replace_the_sampled_ones() -> None:
    goals = np.random.default_rng(0).uniform(-0.5, 0.5, (BLOCK + 2, 2)).astype(np.float32)
    result = compared([FIXED], num_tasks=None, contexts=goals)
    np.testing.assert_array_equal(result.context, goals)
    assert result.settings["listed_tasks"] is True
    twice = compared([FIXED], num_tasks=5, contexts=goals[:2])
    np.testing.assert_array_equal(twice.context, goals[[0, 1, 0, 1, 0]])
    with pytest.raises(InputError, match="goal_x"):
        compared([FIXED], contexts=goals * 10.0)


def test_diagnostics_are_kept() -> None:
    methods = [Method("hoof", NGA(), HOOF(0.05, num_candidates=10)), FIXED]
    ((name, sizes),) = compared(methods, num_tasks=BLOCK + 1, num_updates=2).diagnostics.items()
    assert (name, sizes.shape) == ("hoof/effective_sample_size", (BLOCK + 1, 2))
    assert 1.0 <= sizes.min() <= sizes.max() <= 20.0 * (1 + 1e-5)


def test_progress_is_reported() -> None:
    tracker = MagicMock()
    advance = tracker.stage.return_value.__enter__.return_value.advance
    methods = [Method(name, NGA(), Fixed(0.1)) for name in "ab"]
    compared(methods, num_tasks=BLOCK + 1, tracker=tracker)
    assert sum(call.args[0] for call in advance.call_args_list) == 4
    compared(methods[:1], num_tasks=1, tracker=tracker)
    compared(methods, num_tasks=1, stream=Stream.VALIDATION, tracker=tracker)
    stages = [("test 2 methods", 4, "blocks"), ("test a", 1, "blocks"), ("validate", 2, "blocks")]
    assert [call.args for call in tracker.stage.call_args_list] == stages


def test_learned_methods_know_what_shaped_them() -> None:
    single, metafqi = (Method(kind.name, NGA(), kind()) for kind in (SingleAction, MetaFQIController))
    for method, use in ((single, "trained"), (metafqi, "trained"), (metafqi, "selected")):
        stream = Stream.TRAIN if use == "trained" else Stream.VALIDATION
        with pytest.raises(InputError, match=f"'{method.name}': was {use} on the {stream.name.lower()} stream"):
            compared([method], stream=stream)
    oracle = baselines.make("oracle").method(make_mdp(), {"num_stepsizes": 5})
    records = [method.record(make_mdp().space) for method in (single, metafqi, oracle)]
    assert [record.is_yardstick for record in records] == [False, False, True]
    assert records[2].values == {"num_stepsizes": 5}


@pytest.mark.parametrize(
    ("methods", "changes", "complaint"),
    [
        ([], {}, "none to compare"),
        ([FIXED] * 2, {}, "'f' is used more than once"),
        ([FIXED], {"num_tasks": 0}, "at least 1"),
        ([FIXED], {"num_updates": 0}, "at least 1"),
        ([FIXED], {"contexts": np.zeros((0, 2), np.float32)}, "compare: 0 tasks"),
    ],
)
def test_bad_requests_get_one_sentence(methods: list[Method], changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        compared(methods, **changes)


def test_learners_know_how_many_updates_a_comparison_or_a_search_makes() -> None:
    mdp = make_training_mdp()
    (asked, *_) = next(comparison_plan([Method("fixed", mdp.rule, Fixed(1e-3))], mdp, 0, 7, 2))
    assert (asked.mdp.budget, mdp.budget) == (7, 4)
    spec = MethodSpec("fixed", "fixed", grid={"stepsize": (1e-3,)})
    (asked, *_) = next(tuning_plan(spec, mdp, seed=0, num_tasks=2, num_updates=9))
    assert asked.mdp.budget == 9


def test_settings_say_what_was_run() -> None:
    result = compared([FIXED], seed=3)
    assert {"seed": 3, "stream": "test", "num_tasks": 2, "num_updates": 1}.items() <= result.settings.items()
    rollout = result.settings["mdp"]["estimator"]["rollout"]
    assert (rollout["env"]["type"], rollout["num_episodes"]) == ("Nav2D", 20)
    assert describe((1, None, Stream.TEST, {"a": np.float32(2.5)})) == [1, None, "test", {"a": 2.5}]
    assert describe((make_mdp, object())) == ["make_mdp", "object"]  # no addresses
    with pytest.raises(InputError, match="'b' is not in this comparison"):
        result.index("b")
