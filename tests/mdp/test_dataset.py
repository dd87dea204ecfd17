import re
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from metastep._core.errors import InputError
from metastep._core.provenance import environment_record, first_difference
from metastep.mdp.dataset import Counts, Dataset, DatasetWriter, Layout, to_parquet
from metastep.mdp.history import History

FEATURES = {"theta": 3, "natural_gradient": 3}
OBSERVATION = ("theta", "natural_gradient", "context", "return")
LAYOUT = Layout(("mass", "length"), FEATURES, num_updates=4, num_learners=22, block_size=8)
CONFIG = {"env": {"name": "toy", "sizes": (1, 2)}, "fqi": {"trees": 50, "lam": 1.0}}


def make_block(index: int, layout: Layout = LAYOUT, lanes: int | None = None) -> History:
    """A block of random numbers that depend on its index only."""
    lanes, times = lanes or layout.block_size, layout.num_updates + 1
    draw = partial(np.random.default_rng(index).standard_normal, dtype=np.float32)
    return History(
        context=draw((lanes, len(layout.context_names))),
        features={name: draw((times, lanes, size)) for name, size in layout.features.items()},
        mean_return=draw((times, lanes)),
        hyperparameters=draw((layout.num_updates, lanes, layout.num_hyperparameters)),
        flagged=np.zeros((times, lanes), bool),
        num_steps=np.ones((times, lanes), np.float32),
    )


def start(folder, layout=LAYOUT, config=CONFIG, seed=7, device="cpu") -> DatasetWriter:
    return DatasetWriter(folder, layout, config, seed=seed, device=device)


def collect(folder, layout=LAYOUT) -> Dataset:
    writer = start(folder, layout)
    for index in sorted(writer.problems()):
        writer.add(index, make_block(index, layout))
    return writer.finish()


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def dataset(tmp_path) -> Dataset:
    return collect(tmp_path / "data")


def test_blocks_come_back_without_the_padding(dataset):
    blocks = list(dataset.blocks())
    assert [len(block.context) for block in blocks] == [8, 8, 6]
    assert (dataset.seed, dataset.layout, dataset.environment) == (7, LAYOUT, environment_record("cpu"))
    assert dataset.config == {"env": {"name": "toy", "sizes": [1, 2]}, "fqi": {"trees": 50, "lam": 1.0}}
    for index, block in enumerate(blocks):
        found, wanted = block.to_arrays(), make_block(index).select_learners(0, len(block.context)).to_arrays()
        assert found.keys() == wanted.keys()
        for name, array in found.items():
            np.testing.assert_array_equal(array, wanted[name])
            assert array.dtype == (np.bool_ if name == "flagged" else np.float32)


def test_the_tuples_are_successive_observations_of_the_features_asked_for(dataset):
    tuples = dataset.transitions()
    assert dataset.counts().transitions == len(tuples.reward) == 22 * 4
    learners = ((block, learner) for block in dataset.blocks() for learner in range(len(block.context)))
    for row, (block, learner, t) in enumerate((*each, t) for each in learners for t in range(4)):
        for found, time_ in ((tuples.observation, t), (tuples.next_observation, t + 1)):
            seen = (block.features[name][time_, learner] for name in FEATURES)
            np.testing.assert_array_equal(found[row], np.concatenate((*seen, block.context[learner])))
        assert tuples.stepsize[row] == block.hyperparameters[t, learner, 0]
        assert tuples.reward[row] == block.mean_return[t + 1, learner] - block.mean_return[t, learner]
    assert {array.dtype for array in tuples} == {np.dtype(np.float32)}
    asked = dataset.transitions(("context", "return", "theta"))
    np.testing.assert_array_equal(asked.observation[:, [3, 4, 5, 0, 1]], tuples.observation[:, [0, 1, 2, 6, 7]])
    np.testing.assert_allclose(asked.next_observation[:, 2] - asked.observation[:, 2], tuples.reward, atol=1e-6)
    with pytest.raises(InputError, match="the data does not hold 'thta', it holds context, return, natural_gradient"):
        dataset.transitions(("thta",))


def test_non_finite_tuples_are_counted_and_left_out_whatever_the_parts(tmp_path):
    layout = LAYOUT._replace(num_learners=8)
    block = make_block(0, layout)
    block.features["natural_gradient"][2, 0, 1] = np.nan  # the tuples of updates 1 and 2
    block.mean_return[4, 1] = np.inf  # the tuple of update 3
    block.mean_return[3:, 2] = -np.inf  # 2 and 3
    block.mean_return[1:3, 3] = 3e38, -3e38  # finite, but not their difference: 1
    block.hyperparameters[0, 4, 0] = np.nan  # 0
    block.context[5] = np.nan  # all four
    block.flagged[2, 0] = block.flagged[0, 6] = block.flagged[1, 6] = True  # 1 and 2; 0 and 1
    writer = start(tmp_path, layout)
    writer.add(0, block)
    dataset = writer.finish()
    counts = dataset.counts()
    assert counts[:3] == Counts(transitions=32, flagged=4, excluded=2 + 1 + 2 + 1 + 1 + 4, num_steps=0.0)[:3]
    np.testing.assert_allclose(counts.num_steps, block.num_steps.sum(dtype=np.float64))
    assert all(len(array) == 21 and np.isfinite(array).all() for array in dataset.transitions(OBSERVATION))
    kept = dataset.transitions(("theta",)).observation
    assert len(kept) == 21
    np.testing.assert_array_equal(kept[:2], block.features["theta"][[0, 3], 0])


def test_any_order_and_any_share_of_blocks_gives_the_same_bytes(tmp_path, dataset):
    for index in (1, 1, 2, 0):  # a new writer each time, as if restarted
        start(tmp_path / "order").add(index, make_block(index))
    start(tmp_path / "order").finish()
    first, second = start(tmp_path / "shared"), start(tmp_path / "shared")
    first.add(2, make_block(2))
    second.add(0, make_block(0))
    assert sorted(first.problems()) == sorted(second.problems()) == [1]
    second.add(1, make_block(1))
    assert first.finish() == second.finish()
    assert start(tmp_path / "shared", device="gpu").finish() == first.finish()  # nothing is left to compute
    assert files(tmp_path / "shared") == files(tmp_path / "order") == files(dataset.folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config": CONFIG | {"fqi": {"lam": 1.0}}}, "config.fqi.trees = 50, which is now not set"),
        ({"seed": 8}, "seed = 7, which is now 8"),
        ({"device": "gpu"}, 'environment.device = "cpu", which is now "gpu"'),
        ({"layout": LAYOUT._replace(block_size=4)}, "layout.block_size = 8, which is now 4"),
    ],
)
def test_resuming_something_else_is_refused(tmp_path, change, message):
    start(tmp_path).add(0, make_block(0))
    before = files(tmp_path)
    with pytest.raises(InputError, match=re.escape(message)):
        start(tmp_path, **change)
    assert files(tmp_path) == before


@pytest.mark.parametrize("how", ["flipped bit", "truncated", "missing"])
def test_a_damaged_block_is_named_on_opening_and_collected_again(dataset, how):
    before, path = files(dataset.folder), dataset.folder / "block-00000.safetensors"
    data = path.read_bytes()
    middle = len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    path.unlink()
    if how != "missing":
        path.write_bytes(flipped if how == "flipped bit" else data[:-5])
    with pytest.raises(InputError, match=r"^File .*/data/block-00000\.safetensors is (damaged|missing).*\.$"):
        Dataset.open(dataset.folder)
    writer = start(dataset.folder)
    assert len(writer.damaged) == (how != "missing")
    assert sorted(writer.problems()) == [0]
    with pytest.raises(InputError, match=r"is not complete: File .*/block-00000\.safetensors is (damaged|missing)"):
        writer.finish()
    writer.add(0, make_block(0))
    writer.finish()
    assert files(dataset.folder) == before


def test_a_block_of_another_dataset_or_place_is_not_accepted(tmp_path, dataset):
    writer, block = start(tmp_path / "other", seed=8), (dataset.folder / "block-00000.safetensors").read_bytes()
    (tmp_path / "other" / "block-00000.safetensors").write_bytes(block)
    assert sorted(writer.problems()) == [0, 1, 2]
    (dataset.folder / "block-00001.safetensors").write_bytes(block)
    writer = start(dataset.folder)
    assert sorted(writer.problems()) == [1]
    writer.add(1, make_block(99))
    with pytest.raises(InputError, match=r"^File .*block-00001.safetensors differs from the one whose checksum"):
        writer.finish()


def test_a_manifest_edited_by_hand_is_refused(dataset):
    writer, path = start(dataset.folder), dataset.folder / "manifest.json"
    good = path.read_text()
    for edited, words in (
        (good.replace('"trees": 50', '"trees": 51'), "damaged or was edited: its content does not match its checksum"),
        (good[:-20], "not valid JSON"),
        ("[]", "not a metastep dataset"),
        (
            good.replace('"version": 2', '"version": 1'),
            "a dataset of version 1, this metastep reads version 2: collect",
        ),
    ):
        path.write_text(edited)
        for use in (lambda: Dataset.open(dataset.folder), lambda: start(dataset.folder), writer.finish):
            with pytest.raises(InputError, match=f"^File {re.escape(str(path))} is {words}"):
                use()


def test_what_is_no_whole_dataset_is_refused(tmp_path, dataset):
    start(tmp_path / "begun").add(1, make_block(1))
    with pytest.raises(InputError, match=r"is not complete: 1 of 3 blocks are there; run the command that collects it"):
        Dataset.open(tmp_path / "begun")
    with pytest.raises(InputError, match=r"^File .*/none/manifest.json is missing\.$"):
        Dataset.open(tmp_path / "none")
    (dataset.folder / "manifest.json").unlink()
    with pytest.raises(InputError, match=r"holds block-00000\.safetensors but no manifest\.json; use another folder"):
        start(dataset.folder)


def test_wrong_blocks_are_refused(tmp_path):
    writer, block = start(tmp_path), make_block(0)
    with pytest.raises(InputError, match=r"^Block 0: feature/theta has shape \(4, 8, 3\), expected is \(5, 8, 3\)\.$"):
        writer.add(0, block._replace(features=block.features | {"theta": block.features["theta"][1:]}))
    with pytest.raises(InputError, match=r"num_updates is 0, it must be greater than or equal to 1\.$"):
        start(tmp_path / "other", LAYOUT._replace(num_updates=0))


def test_space_on_disk_is_checked_before_the_start(tmp_path):
    huge = LAYOUT._replace(num_learners=10**9, features={"theta": 10**6}, block_size=10**8)
    with pytest.raises(InputError, match=r"needs .* MB of disk space"):
        start(tmp_path / "huge", huge)
    assert not (tmp_path / "huge").exists()
    start(tmp_path).add(0, make_block(0))
    assert (tmp_path / "block-00000.safetensors").stat().st_size <= LAYOUT.num_bytes(0)


def test_the_first_difference_enters_lists_of_named_tables():
    adam, slower = ({"name": "adam", "grid": {"stepsize": steps}} for steps in ([1, 2], [1]))
    fixed = {"name": "fixed"}
    assert first_difference({"m": [fixed, adam]}, {"m": [fixed, slower]}) == ("m[1].grid.stepsize", "[1, 2]", "[1]")
    assert first_difference({"m": [adam, fixed]}, {"m": [fixed, adam]}) == ("m[0].name", '"adam"', '"fixed"')
    assert first_difference({"m": [fixed]}, {"m": [fixed, adam]}) == ("m[1].name", "not set", '"adam"')


@pytest.mark.parametrize("hyperparameters", [1, 2])
def test_parquet_holds_every_tuple(tmp_path, hyperparameters):
    dataset = collect(tmp_path / "data", LAYOUT._replace(num_hyperparameters=hyperparameters))
    to_parquet(dataset.folder, tmp_path / "data.parquet")
    table = pq.read_table(tmp_path / "data.parquet").to_pydict()
    tuples = dataset.transitions(OBSERVATION)
    assert table["learner"] == [learner for learner in range(22) for _ in range(4)]
    assert table["update"] == list(range(4)) * 22
    wanted = {"context_mass": tuples.observation[:, 6], "context_length": tuples.observation[:, 7]}
    wanted |= {"stepsize": tuples.stepsize, "reward": tuples.reward}
    for prefix, seen in (("", tuples.observation), ("next_", tuples.next_observation)):
        wanted |= {f"{prefix}theta": seen[:, :3], f"{prefix}natural_gradient": seen[:, 3:6]}
        wanted |= {f"{prefix}return": seen[:, 8], f"{prefix}flagged": np.zeros(88)}
    for name, array in wanted.items():
        np.testing.assert_array_equal(np.float32(table[name]), array)
    assert table.keys() == {"learner", "update", *wanted}
