"""What a log or a terminal is told of long work."""

from types import SimpleNamespace

import pytest

from metastep._core import progress
from metastep._core.progress import Terminal, counted, pace


def test_one_is_singular():
    assert counted(1, "blocks") == "1 block"
    assert counted(1, "table") == "1 table"
    assert counted(2, "blocks") == "2 blocks"
    assert counted(1.2e6, "steps") == "1.2 Msteps"


@pytest.mark.parametrize(
    ("done", "seconds", "shown"),
    [
        (20, 4.0, "5 blocks/s"),
        (3, 2.0, "1.5 blocks/s"),
        (5, 100.0, "20 s a block"),
        (1, 3.7, "3.7 s a block"),
        (0, 1.0, ""),
        (1, 0.0, ""),
    ],
)
def test_slow_work_has_seconds_a_unit(done, seconds, shown):
    assert pace(done, seconds, "blocks") == shown


@pytest.mark.parametrize(
    ("total", "lines"),
    [
        (1, ["theory: 1 table", "theory: done in 30.0 s"]),
        (2, ["theory: 2 tables", "theory: done in 30.0 s (15 s a table)"]),
    ],
)
def test_a_log_has_a_line_for_the_start_and_the_end(capsys, monkeypatch, total, lines):
    clock = iter([0.0, 1.0, 2.0, 30.0]) if total == 2 else iter([0.0, 1.0, 30.0])
    terminal = Terminal()
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with terminal.stage("theory", total, "tables") as stage:
        for _ in range(total):
            stage.advance(1)
    assert capsys.readouterr().err.splitlines() == lines
