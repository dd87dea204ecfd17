"""Run folders: which runs may resume in them, and what their files may hold."""

import json

import numpy as np
import pytest

from metastep._core import storage
from metastep._core.errors import InputError
from metastep.experiments.config import load
from metastep.experiments.run import Run
from tests.experiments.test_stages import TASKS
from tests.experiments.tiny import TINY


def config(*overrides):
    return load("nav2d", "quick", [*TINY, *overrides])


def edit(path, change):
    """Rewrite a folder's config.json as `change` leaves it, with the right checksum."""
    record = json.loads((path / "config.json").read_text())
    change(record)
    record.pop("checksum", None)
    (path / "config.json").write_text(json.dumps(storage.sealed(record)))


def forget_a_setting(record):
    """As a version wrote it that did not know this optional setting."""
    del record["experiment"]["collect"]["block_size"]


def test_a_folder_from_before_an_optional_setting_is_resumed(tmp_path):
    Run.create(tmp_path, config())
    edit(tmp_path, forget_a_setting)
    before = (tmp_path / "config.json").read_bytes()
    Run.create(tmp_path, config())
    assert (tmp_path / "config.json").read_bytes() == before
    with pytest.raises(InputError, match=r"started with collect.block_size = null, which is now 12"):
        Run.create(tmp_path, config("collect.block_size=12"))


def test_its_data_too(tmp_path):
    Run.create(tmp_path, config())
    edit(tmp_path, forget_a_setting)
    Run.create(tmp_path, config()).collect()
    manifest = json.loads((tmp_path / "data" / "manifest.json").read_text())
    assert "block_size" not in manifest["config"]["collect"]
    assert Run.open(tmp_path).collect() is not None


def test_a_setting_that_is_gone_is_named_with_the_file(tmp_path):
    Run.create(tmp_path, config())
    edit(tmp_path, lambda record: record["experiment"]["fqi"].update(tree=3))
    for resume in (lambda: Run.open(tmp_path), lambda: Run.create(tmp_path, config())):
        with pytest.raises(
            InputError, match=r"config.json: fqi.tree: is not a setting, did you mean 'fqi.regressor.trees'\?"
        ):
            resume()


NO_TABLES = ["all", 3, [], {"goal_x": 0.1}, [0.1, 0.2], [[]], [[0.1, 0.2], [0.3]]]
NO_NUMBERS = ["0.1", None, True, [0.2], 1e300, 10**400]


@pytest.mark.parametrize("tasks", [*NO_TABLES, *([[0.1, value]] for value in NO_NUMBERS)])
def test_listed_tasks_must_be_a_table_of_numbers(tmp_path, tasks):
    Run.create(tmp_path, config(), TASKS)
    edit(tmp_path, lambda record: record.update(tasks=tasks))
    with pytest.raises(InputError, match=r"config.json: tasks = .* must be null or a list of tasks") as error:
        Run.open(tmp_path)
    assert "\n" not in str(error.value)


def test_listed_tasks_must_be_tasks_of_the_environment(tmp_path):
    Run.create(tmp_path, config(), TASKS)
    np.testing.assert_array_equal(Run.open(tmp_path).importing(True).tasks, TASKS)
    for tasks, words in (
        ([[0.1, 0.2, 0.3]], r"config.json, tasks: got an array of shape \(1, 3\), expected \(tasks, 2\)"),
        ([[0.1, 9.0]], r"config.json, tasks: task 0 has goal_y = 9, allowed is"),
    ):
        edit(tmp_path, lambda record, tasks=tasks: record.update(tasks=tasks))
        with pytest.raises(InputError, match=words):
            Run.open(tmp_path).importing(True)


def test_the_first_command_is_kept(tmp_path):
    assert Run.create(tmp_path, config()).command() == ""
    Run.create(tmp_path, config(), command="metastep run nav2d")
    Run.create(tmp_path, config(), command="metastep run nav2d --device cpu")
    assert Run.open(tmp_path).command() == "metastep run nav2d"


def test_an_edited_configuration_is_refused(tmp_path):
    Run.create(tmp_path, config())
    text = (tmp_path / "config.json").read_text()
    assert '"meta_discount": 1.0' in text
    (tmp_path / "config.json").write_text(text.replace('"meta_discount": 1.0', '"meta_discount": 0.9'))
    for resume in (lambda: Run.open(tmp_path), lambda: Run.create(tmp_path, config())):
        with pytest.raises(InputError, match=r"config.json is damaged or was edited: its content does not match"):
            resume()


def test_a_folder_of_another_program_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match=r"--out: .* holds thesis.tex and is not a folder of this command"):
        Run.create(tmp_path, config())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_a_killed_start_left_is_not_in_the_way(tmp_path):
    (tmp_path / ".config.json.0123456789abcdef.tmp").write_text("half")
    Run.create(tmp_path, config())
    assert Run.open(tmp_path).config == config()
