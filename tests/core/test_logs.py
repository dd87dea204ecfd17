"""Logs of updates: a row of CSV for each, and the scalars of TensorBoard."""

import csv

import numpy as np
import pytest

from metastep._core.errors import InputError
from metastep._core.logs import CSVLog, to_csv
from tests.steppers import TRAINING, diagnostics, tiny_model


def rows_in(file):
    return list(csv.DictReader(file.read_text().splitlines()))


def updates_in(file):
    return [row["update"] for row in rows_in(file)]


def test_each_update_has_a_row_which_a_restored_stepper_replaces_and_a_second_run_restarts_the_file(tmp_path):
    file = tmp_path / "updates.csv"
    first = tiny_model().stepper(20, log=file)
    proposed = [first(diagnostics(update)).stepsize for update in range(2)]
    record = first.record()
    for update in range(2, 5):
        first(diagnostics(update))
    with open(file, "a") as damaged:
        damaged.write("5,0.0")  # a process was killed while it wrote
    restored = tiny_model().stepper(record=record, log=file)
    for update in (2, 3):
        proposed.append(restored(diagnostics(update)).stepsize)
        assert updates_in(file) == ["0", "1", "2", "3"][: update + 1]
    rows = rows_in(file)
    assert [float(row["rate"]) for row in rows] == pytest.approx(proposed)
    assert float(rows[2]["return"]) == pytest.approx(float(diagnostics(2)["returns"].mean()), rel=1e-5)
    assert float(rows[2]["approx_kl"]) == pytest.approx(diagnostics(2)["approx_kl"], rel=1e-5)
    assert [name for name in rows[0] if name.startswith("saw ")] == [f"saw {name}" for name in TRAINING]
    with pytest.warns(UserWarning, match="returns is nan"):
        restored(diagnostics(4), returns=[np.inf, -np.inf])
    assert rows_in(file)[-1]["return"] == "nan"
    log = CSVLog(file)
    for _ in range(2):  # also with the same log
        stepper = tiny_model().stepper(20, log=log)
        for update in range(2):
            stepper(diagnostics(update))
            assert updates_in(file) == ["0", "1"][: update + 1]


def test_a_log_of_an_earlier_version_gets_the_columns_that_it_lacks(tmp_path):
    stepper = tiny_model().stepper(20, log=(file := tmp_path / "updates.csv"))
    stepper(diagnostics(0))
    header, row = csv.reader(file.read_text().splitlines())
    place = header.index("guard")
    file.write_text(to_csv([[*each[:place], *each[place + 1 :]] for each in (header, row)]))
    tiny_model().stepper(record=stepper.record(), log=file)(diagnostics(1))
    assert [*csv.reader(file.read_text().splitlines())][:2] == [header, [*row[:place], "", *row[place + 1 :]]]
    assert updates_in(file) == ["0", "1"]


def test_other_files_and_columns_are_refused(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("import torch\n")
    with pytest.raises(InputError, match=r"train.py is not a log of updates; name another one"):
        tiny_model().stepper(20, log=file)
    assert file.read_text() == "import torch\n"
    log = CSVLog(tmp_path / "updates.csv")
    log(0, {"rate": 1.0})
    with pytest.raises(InputError, match="has the columns update, rate, not update, cost"):
        CSVLog(tmp_path / "updates.csv")(1, {"cost": 1.0})
    with pytest.raises(InputError, match="cannot be written"):
        CSVLog(tmp_path / "no" / "updates.csv")(0, {"rate": 1.0})


def test_scalars_of_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from metastep.integrations.tensorboard import TensorBoardLog

    log = TensorBoardLog(tmp_path)
    stepper = tiny_model().stepper(20, log=log)
    proposed = [stepper(diagnostics(update)).stepsize for update in range(3)]
    log.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    rates = events.Scalars("metastep/rate")
    assert [event.step for event in rates] == [0, 1, 2]
    assert [event.value for event in rates] == pytest.approx(proposed)


def test_floats_of_every_type_can_be_read_back():
    third = np.float32(1 / 3)
    cells = to_csv([[third, float(third), np.float64(third)]]).strip().split(",")
    assert cells == ["0.33333334", "0.333333343", "0.333333343"]
    assert [np.float32(cell) for cell in cells] == [third] * 3
