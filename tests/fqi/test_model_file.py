import json
import os
import tracemalloc
from contextlib import suppress

import numpy as np
import pytest
from safetensors.numpy import load_file

from metastep._core.errors import InputError
from metastep._core.storage import read_tensors, write_tensors
from metastep.fqi import (
    ExtraTrees,
    MetaFQI,
    Model,
    ObservationPart,
    TrainingData,
    ValidationCurve,
    load_model,
    model_from,
    save_model,
)
from metastep.fqi.forest import Forest
from tests.fqi.problems import HIGH, transitions


@pytest.fixture(scope="module")
def model() -> Model:
    fitted = MetaFQI(3, ExtraTrees(20, 0.01), stepsize_high=HIGH, lam=0.8).fit(transitions(600, 5, seed=5))
    made = model_from(
        fitted,
        setting={"env": "nav2d"},
        observation=(ObservationPart("theta", 4), ObservationPart("context", 1)),
        training_data=TrainingData(tuples=600, seed=5, fingerprint="abc"),
    )
    return made.with_validation([ValidationCurve(n, float(n % 3), (0.1, -2.5)) for n in (1, 2, 3)])


@pytest.fixture(scope="module")
def content(model, tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    save_model(model, path)
    load_model(path)  # compiles what the memory measurements must not count
    return path.read_bytes()


def test_same_predictions_bit_for_bit(model, content, tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    (tmp_path / "model.safetensors").write_bytes(content)
    assert load_model(tmp_path).record == model.record  # that of a run's folder
    loaded = load_model(path)
    assert loaded.record == model.record
    assert np.array_equal(load_file(path)["2/0/value"], model.q_functions[1].heads[0].value)  # any reader opens it
    observation = transitions(200, 5, seed=6).observation
    for iteration in (None, 1, 2, 3):
        assert np.array_equal(loaded.values(observation, iteration), model.values(observation, iteration))
        assert np.array_equal(loaded.act(observation, iteration), model.act(observation, iteration))
    for function, original in zip(loaded.q_functions, model.q_functions, strict=True):
        for head, expected in zip(function.heads, original.heads, strict=True):
            assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(head, expected, strict=True))


def test_writing_again_gives_the_same_bytes_and_leaves_nothing_else(model, content, tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(b"something old")
    save_model(model, path)
    assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["m.safetensors"]
    save_model(load_model(path), path)
    assert path.read_bytes() == content


def _corrupted(content: bytes, draw: np.random.Generator) -> bytes:
    """One random accident: a changed bit or byte, a lost, doubled, zeroed or moved piece, noise, a cut."""
    start, length = int(draw.integers(len(content))), int(draw.integers(1, 200))
    piece = content[start : start + length]
    before, after = content[:start], content[start + len(piece) :]
    noise = draw.bytes(len(piece))
    kinds = [
        before + bytes([content[start] ^ (1 << int(draw.integers(8)))]) + content[start + 1 :],
        before + noise[:1] + content[start + 1 :],
        before + noise + after,
        before + bytes(len(piece)) + after,
        before + after,
        before + piece + piece + after,
        before + noise + piece + after,
        before,
        content + noise,
        after + before + piece,
        bytes(draw.integers(256, size=8, dtype=np.uint8)) + content[8:],
    ]
    return kinds[int(draw.integers(len(kinds)))]


def _survives(path, content: bytes) -> str:
    """What loading says of this content: the error's sentence, or nothing; memory is held to three times the file's size."""
    path.write_bytes(content)
    tracemalloc.start()
    try:
        load_model(path)
        return ""
    except InputError as error:
        return str(error)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        # 64 KiB for what any call costs: frames, the path, the error itself.
        assert peak <= 3 * len(content) + 65_536


@pytest.mark.parametrize("num", [200, pytest.param(2000, marks=pytest.mark.soak)])
def test_every_random_corruption_is_detected(content, tmp_path, num):
    assert len(content) > 200_000
    assert _survives(tmp_path / "m", content) == ""
    draw = np.random.default_rng(num)
    for _ in range(num):
        damaged = _corrupted(content, draw)
        if damaged != content:
            assert _survives(tmp_path / "m", damaged).startswith("File ")


@pytest.mark.parametrize("num", [200, pytest.param(2000, marks=pytest.mark.soak)])
def test_corruptions_with_a_right_checksum_are_refused_or_give_a_model_whose_walks_end(content, tmp_path, num):
    draw = np.random.default_rng(num)
    observation = transitions(5, 5, seed=6).observation
    length, refused = 8 + int.from_bytes(content[:8], "little"), 0
    for _ in range(num):
        # Half of them in the header, which is a small part of the file.
        size = length if draw.integers(2) else len(content)
        damaged = _corrupted(content[:size], draw) + content[size:]
        (tmp_path / "m").write_bytes(damaged)
        with suppress(ValueError):  # what cannot be read cannot be signed
            write_tensors(tmp_path / "m", *read_tensors(tmp_path / "m", verify=False))
        try:
            loaded = load_model(tmp_path / "m")
        except InputError:
            refused += 1
            continue
        with np.errstate(all="ignore"):  # a mended file may hold any numbers
            assert loaded.act(observation).shape == (5,)
    assert refused > num / 4


def _set(path: tuple, value: object):
    def change(header: dict) -> dict:
        inner = header
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        return header

    return change


@pytest.mark.parametrize(
    "change",
    [
        _set(("__metadata__",), 3),
        _set(("__metadata__", "metastep"), '{"checksum": "", "metadata": NaN}'),
        _set(("__metadata__", "metastep"), '{"checksum": "", "metadata": {"a": "\\ud800"}}'),
        _set(("1/0/value", "dtype"), "F16"),
        _set(("1/0/value", "shape"), [2**40]),
        _set(("1/0/value", "shape"), 3),
        _set(("1/0/value", "data_offsets"), [8, 16]),
        _set(("1/0/empty",), {"dtype": "F32", "shape": [0, 2**70], "data_offsets": [0, 0]}),
        lambda header: '{"__metadata__":{}}, oops',
        lambda header: '{"a":' + "[" * 5000,
        lambda header: '{"a":[' + "[]," * 250_000 + "1]}",
        lambda header: "{}" + " " * (17 << 20),
    ],
)
def test_hostile_headers_are_refused(content, tmp_path, change):
    length = int.from_bytes(content[:8], "little")
    changed = change(json.loads(content[8 : 8 + length]))
    raw = (changed if isinstance(changed, str) else json.dumps(changed)).encode()
    (tmp_path / "m").write_bytes(len(raw).to_bytes(8, "little") + raw + content[8 + length :])
    with pytest.raises(InputError, match="is damaged or was not written by metastep: "):
        load_model(tmp_path / "m")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_set(("version",), 2), "is a model of version 2, this metastep reads version 3: fit it again"),
        (_set(("format",), "other"), "is not a metastep model"),
        (_set(("record",), {}), "model record: setting is missing"),
        (_set(("record", "regressor", "name"), "os:system"), "'os:system' is not registered"),
        (_set(("record", "regressor", "options"), {"trees": "many"}), "trees: 'many' must be a whole number"),
        (_set(("record", "regressor", "options"), {"surprise": 1}), "'surprise' is not an option of extra-trees"),
        (_set(("record", "num_stepsizes"), 10**9), "model record: num_stepsizes"),
        (_set(("record", "branches", 0, "scale"), "cubic"), "model record: branches.0.scale"),
        (_set(("record", "branches"), []), "model record: branches"),
    ],
)
def test_hostile_metadata_is_named(content, tmp_path, change, sentence):
    path = tmp_path / "m"
    path.write_bytes(content)
    arrays, metadata = read_tensors(path)
    write_tensors(path, arrays, change(metadata))
    with pytest.raises(InputError, match=sentence):
        load_model(path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"1/0/left": None}, "has the arrays"),
        ({"1/2/left": np.zeros(2)}, "7 heads, allowed are 2 of every iteration from 1 on"),
        ({"1/02/left": np.zeros(2)}, "is not named iteration/head/array"),
        ({"9/0/left": np.zeros(2)}, "allowed are 2 of every iteration from 1 on"),
        ({"1/0/left": np.zeros(2)}, "left is float64 of shape"),
        ({f"{n}/{h}/importances": np.ones(9) for n in (1, 2, 3) for h in (0, 1)}, "a head has 9 features"),
        ({f"3/{h}/{name}": None for h in (0, 1) for name in Forest._fields}, "selected_iteration|validation"),
    ],
)
def test_tensors_that_do_not_belong_are_named(content, tmp_path, change, sentence):
    path = tmp_path / "m"
    path.write_bytes(content)
    arrays, metadata = read_tensors(path)
    changed = {name: array for name, array in (arrays | change).items() if array is not None}
    write_tensors(path, changed, metadata)
    with pytest.raises(InputError, match=sentence):
        load_model(path)


def test_paths_without_a_model_file_are_named(model, tmp_path):
    with pytest.raises(InputError, match="cannot be written"):
        save_model(model, tmp_path / "nowhere" / "m")
    with pytest.raises(InputError, match=r"File .*/nothing is missing\."):
        load_model(tmp_path / "nothing")
    with pytest.raises(InputError, match=r"File .*/model.safetensors is missing\."):
        load_model(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(InputError, match="cannot be read: it is not a plain file"):
            load_model(other)
    for size in (0, 7, 8, 50, 5000):
        (tmp_path / "short").write_bytes(b"\0" * size)
        with pytest.raises(InputError, match="is damaged or was not written by metastep"):
            load_model(tmp_path / "short")
