"""A block's numbers depend on its seed, stream and index alone. The module runs as a script too, as the other process."""

import os
import subprocess
import sys
from hashlib import sha256

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from metastep._core.errors import InputError
from metastep.envs import CartPole
from metastep.mdp.blocks import Blocks, Purpose, Stream, block_key, purpose_key
from metastep.policies import LinearGaussian
from metastep.rules import NGA
from metastep.simulation.gradients import Estimator
from metastep.simulation.rollouts import Rollout

SEED, SIZE, NUM_BLOCKS = 42, 8, 4
ESTIMATOR = Estimator(Rollout(CartPole(), LinearGaussian(4, 1, 1.001), num_episodes=12, horizon=20))


def run_block(block: int, stream: Stream = Stream.TRAIN, seed: int = SEED) -> NDArray[np.float32]:
    """Three updates of every lane: tasks, policies, returns and gradients, (lanes, numbers)."""
    key = block_key(seed, stream, block)
    context = ESTIMATOR.rollout.env.context_space.sample(purpose_key(key, Purpose.CONTEXT), SIZE)
    theta = jax.random.normal(purpose_key(key, Purpose.INITIAL_POLICY), (SIZE, 5), jnp.float32)
    stepsize = jax.random.uniform(purpose_key(key, Purpose.CONTROLLER), (SIZE, 1), jnp.float32)
    columns = [context, theta]
    for update in range(3):
        estimate = ESTIMATOR(theta, context, purpose_key(key, Purpose.SIMULATION, update))
        theta = NGA().apply(theta, estimate, {"stepsize": stepsize[:, 0]}, None).theta
        columns += [estimate.mean_return[:, None], estimate.gradient, estimate.natural_gradient, theta]
    return np.concatenate(columns, axis=1)


def digest(result: NDArray[np.float32]) -> str:
    return sha256(result.tobytes()).hexdigest()


def test_a_block_is_the_same_alone_among_others_and_in_another_order() -> None:
    alone = digest(run_block(2))
    in_order = [digest(run_block(block)) for block in range(NUM_BLOCKS)]
    backwards = [digest(run_block(block)) for block in reversed(range(NUM_BLOCKS))]
    assert in_order[2] == alone
    assert backwards == in_order[::-1]
    assert len(set(in_order)) == NUM_BLOCKS


def test_a_block_is_the_same_in_another_process() -> None:
    """Which compiles afresh, while this one may have its programs from the cache on disk."""
    afresh = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    process = subprocess.run([sys.executable, __file__, "2"], capture_output=True, text=True, check=True, env=afresh)
    assert process.stdout.strip() == digest(run_block(2))


def test_streams_seeds_and_blocks_are_disjoint() -> None:
    results = [run_block(0, stream) for stream in Stream] + [run_block(0, seed=7), run_block(1)]
    tasks = np.concatenate([result[:, :2] for result in results])
    assert len(np.unique(tasks, axis=0)) == len(tasks)
    assert len({digest(result) for result in results}) == len(results)


def test_numbers_of_streams_and_purposes_do_not_change() -> None:
    """They are part of what a seed means: renumbering would silently change every published result."""
    assert {stream.name: int(stream) for stream in Stream} == {"TRAIN": 0, "VALIDATION": 1, "TUNING": 2, "TEST": 3}
    assert {purpose.name: int(purpose) for purpose in Purpose} == {
        "CONTEXT": 0,
        "INITIAL_POLICY": 1,
        "SIMULATION": 2,
        "CONTROLLER": 3,
        "UPDATE": 4,
    }


@pytest.mark.parametrize(
    ("num_learners", "size", "valid"), [(1, 4, [1]), (4, 4, [4]), (5, 4, [4, 1]), (12, 4, [4, 4, 4]), (7, 1, [1] * 7)]
)
def test_cutting_learners_into_blocks(num_learners: int, size: int, valid: list[int]) -> None:
    blocks = Blocks(num_learners, size)
    assert len(blocks) == len(valid)
    assert [blocks.num_valid(block) for block in blocks] == valid


@pytest.mark.parametrize(("num_learners", "size"), [(0, 4), (4, 0), (-1, 3)])
def test_bad_sizes_are_refused_with_a_sentence(num_learners: int, size: int) -> None:
    with pytest.raises(
        InputError, match=f"blocks: {num_learners} learners in blocks of {size}; both must be at least 1"
    ):
        Blocks(num_learners, size)


@pytest.mark.parametrize("block", [-1, 2])
def test_a_block_that_does_not_exist_is_refused_with_a_sentence(block: int) -> None:
    with pytest.raises(InputError, match=f"block: {block} is not one of the 2 blocks"):
        Blocks(5, 4).num_valid(block)


if __name__ == "__main__":
    print(digest(run_block(int(sys.argv[1]))))
