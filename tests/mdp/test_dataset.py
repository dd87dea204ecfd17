import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from metastep._core import storage
from metastep._core.errors import InputError
from metastep._core.provenance import environment_record, first_difference
from metastep.mdp import parquet
from metastep.mdp.dataset import Counts, Dataset, DatasetWriter, Layout
from metastep.mdp.history import History
from metastep.mdp.parquet import to_parquet

FEATURES = {"theta": 3, "natural_gradient": 3}
OBSERVATION = ("theta", "natural_gradient", "context", "return")
LAYOUT = Layout(("mass", "length"), FEATURES, num_updates=4, num_learners=22, block_size=8)
CONFIG = {"env": {"name": "toy", "sizes": (1, 2)}, "fqi": {"trees": 50, "lam": 1.0}}


def make_block(index: int, layout: Layout = LAYOUT, lanes: int | None = None) -> History:
    """A block of random numbers that depend on its index only."""
    lanes = lanes or layout.block_size
    rng = np.random.default_rng(index)

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32)

    times = layout.num_updates + 1
    return History(
        context=draw(lanes, len(layout.context_names)),
        features={name: draw(times, lanes, size) for name, size in layout.features.items()},
        mean_return=draw(times, lanes),
        hyperparameters=draw(layout.num_updates, lanes, layout.num_hyperparameters),
        flagged=np.zeros((times, lanes), bool),
        num_steps=np.ones((times, lanes), np.float32),
    )


def start(folder, layout=LAYOUT, config=CONFIG, seed=7, device="cpu") -> DatasetWriter:
    return DatasetWriter(folder, layout, config, seed=seed, device=device)


def collect(folder, layout=LAYOUT) -> Dataset:
    writer = start(folder, layout)
    for index in writer.missing_blocks():
        writer.add(index, make_block(index, layout))
    return writer.finish()


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def dataset(tmp_path) -> Dataset:
    return collect(tmp_path / "data")


def test_blocks_come_back_without_the_padding(dataset):
    assert len(LAYOUT.blocks) == 3
    blocks = list(dataset.blocks())
    assert [len(block.context) for block in blocks] == [8, 8, 6]
    for index, block in enumerate(blocks):
        lanes, expected = len(block.context), make_block(index)
        np.testing.assert_array_equal(block.context, expected.context[:lanes])
        wanted = expected.to_arrays()
        assert block.to_arrays().keys() == wanted.keys()
        for name, found in block.to_arrays().items():
            if name != "context":
                np.testing.assert_array_equal(found, wanted[name][:, :lanes])
            assert found.dtype == (np.bool_ if name == "flagged" else np.float32)
            assert not found.flags.writeable


def test_the_manifest_says_what_the_data_are(dataset):
    manifest = json.loads((dataset.folder / "manifest.json").read_text())
    assert manifest["config"] == {"env": {"name": "toy", "sizes": [1, 2]}, "fqi": {"trees": 50, "lam": 1.0}}
    assert manifest["environment"] == environment_record("cpu")
    assert manifest["blocks"] == [
        storage.sha256_of(dataset.folder / f"block-0000{index}.safetensors") for index in range(3)
    ]
    assert (dataset.seed, dataset.layout, dataset.config) == (7, LAYOUT, manifest["config"])
    assert dataset == Dataset.open(dataset.folder)


def test_the_tuples_are_successive_observations(dataset):
    tuples = dataset.transitions()
    assert dataset.num_transitions == len(tuples.reward) == 22 * 4
    assert tuples.stepsize.shape == (88,)
    row = 0
    for block in dataset.blocks():
        for learner in range(len(block.context)):
            for t in range(4):
                for found, time_ in ((tuples.observation, t), (tuples.next_observation, t + 1)):
                    seen = (block.features[name][time_, learner] for name in FEATURES)
                    parts = (*seen, block.context[learner])
                    np.testing.assert_array_equal(found[row], np.concatenate(parts))
                assert tuples.stepsize[row] == block.hyperparameters[t, learner, 0]
                assert tuples.reward[row] == block.mean_return[t + 1, learner] - block.mean_return[t, learner]
                row += 1
    assert {array.dtype for array in tuples} == {np.dtype(np.float32)}


def test_features_are_side_by_side_in_the_order_asked_for(dataset):
    full = dataset.transitions(OBSERVATION)
    places = {"theta": [0, 1, 2], "natural_gradient": [3, 4, 5], "context": [6, 7], "return": [8]}
    for names in (("return",), ("theta", "natural_gradient"), ("context", "theta")):
        columns = [column for name in names for column in places[name]]
        np.testing.assert_array_equal(dataset.transitions(names).observation, full.observation[:, columns])
        np.testing.assert_array_equal(dataset.transitions(names).next_observation, full.next_observation[:, columns])
    np.testing.assert_allclose(full.next_observation[:, -1] - full.observation[:, -1], full.reward, atol=1e-6)
    with pytest.raises(
        InputError, match="the data does not hold 'thta', it holds context, return, natural_gradient, theta"
    ):
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
    for parts in (("theta",), OBSERVATION):
        tuples = dataset.transitions(parts)
        assert all(len(array) == 21 and np.isfinite(array).all() for array in tuples)
    kept = dataset.transitions(("theta",)).observation
    np.testing.assert_array_equal(kept[:2], block.features["theta"][[0, 3], 0])


def test_memory_stays_below_the_size_of_the_data_while_streaming(tmp_path):
    import tracemalloc

    layout = Layout(("mass",), {"theta": 50, "natural_gradient": 50}, num_updates=50, num_learners=320, block_size=32)
    collect(tmp_path, layout)
    block_bytes = layout.num_bytes(0)
    tracemalloc.start()
    dataset = Dataset.open(tmp_path)
    for block in dataset.blocks():
        assert np.isfinite(block.features["theta"]).all()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < block_bytes < sum(path.stat().st_size for path in tmp_path.iterdir()) / 9


def test_any_order_and_any_share_of_blocks_gives_the_same_bytes(tmp_path, dataset):
    reference = files(dataset.folder)
    for number, order in enumerate([(2, 0, 1), (1, 1, 2, 0)]):
        folder = tmp_path / f"order-{number}"
        for index in order:  # a new writer each time, as if restarted
            start(folder).add(index, make_block(index))
        start(folder).finish()
        assert files(folder) == reference
    shared = tmp_path / "shared"
    first, second = start(shared), start(shared)
    first.add(2, make_block(2))
    second.add(0, make_block(0, lanes=8))
    assert first.missing_blocks() == second.missing_blocks() == [1]
    second.add(1, make_block(1))
    first.finish()
    second.finish()
    assert files(shared) == reference


WORKER = """
import sys
sys.path.insert(0, {tests!r})
from test_dataset import LAYOUT, make_block, start
print("ready", flush=True)
layout = LAYOUT._replace(block_size={block_size})
writer = start({folder!r}, layout)
for index in writer.missing_blocks()[{share}]:
    writer.add(index, make_block(index, layout))
"""


def run_worker(folder: Path, block_size: int, share: str = ":") -> subprocess.Popen:
    """A process that has loaded everything and begins to add its share of the blocks."""
    tests = str(Path(__file__).parent)
    program = WORKER.format(tests=tests, folder=str(folder), block_size=block_size, share=share)
    environment = os.environ | {"PYTHONPATH": str(Path(storage.__file__).parents[1])}
    worker = subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE)
    assert worker.stdout is not None
    with worker.stdout as output:
        assert output.readline() == b"ready\n"
    return worker


def test_a_process_killed_at_any_moment_resumes_to_the_same_bytes(tmp_path):
    folder, moments = tmp_path / "killed", random.Random(0)
    reference = collect(tmp_path / "alone", LAYOUT._replace(block_size=1))
    kills = 0
    for _ in range(3):
        worker = run_worker(folder, 1)
        time.sleep(moments.uniform(0, 0.04))
        kills += worker.poll() is None
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    assert kills > 0
    assert run_worker(folder, 1).wait() == 0
    collect(folder, LAYOUT._replace(block_size=1))
    assert files(folder) == files(reference.folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"config": {"env": {"name": "golf", "sizes": [1, 2]}, "fqi": CONFIG["fqi"]}},
            'config.env.name = "toy", which is now "golf"',
        ),
        ({"config": CONFIG | {"fqi": {"lam": 1.0}}}, "config.fqi.trees = 50, which is now not set"),
        ({"config": CONFIG | {"a": None}}, "config.a = not set, which is now null"),
        ({"seed": 8}, "seed = 7, which is now 8"),
        ({"device": "gpu"}, 'environment.device = "cpu", which is now "gpu"'),
        ({"layout": LAYOUT._replace(block_size=4)}, "layout.block_size = 8, which is now 4"),
    ],
)
def test_resuming_something_else_is_refused(tmp_path, change, message):
    start(tmp_path).add(0, make_block(0))
    before = files(tmp_path)
    with pytest.raises(InputError) as error:
        start(tmp_path, **change)
    assert message in str(error.value)
    assert files(tmp_path) == before


def test_other_versions_do_not_matter_once_the_data_are_complete(tmp_path, dataset):
    before = files(dataset.folder)
    writer = start(dataset.folder, device="gpu")
    assert writer.missing_blocks() == []
    assert writer.finish() == dataset
    assert files(dataset.folder) == before
    with pytest.raises(InputError, match="seed = 7, which is now 1"):
        start(dataset.folder, seed=1)


def damage_first_block(folder: Path, how: str) -> None:
    path = folder / "block-00000.safetensors"
    data = path.read_bytes()
    middle = len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes({"flipped bit": flipped, "truncated": data[:-5], "empty": b""}[how])


@pytest.mark.parametrize("how", ["flipped bit", "truncated", "empty", "missing"])
def test_a_damaged_block_is_named_on_opening_and_collected_again(dataset, how):
    before = files(dataset.folder)
    damage_first_block(dataset.folder, how)
    with pytest.raises(InputError, match=r"^File .*/data/block-00000\.safetensors is (damaged|missing).*\.$"):
        Dataset.open(dataset.folder)
    writer = start(dataset.folder)
    assert len(writer.damaged) == (how != "missing")
    assert writer.missing_blocks() == [0]
    with pytest.raises(
        InputError, match=r"is not complete: File .*/data/block-00000\.safetensors is (damaged|missing)"
    ):
        writer.finish()
    writer.add(0, make_block(0))
    writer.finish()
    assert files(dataset.folder) == before


def test_a_block_of_another_dataset_or_place_is_not_accepted(tmp_path, dataset):
    writer = start(tmp_path / "other", seed=8)
    for name in ("block-00000.safetensors", "block-00001.safetensors"):
        (tmp_path / "other" / name).write_bytes((dataset.folder / "block-00000.safetensors").read_bytes())
    assert writer.missing_blocks() == [0, 1, 2]
    block = dataset.folder / "block-00001.safetensors"
    block.write_bytes((dataset.folder / "block-00000.safetensors").read_bytes())
    assert start(dataset.folder).missing_blocks() == [1]


def test_a_block_collected_again_must_match_the_manifest(dataset):
    writer = start(dataset.folder)
    writer.add(1, make_block(99))
    with pytest.raises(InputError, match=r"^File .*block-00001.safetensors differs from the one whose checksum"):
        writer.finish()


@pytest.mark.parametrize("complete", [False, True])
def test_a_manifest_edited_by_hand_is_refused(tmp_path, complete):
    writer = start(tmp_path)
    if complete:
        collect(tmp_path)
    path = tmp_path / "manifest.json"
    good = path.read_text()
    edits = [good.replace('"trees": 50', '"trees": 51'), good.replace('"checksum": "', '"checksum": "0'), good[:-20]]
    edits += ["{}", "[]", "null", good.replace('"version": 2', '"version": 1')]
    for edited in edits:
        path.write_text(edited)
        for use in (lambda: Dataset.open(tmp_path), lambda: start(tmp_path), writer.finish):
            with pytest.raises(InputError) as error:
                use()
            assert (str(path) in str(error.value)) or (not complete and "block-00000" in str(error.value))


def test_unfinished_and_absent_datasets_are_said_to_be_so(tmp_path):
    start(tmp_path / "data").add(1, make_block(1))
    with pytest.raises(InputError, match=r"is not complete: 1 of 3 blocks are there; run the command that collects it"):
        Dataset.open(tmp_path / "data")
    with pytest.raises(InputError, match=r"^File .*/none/manifest.json is missing\.$"):
        Dataset.open(tmp_path / "none")


def test_blocks_without_a_manifest_are_not_overwritten(tmp_path, dataset):
    (dataset.folder / "manifest.json").unlink()
    with pytest.raises(
        InputError, match=r"holds block-00000\.safetensors but no manifest\.json; use another folder\.$"
    ):
        start(dataset.folder)


def test_wrong_blocks_are_refused(tmp_path):
    writer = start(tmp_path)
    for index in (-1, 3):
        with pytest.raises(InputError, match=rf"^block: {index} is not one of the 3 blocks\.$"):
            writer.add(index, make_block(0))
    with pytest.raises(InputError, match=r"^Block 2 has 7 learners, but must have 6 or, padded, 8\.$"):
        writer.add(2, make_block(2, lanes=7))
    block = make_block(0)
    with pytest.raises(InputError, match=r"^Block 0: feature/theta has shape \(4, 8, 3\), expected is \(5, 8, 3\)\.$"):
        writer.add(0, block._replace(features=block.features | {"theta": block.features["theta"][1:]}))
    with pytest.raises(InputError, match=r"num_updates is 0, but must be at least 1\.$"):
        start(tmp_path / "other", LAYOUT._replace(num_updates=0))


def test_space_on_disk_is_checked_before_the_start_and_for_what_is_left(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(storage, "require_free_space", lambda folder, num_bytes: asked.append(num_bytes))
    start(tmp_path).add(0, make_block(0))
    start(tmp_path)
    written = (tmp_path / "block-00000.safetensors").stat().st_size
    assert asked[0] == asked[1] == sum(LAYOUT.num_bytes(index) for index in range(3))
    assert asked[2] == asked[0] - LAYOUT.num_bytes(0)
    assert written <= LAYOUT.num_bytes(0)
    monkeypatch.undo()
    huge = LAYOUT._replace(num_learners=10**9, features={"theta": 10**6}, block_size=10**8)
    with pytest.raises(InputError, match=r"needs .* MB of free disk space"):
        start(tmp_path / "huge", huge)
    assert not (tmp_path / "huge").exists()


def test_the_first_difference_is_dotted():
    assert first_difference({"a": 1, "b": {"c": [1]}}, {"a": 1, "b": {"c": [1]}}) is None
    assert first_difference({"b": {"c": [1], "d": 0}}, {"b": {"c": [2], "d": 1}}) == ("b.c", "[1]", "[2]")
    assert first_difference({"b": {"c": 1}}, {"b": 3}) == ("b", '{"c": 1}', "3")


def test_the_first_difference_enters_lists_of_named_tables():
    adam, fixed = {"name": "adam", "grid": {"stepsize": [1, 2]}}, {"name": "fixed"}
    slower = {"name": "adam", "grid": {"stepsize": [1]}}
    wanted = ("m.adam.grid.stepsize", "[1, 2]", "[1]")
    assert first_difference({"m": [fixed, adam]}, {"m": [fixed, slower]}) == wanted
    assert first_difference({"m": [adam, fixed]}, {"m": [fixed, adam]}) == ("m[0].name", '"adam"', '"fixed"')
    assert first_difference({"m": [fixed]}, {"m": [fixed, adam]}) == ("m[1].name", "not set", '"adam"')
    assert first_difference({"m": [fixed, fixed]}, {"m": [fixed]})[0] == "m"
    assert first_difference({"m": []}, {"m": [fixed]}) == ("m", "[]", '[{"name": "fixed"}]')


@pytest.mark.parametrize(("hyperparameters", "at_once"), [(1, 16_000_000), (2, 3000)])
def test_parquet_holds_every_tuple(tmp_path, monkeypatch, hyperparameters, at_once):
    monkeypatch.setattr(parquet, "_BYTES_AT_ONCE", at_once)
    dataset = collect(tmp_path / "data", LAYOUT._replace(num_hyperparameters=hyperparameters))
    to_parquet(dataset.folder, tmp_path / "data.parquet")
    table = pq.read_table(tmp_path / "data.parquet").to_pydict()
    pieces = pq.ParquetFile(tmp_path / "data.parquet").num_row_groups
    assert pieces == len(dataset.layout.blocks) if at_once > 3000 else pieces > 2 * len(dataset.layout.blocks)
    tuples = dataset.transitions(OBSERVATION)
    assert table["learner"] == [learner for learner in range(22) for _ in range(4)]
    assert table["update"] == list(range(4)) * 22
    for prefix, expected in (("", tuples.observation), ("next_", tuples.next_observation)):
        np.testing.assert_array_equal(np.float32(table[f"{prefix}theta"]), expected[:, :3])
        np.testing.assert_array_equal(np.float32(table[f"{prefix}natural_gradient"]), expected[:, 3:6])
        np.testing.assert_array_equal(np.float32(table[f"{prefix}return"]), expected[:, 8])
        assert not any(table[f"{prefix}flagged"])
    np.testing.assert_array_equal(np.float32(table["context_mass"]), tuples.observation[:, 6])
    np.testing.assert_array_equal(np.float32(table["context_length"]), tuples.observation[:, 7])
    np.testing.assert_array_equal(np.float32(table["stepsize"]), tuples.stepsize)
    np.testing.assert_array_equal(np.float32(table["reward"]), tuples.reward)
