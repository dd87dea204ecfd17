import csv
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from metastep._core import storage
from metastep._core.errors import InputError
from metastep.controllers import HOOF
from metastep.evaluation import Comparison, Method, baselines, compare, load, save, to_parquet, tune
from metastep.evaluation.statistics import differences, differences_to_csv
from metastep.rules import NGA
from tests.controllers.problems import BLOCK, make_mdp


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    mdp = make_mdp()
    spec = dataclasses.replace(baselines.make("metagrad"), grid={"stepsize": (0.1, 0.5), "beta": (0.1,)})
    tuned, table = tune(spec, mdp, seed=0, num_tasks=3, num_updates=2)
    hoof = Method("hoof", NGA(), HOOF(0.05, num_candidates=10), "HOOF", "#D55E00", {"bound": 0.05})
    return compare([tuned, hoof], mdp, seed=0, num_tasks=BLOCK + 1, num_updates=2, tuning=[table])


def test_a_comparison_survives_the_disk(comparison: Comparison, tmp_path: Path) -> None:
    digest = save(tmp_path / "result.safetensors", comparison)
    assert digest == save(tmp_path / "again.safetensors", comparison)
    found = load(tmp_path / "result.safetensors")
    for field in dataclasses.fields(Comparison):
        before, after = getattr(comparison, field.name), getattr(found, field.name)
        if isinstance(before, np.ndarray):
            np.testing.assert_array_equal(before, after)
            assert before.dtype == after.dtype
        elif field.name == "diagnostics":
            assert list(before) == list(after)
            np.testing.assert_array_equal(*(list(d.values())[0] for d in (before, after)))  # noqa: RUF015
        elif field.name == "tuning":
            for old, new in zip(before[0], after[0], strict=True):
                np.testing.assert_array_equal(old, new)
            assert after[0].chosen == before[0].chosen
        else:
            assert before == after


def test_differences_become_a_table(comparison: Comparison, tmp_path: Path) -> None:
    rows = [row for metric in ("auc", "final") for row in differences(comparison, metric=metric)]
    differences_to_csv(rows, tmp_path / "differences.csv")
    with (tmp_path / "differences.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [(row["target"], row["baseline"], row["metric"]) for row in found] == [row[:3] for row in rows]
    for row, written in zip(rows, found, strict=True):
        np.testing.assert_allclose([float(written[name]) for name in ("mean", "low", "high")], row[3:6], rtol=1e-8)
        assert written["verdict"] == row.verdict
        assert written["num_tasks"] == str(BLOCK + 1)


@pytest.mark.parametrize(
    ("arrays", "metadata", "complaint"),
    [
        ({}, {"format": "metastep model"}, "is not a metastep comparison"),
        ({}, {"version": 99}, "is a comparison of version 99, this metastep reads version 2: compare again"),
        ({"returns": None}, {}, "not a whole comparison: KeyError 'returns'"),
        ({"returns": np.zeros((2, 9), np.float32)}, {}, "returns is float32 .* of 3 axes"),
        ({"flagged": np.zeros((2, 9, 2), np.bool_)}, {}, "flagged is bool"),
        ({"context": np.zeros((9, 2), np.float64)}, {}, "context is float64"),
        ({"direction": np.full((2, 9, 2), 1, np.int8)}, {}, "directions of metagrad are 1 to 1, allowed is 0 to 0"),
        ({}, {"methods": [{"name": "a"}]}, "methods: label is missing"),
        ({}, {"methods.0.name": "hoof"}, "a method is named twice"),
        ({}, {"tuning.0.num_steps": -1}, "took -1 steps"),
        ({}, {"methods.0.directions": [str(i) for i in range(101)]}, "at most 100 items"),
        ({}, {"methods.0.directions": ["a\x1b"]}, r"directions.0 is 'a\\x1b', it must have no control characters"),
        ({}, {"methods.0.training_steps": -1.0}, "training_steps is -1.0, it must be greater than or equal to 0"),
        ({}, {"methods.0.trials": "many"}, "methods: trials is 'many'"),
        ({}, {"methods.0.scale": "cubic"}, "scale is 'cubic', it must be 'linear', 'log', 'divergence' or 'mixed'"),
    ],
)
def test_a_foreign_file_is_refused(
    comparison: Comparison, tmp_path: Path, arrays: dict[str, Any], metadata: dict[str, Any], complaint: str
) -> None:
    path = tmp_path / "result.safetensors"
    save(path, comparison)
    whole = storage.read_tensors(path)
    kept = {name: np.array(array) for name, array in whole.arrays.items()} | arrays
    for place, value in metadata.items():
        *outer, last = place.split(".")
        inner: Any = whole.metadata
        for step in outer:
            inner = inner[int(step) if step.isdigit() else step]
        inner[last] = value
    storage.write_tensors(path, {name: array for name, array in kept.items() if array is not None}, whole.metadata)
    with pytest.raises(InputError, match=complaint):
        load(path)


def test_directions_survive_the_disk_and_have_a_column(comparison: Comparison, tmp_path: Path) -> None:
    chosen = np.zeros(comparison.direction.shape, np.int8)
    chosen[0, :, 1] = 1
    menu = comparison.methods[0]._replace(directions=("natural", "plain"), scale="divergence")
    changed = dataclasses.replace(comparison, methods=(menu, comparison.methods[1]), direction=chosen)
    save(tmp_path / "result.safetensors", changed)
    found = load(tmp_path / "result.safetensors")
    assert found.methods[0] == menu
    np.testing.assert_array_equal(found.direction, chosen)
    to_parquet(found, tmp_path / "curves.parquet")
    for row in pq.read_table(tmp_path / "curves.parquet").to_pylist():
        named = row["method"] == menu.name and row["update"] > 0
        assert row["direction"] == (menu.directions[row["update"] - 1] if named else None)


def test_parquet_has_a_row_for_every_method_task_and_update(comparison: Comparison, tmp_path: Path) -> None:
    to_parquet(comparison, tmp_path / "curves.parquet")
    table = pq.read_table(tmp_path / "curves.parquet")
    assert table.column_names == [
        "method", "label", "task", "context_goal_x", "context_goal_y", "update", "return", "stepsize", "flagged",
    ]  # fmt: skip
    assert table.num_rows == 2 * (BLOCK + 1) * 3
    for row in table.to_pylist():
        method, task, update = comparison.index(row["method"]), row["task"], row["update"]
        assert row["label"] == comparison.methods[method].label
        assert row["return"] == comparison.returns[method, task, update]
        assert row["context_goal_y"] == comparison.context[task, 1]
        assert row["flagged"] == comparison.flagged[method, task, update]
        expected = comparison.hyperparameters[method, task, update - 1, 0] if update else None
        assert row["stepsize"] == expected


def test_parquet_lists_several_hyperparameters(comparison: Comparison, tmp_path: Path) -> None:
    pairs = np.concatenate([comparison.hyperparameters, 2.0 * comparison.hyperparameters], axis=3).astype(np.float32)
    to_parquet(dataclasses.replace(comparison, hyperparameters=pairs), tmp_path / "curves.parquet")
    rows = pq.read_table(tmp_path / "curves.parquet").to_pylist()
    assert [rows[0]["stepsize"], rows[1]["stepsize"]] == [None, pairs[0, 0, 0].tolist()]
