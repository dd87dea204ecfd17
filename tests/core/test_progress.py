"""What logs and terminals show of long work."""

from types import SimpleNamespace

from metastep._core import progress
from metastep._core.progress import Tally, Terminal, format_rate, format_si


def test_units_are_readable():
    assert [format_si(1), format_si(2), format_si(1.2e6)] == ["1 ", "2 ", "1.2 M"]
    given = [(20, 4.0), (3, 2.0), (5, 100.0), (0, 1.0), (1, 0.0)]
    shown = ["5 blocks/s", "1.5 blocks/s", "20 s per block", "", ""]
    assert [format_rate(done, seconds, "blocks") for done, seconds in given] == shown


def test_a_log_has_lines_for_the_start_the_end_and_now_and_then(capsys, monkeypatch):
    now = 0.0
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now))
    with Terminal().stage("fit", 20, "trees") as stage:
        for at in (100.0, 101.0, 102.0, 119.0, 125.0, 130.0):  # 100 seconds of compilation do not count
            now = at
            stage.advance(1)
    with Terminal().stage("theory", 1, "tables"):
        now += 30.0
    assert capsys.readouterr().err.splitlines() == [
        "fit: 20 trees",
        "fit: 10 %, 18 s left",
        "fit: 25 %, 94 s left",
        "fit: done in 130.0 s (21.7 s per tree)",
        "theory: 1 table",
        "theory: done in 30.0 s",
    ]


def test_a_tally_counts_work_that_is_repeated_once():
    advanced = []
    tally = Tally(advanced.append, {0: 2.0})
    for report in ((0, 3.0), (1, 1.0), (1, 0.5), (1, 2.0)):
        tally(report)
    assert advanced == [1.0, 1.0, 1.0]
