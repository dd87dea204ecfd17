"""Run folders: which runs may resume in them, what their files may hold, and the time that stages take."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from metastep._core.errors import InputError
from metastep.experiments import stages
from metastep.experiments.checking import check_folder
from metastep.experiments.config import load
from metastep.experiments.reporting import in_words, print_outcome, times_of, write_report
from metastep.experiments.run import Run
from metastep.experiments.stages import Timed, add_time, read_times
from tests.experiments.test_checking import reseal
from tests.experiments.tiny import TASKS, TINY


def config(*overrides):
    return load("nav2d", "quick", [*TINY, *overrides])


def test_a_folder_from_before_an_optional_setting_is_resumed(tmp_path):
    Run.create(tmp_path, config())
    reseal(tmp_path / "config.json", experiment__collect__block_size=...)
    before = (tmp_path / "config.json").read_bytes()
    Run.create(tmp_path, config()).collect()
    assert (tmp_path / "config.json").read_bytes() == before
    with pytest.raises(InputError, match=r"started with collect.block_size = null, which is now 12"):
        Run.create(tmp_path, config("collect.block_size=12"))
    manifest = json.loads((tmp_path / "data" / "manifest.json").read_text())
    assert "block_size" not in manifest["config"]["collect"]
    assert Run.open(tmp_path).collect() is not None


def test_settings_that_are_gone_or_edited_are_refused(tmp_path):
    Run.create(tmp_path, config())
    text = (tmp_path / "config.json").read_text()
    reseal(tmp_path / "config.json", experiment__fqi__tree=3)
    gone, edited = (tmp_path / "config.json").read_text(), text.replace('"meta_discount": 1.0', '"meta_discount": 0.9')
    for content, words in (
        (gone, r"fqi.tree: is not a setting, did you mean 'fqi.regr"),
        (edited, "is damaged or was"),
    ):
        (tmp_path / "config.json").write_text(content)
        for resume in (lambda: Run.open(tmp_path), lambda: Run.create(tmp_path, config())):
            with pytest.raises(InputError, match=f"config.json.*{words}"):
                resume()


NO_TASKS = r"config.json: tasks = .* must be null or a list of tasks"
NO_TABLES = ["all", 3, [], {"goal_x": 0.1}, [0.1, 0.2], [[]], [[0.1, 0.2], [0.3]]]
NO_TABLES += [[[0.1, value]] for value in ("0.1", None, True, [0.2], 1e300, 10**400)]


def test_listed_tasks_must_be_tasks_of_the_environment(tmp_path):
    Run.create(tmp_path, config(), TASKS)
    np.testing.assert_array_equal(Run.open(tmp_path).importing(True).tasks, TASKS)
    for tasks, words in (
        *((tasks, NO_TASKS) for tasks in NO_TABLES),
        ([[0.1, 0.2, 0.3]], r"config.json, tasks: got an array of shape \(1, 3\), expected \(tasks, 2\)"),
        ([[0.1, 9.0]], r"config.json, tasks: task 0 has goal_y = 9, allowed is"),
    ):
        reseal(tmp_path / "config.json", tasks=tasks)
        with pytest.raises(InputError, match=words):
            Run.open(tmp_path).importing(True)


def test_the_first_command_is_kept(tmp_path):
    (tmp_path / ".config.json.0123456789abcdef.tmp").write_text("half")  # of a start that was killed
    assert Run.create(tmp_path, config()).command() == ""
    Run.create(tmp_path, config(), command="metastep run nav2d")
    Run.create(tmp_path, config(), command="metastep run nav2d --device cpu")
    assert Run.open(tmp_path).command() == "metastep run nav2d"
    assert Run.open(tmp_path).config == config()


def test_stages_are_timed_without_those_within_them(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(stages, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def spend(tracker, name, seconds, error=None):
        with tracker.stage(name, 1, "s"):
            now[0] += seconds
            if error is not None:
                raise error

    tracker = Timed(tmp_path, None)
    with tracker.stage("collect", 1, "steps"):
        now[0] += 3.0
        spend(tracker, "fit", 5.0)
    spend(tracker, "fit", 1.0)
    assert read_times(tmp_path) == {"fit": 6.0, "collect": 3.0}
    with pytest.raises(KeyboardInterrupt):
        spend(Timed(tmp_path, None), "collect", 0.5, KeyboardInterrupt())  # a run that resumes and is stopped again
    assert in_words(read_times(tmp_path)) == "collect 3.5 s, fit 6.0 s; 9.5 s in all"


def test_a_run_prints_its_times_and_its_report_does_not(run: Run, capsys):
    seconds = times_of(run)
    assert set(seconds) == {"collect", "fit", "validate", "compare 3 methods"}
    assert all(value > 0.0 for value in seconds.values())
    before = write_report(run).read_bytes()  # it names the folder, which the fixture copied
    print_outcome(run)
    assert f"time: {in_words(seconds)}\n" in capsys.readouterr().out
    add_time(run.path, "fit", 1000.0)
    write_report(run)
    assert run.report_file.read_bytes() == before
    assert [problem for _, problem in check_folder(run.path) if problem] == []
    for content in ("{", '{"format": "metastep times", "seconds": {"fit": "x"}, "version": 2}'):
        (run.path / "times.json").write_text(content)  # damaged times are found and replaced
        assert [path.name for path, problem in check_folder(run.path) if problem] == ["times.json"]
        add_time(run.path, "fit", 2.0)
        assert json.loads((run.path / "times.json").read_text())["seconds"] == {"fit": 2.0}
