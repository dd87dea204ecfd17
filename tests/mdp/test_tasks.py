import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metastep._core.errors import InputError
from metastep.envs.contexts import ContextSpace, load_tasks

SPACE = ContextSpace(("putter_length", "friction"), (0.7, 0.065), (1.0, 0.196))


def load(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return load_tasks(path, SPACE)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tasks.csv", "putter_length,friction\n0.7,0.065\n1,0.196\n"),
        ("tasks.CSV", "\ufefffriction , putter_length\r\n0.065, 0.7\r\n\r\n1.96e-1, 1.0"),
        ("tasks.json", '[{"putter_length": 0.7, "friction": 0.065}, {"friction": 0.196, "putter_length": 1}]'),
    ],
)
def test_tasks_are_read_in_the_order_of_the_context_space(tmp_path, name, content):
    """Bounds, which the last task has, are inclusive although float32 rounds them."""
    tasks = load(tmp_path, name, content)
    assert tasks.dtype == np.float32
    np.testing.assert_array_equal(tasks, np.array([[0.7, 0.065], [1.0, 0.196]], np.float32))


GOOD = '{"putter_length": 0.8, "friction": 0.1}'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "t.csv",
            "putter_length,friction\n0.8,0.1\n0.8,0.2\n",
            ": task 1 has friction = 0.2, allowed is [0.065, 0.196].",
        ),
        ("t.csv", "putter_length,friction\n0.8,slippery\n", ": task 0, 'friction': 'slippery' must be a valid number"),
        ("t.csv", "putter_length,friction\n0.8\n", ": task 0, 'friction': None must be a number."),
        (
            "t.csv",
            "putter_length,fricton\n0.8,0.1\n",
            "0 has the fields ['putter_length', 'fricton'], needed are putter_length, friction.",
        ),
        ("t.csv", "friction\n0.1\n", ": task 0 has the fields ['friction'], needed are putter_length, friction."),
        (
            "t.csv",
            "friction,friction\n0.1,0.1\n",
            " has the columns friction, friction, they must differ from each other.",
        ),
        ("t.csv", "", ": [] must have at least 1 item."),
        ("t.csv", b"\xff\xfe\n", " is not valid CSV: "),
        ("t.json", f"[{GOOD}, 3]", ": task 1: 3.0 must be a table."),
        ("t.json", GOOD, ": {'putter_length': 0.8, 'friction': 0.1} must be a valid list."),
        ("t.json", "[", " is not valid JSON: "),
        ("t.json", '[{"putter_length": 1e999, "friction": 0.1}]', "putter_length = inf, allowed is [0.7, 1]."),
        ("t.txt", "", " ends in '.txt', allowed are .csv and .json."),
    ],
)
def test_bad_files_give_one_sentence(tmp_path, name, content, message):
    with pytest.raises(InputError) as error:
        load(tmp_path, name, content)
    assert message in str(error.value)
    assert f"Task file {tmp_path / name}" in str(error.value)
    assert "\n" not in str(error.value)


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just([])
ROWS = st.dictionaries(st.sampled_from([*SPACE.names, "fricton"]) | st.text(max_size=5), VALUES, max_size=3) | VALUES


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=40) | (st.lists(ROWS) | ROWS).map(lambda rows: json.dumps(rows).encode()))
@pytest.mark.parametrize("name", ["t.csv", "t.json"])
def test_any_content_gives_tasks_or_one_sentence(tmp_path, name, content):
    message = ""
    try:
        assert load(tmp_path, name, content).shape[1] == 2
    except InputError as error:
        message = str(error)
    assert "\n" not in message
