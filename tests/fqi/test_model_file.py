import hashlib
import json
import os
import tracemalloc

import numpy as np
import pytest
from safetensors.numpy import load_file

from metastep.errors import InputError
from metastep.fqi import MetaFQI, Model, ObservationPart, TrainingData, ValidationCurve, load_model, save_model
from metastep.fqi.model import model_from
from tests.fqi.problems import HIGH, transitions


@pytest.fixture(scope="module")
def model() -> Model:
    fitted = MetaFQI(3, 20, 0.01, stepsize_high=HIGH, lam=0.8).fit(transitions(600, 5, seed=5))
    made = model_from(
        fitted,
        environment="nav2d",
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


def _signed(content: bytes) -> bytes:
    """The same content with the checksum it would have if it had been written like this."""
    start = content.index(b'"sha256":"') + 10
    unsigned = content[:start] + b"0" * 64 + content[start + 64 :]
    return content[:start] + hashlib.sha256(unsigned).hexdigest().encode() + content[start + 64 :]


def _parts(content: bytes) -> tuple[dict, bytes]:
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def _joined(header: dict | str, data: bytes) -> bytes:
    text = header if isinstance(header, str) else json.dumps(header, separators=(",", ":"))
    raw = text.encode()
    raw += b" " * (-len(raw) % 8)
    return _signed(len(raw).to_bytes(8, "little") + raw + data)


def test_same_predictions_bit_for_bit(model, content, tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    loaded = load_model(path)
    assert loaded.record == model.record
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


def test_any_safetensors_reader_can_open_it(model, content, tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    tensors = load_file(path)
    assert tensors["offsets"].shape == (3, 2, 21)
    assert tensors["value"].shape == (sum(len(h.value) for q in model.q_functions for h in q.heads),)


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
    """What loading says of this content: the error's sentence, or nothing; memory is held to twice the file's size."""
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
        assert peak <= 2 * len(content) + 65_536


def _campaign(content: bytes, path, num: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    for _ in range(num):
        damaged = _corrupted(content, draw)
        if damaged != content:
            assert "model file" in _survives(path, damaged)


def test_every_random_corruption_is_detected(content, tmp_path):
    assert len(content) > 200_000
    assert _survives(tmp_path / "m", content) == ""
    _campaign(content, tmp_path / "m", 200, seed=0)


@pytest.mark.soak
def test_two_thousand_random_corruptions_are_detected(content, tmp_path):
    _campaign(content, tmp_path / "m", 2000, seed=1)


def _hostile_campaign(content: bytes, path, num: int, seed: int) -> None:
    """Corruptions by someone who mends the checksum: refused, or a model whose walks end."""
    draw = np.random.default_rng(seed)
    observation = transitions(5, 5, seed=6).observation
    length = 8 + int.from_bytes(content[:8], "little")
    refused = 0
    for _ in range(num):
        # Half of them in the header, which is a small part of the file.
        size = length if draw.integers(2) else len(content)
        damaged = _corrupted(content[:size], draw) + content[size:]
        if b'"sha256":"' not in damaged[:200]:
            continue
        path.write_bytes(_signed(damaged))
        try:
            loaded = load_model(path)
        except InputError:
            refused += 1
            continue
        with np.errstate(all="ignore"):  # a mended file may hold any numbers
            assert loaded.act(observation).shape == (5,)
    assert refused > num / 4


def test_mended_checksums_do_not_help(content, tmp_path):
    _hostile_campaign(content, tmp_path / "m", 150, seed=0)


@pytest.mark.soak
def test_two_thousand_mended_checksums_do_not_help(content, tmp_path):
    _hostile_campaign(content, tmp_path / "m", 2000, seed=1)


def _set(path: tuple, value: object):
    def change(header: dict) -> dict:
        inner = header
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        return header

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_set(("__metadata__", "version"), "2"), "version is '2', allowed is '1'"),
        (_set(("__metadata__", "format"), "other"), "format is 'other'"),
        (_set(("__metadata__", "extra"), "1"), "metadata must have"),
        (_set(("__metadata__", "record"), 3), "record must be a string"),
        (_set(("__metadata__", "record"), "{}"), "model record: environment: Field required"),
        (_set(("extra",), {}), "tensors are"),
        (_set(("value", "dtype"), "F32"), "value: must have dtype F64"),
        (_set(("value", "shape"), [2**40]), "do not fit"),
        (_set(("value", "shape"), [2**60, 2**60]), "whole numbers"),
        (_set(("value", "shape"), [-1]), "whole numbers"),
        (_set(("value", "shape"), [1.5]), "whole numbers"),
        (_set(("value", "shape"), []), "whole numbers"),
        (_set(("value", "data_offsets"), [8, 16]), "do not fit"),
        (_set(("offsets", "shape"), [3, 42]), "must be \\(iterations, heads"),
        (_set(("offsets", "shape"), [2, 3, 21]), "must be \\(iterations, heads"),
        (_set(("importances", "shape"), [36]), "must be \\(iterations, heads"),
        (_set(("feature", "shape"), [1, 1]), "do not fit"),
        (lambda header: '{"__metadata__":{"sha256":"' + "0" * 64 + '"}, oops', "header is not JSON"),
        (lambda header: '{"__metadata__":{"sha256":"' + "0" * 64 + '"},"a":' + "[" * 5000, "header is not JSON"),
        (lambda header: '{"__metadata__":{"sha256":"' + "0" * 64 + '"},"a":[' + "[]," * 250_000, "too many"),
        (lambda header: '{"__metadata__":{"sha256":"' + "0" * 64 + '"}}' + " " * 2_000_000, "header length"),
        (lambda header: '{"__metadata__":{"sha256":"' + "0" * 64 + '"},"é":1}', "not ASCII"),
    ],
)
def test_hostile_headers_are_named(content, tmp_path, change, sentence):
    header, data = _parts(content)
    path = tmp_path / "m"
    path.write_bytes(_joined(change(header), data))
    with pytest.raises(InputError, match=sentence):
        load_model(path)


@pytest.mark.parametrize(
    ("name", "index", "value", "sentence"),
    [
        ("left", 0, 0, "later nodes"),
        ("right", 0, 2**31 - 1, "later nodes"),
        ("threshold", 0, np.inf, "threshold must be finite"),
        ("value", 3, np.nan, "value must be finite"),
        ("feature", 0, 6, "feature must"),
        ("offsets", 20, 2**62, "offsets"),
        ("offsets", 20, -5, "offsets"),
        ("offsets", 125, 5, "offsets|after the last forest"),
        ("importances", 0, np.nan, "importances must be finite"),
    ],
)
def test_hostile_arrays_are_named(content, tmp_path, name, index, value, sentence):
    header, data = _parts(content)
    start, stop = header[name]["data_offsets"]
    kinds = {"F64": "<f8", "I64": "<i8", "F32": "<f4", "I32": "<i4"}
    array = np.frombuffer(data[start:stop], kinds[header[name]["dtype"]]).copy()
    array[index] = value
    path = tmp_path / "m"
    path.write_bytes(_joined(header, data[:start] + array.tobytes() + data[stop:]))
    with pytest.raises(InputError, match=sentence):
        load_model(path)


def test_what_is_no_model_file(tmp_path):
    with pytest.raises(InputError, match="cannot be read: No such file"):
        load_model(tmp_path / "nothing")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        load_model(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file"):
        load_model(tmp_path / "pipe")
    for size in (0, 7, 8, 50, 5000):
        (tmp_path / "short").write_bytes(b"\0" * size)
        with pytest.raises(InputError, match="is not a metastep model"):
            load_model(tmp_path / "short")


def test_a_folder_that_does_not_exist_is_one_sentence(model, tmp_path):
    with pytest.raises(InputError, match="cannot be written"):
        save_model(model, tmp_path / "nowhere" / "m")
