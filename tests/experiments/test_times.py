"""The times of a run are kept beside the report, adds up over resumed runs, and changes nothing that is sealed."""

import json
from types import SimpleNamespace

import pytest

from metastep.experiments import stages
from metastep.experiments.checking import check_folder
from metastep.experiments.reporting import in_words, print_outcome, times_of, write_report
from metastep.experiments.run import Run
from metastep.experiments.stages import Timed, add_time, read_times


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
    assert read_times(tmp_path) == {"fit": 6.0, "collect": 3.5}
    assert in_words(read_times(tmp_path)) == "collect 3.5 s, fit 6.0 s; 9.5 s in all"


def test_a_run_prints_its_times_and_its_report_does_not(run: Run, capsys):
    seconds = times_of(run)
    assert set(seconds) == {"collect", "fit", "validate", "compare 3 methods"}
    assert all(value > 0.0 for value in seconds.values())
    before = run.report_file.read_bytes()
    print_outcome(run)
    assert f"time: {in_words(seconds)}\n" in capsys.readouterr().out
    add_time(run.path, "fit", 1000.0)
    write_report(run)
    assert run.report_file.read_bytes() == before
    assert [problem for _, problem in check_folder(run.path) if problem] == []


@pytest.mark.parametrize(
    "content", ["{", '{"seconds": {}}', '{"format": "metastep times", "seconds": {"fit": "x"}, "version": 2}']
)
def test_damaged_times_are_found_and_replaced(run: Run, content):
    (run.path / "times.json").write_text(content)
    assert [path.name for path, problem in check_folder(run.path) if problem] == ["times.json"]
    add_time(run.path, "fit", 2.0)
    assert json.loads((run.path / "times.json").read_text())["seconds"] == {"fit": 2.0}
    (run.path / "times.json").unlink()
    assert times_of(run) == {}
