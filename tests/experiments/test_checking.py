"""`metastep check` and what `export` writes where."""

import json
import os
import shutil
from functools import reduce
from operator import getitem
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from metastep._core import storage
from metastep._core.errors import InputError
from metastep._core.storage import write_lock
from metastep.experiments.reporting import write_report
from metastep.experiments.run import Run
from metastep.mdp.dataset import Dataset
from tests.cli.test_cli import invoke, refused


def problems(folder: Path) -> dict[str, str]:
    """What `metastep check` says against each file."""
    result = invoke("check", folder)
    lines = [line.split(": ", 1) for line in result.stdout.strip().splitlines()]
    found = {line[0]: line[1] for line in lines if len(line) == 2 and line[1] != "ok"}
    assert result.exit_code == (1 if found else 0), result.output
    return found


def test_a_whole_run_has_no_problems(whole: Run) -> None:
    result = invoke("check", whole.path)
    assert result.exit_code == 0, result.stdout
    files = sorted(str(path.relative_to(whole.path)) for path in whole.path.rglob("*") if path.is_file())
    *lines, summary = result.stdout.splitlines()
    assert sorted(lines) == sorted(f"{name}: ok" for name in files)
    assert summary == f"all {len(files)} files are ok."
    assert "data/block-00002.safetensors" in files
    assert "report.json" in files


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def reseal(path: Path, **changes: object) -> None:
    """Change entries of a record on purpose, or remove those that become `...`; NAME__ENTRY is one within a table."""
    content = json.loads(path.read_text())
    for place, value in (changes | {"checksum": ...}).items():
        *tables, name = place.split("__")
        inner = reduce(getitem, tables, content)
        inner.pop(name, None)
        inner |= {} if value is ... else {name: value}
    storage.write_json(path, storage.with_checksum(content))


@pytest.mark.parametrize(
    "change",
    [
        *({name: ...} for name in ("layout", "config", "environment")),
        *({"layout__block_size": 0}, {"layout__num_learners": 10**12}, {"layout__features": {"theta": 0}}),
        *({"layout__extra": 1}, {"environment": {"python": 3}}),
        *({"blocks": value} for value in ([], ["0" * 64], [1, 2], "both")),
    ],
    ids=str,
)
def test_a_manifest_with_a_valid_checksum_is_not_believed(
    whole: Run, tmp_path: Path, change: dict[str, object]
) -> None:
    shutil.copy(whole.data_folder / "manifest.json", tmp_path)
    reseal(tmp_path / "manifest.json", **change)
    with pytest.raises(InputError, match=r"^File .*manifest\.json is not a whole manifest: .*\.$"):
        Dataset.open(tmp_path)


NAMES = ["config.json", "data/manifest.json", "data/block-00001.safetensors", "model.safetensors", "report.json"]
NAMES += ["validation.safetensors", "results/fixed.safetensors", "comparison.safetensors", "report.html"]
NAMES += ["results.parquet", "differences.csv", "figures/learning-curves.svg"]


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_or_missing_file_is_named(run: Run, name: str) -> None:
    flipped(run.path / name)
    found = problems(run.path)
    assert name in found
    if name == "config.json":
        assert "without a sound config.json" in found["model.safetensors"]
        return
    (run.path / name).unlink()
    assert "is missing" in problems(run.path)[name]


def test_a_command_is_the_one_of_the_report(run: Run) -> None:
    command = run.path / "command.txt"
    for content in ("rm -rf /\n", "metastep run nav2d\nrm -rf /\n", ""):
        command.write_text(content)
        assert "must hold one command" in problems(run.path)["command.txt"]
    command.write_text("metastep run nav2d\n")
    assert problems(run.path) == {}
    write_report(run)
    assert problems(run.path) == {}
    command.write_text("metastep run cartpole\n")
    assert "is damaged or was edited" in problems(run.path)["command.txt"]


def without_report(run: Run) -> None:
    shutil.rmtree(run.path / "figures")
    for name in ("report.html", "report.md", "report.json", "results.parquet", "differences.csv"):
        (run.path / name).unlink()


def test_a_run_that_is_written_now_is_not_damaged(run: Run) -> None:
    without_report(run)
    reseal(run.data_folder / "manifest.json", blocks=None)
    for file in (run.model_file, run.validation_file, run.comparison_file, run.data_folder / "block-00002.safetensors"):
        file.unlink()
    shutil.rmtree(run.path / "results")
    (run.data_folder / "part-00002-00001.safetensors").write_text("")
    temporary = ".block-00002.safetensors.0123456789abcdef.tmp"
    with write_lock(run.path):
        (run.data_folder / temporary).write_text("half")
        for place in (run.path, run.data_folder):
            result = invoke("check", place)
            assert result.exit_code == 0, result.stdout
            assert f"(process {os.getpid()} on " in result.stdout
            assert "is writing here now; check again when it has ended." in result.stdout
            assert "block-00001.safetensors: ok" in result.stdout
        flipped(run.data_folder / "block-00001.safetensors")
        assert "block-00001.safetensors" in problems(run.data_folder)
    found = problems(run.path)
    assert "2 of 3 blocks are there" in found["data/manifest.json"]
    assert "leftover" in found[f"data/{temporary}"]
    assert "data/block-00000.safetensors" not in found


def test_leftovers_and_foreign_files_are_named(run: Run) -> None:
    (run.path / "photos" / "2020").mkdir(parents=True)
    (run.path / "extra").mkdir()
    temporary = "results/.fixed.safetensors.0123456789abcdef.tmp"
    for name in ("notes.txt", temporary, ".lock", "data/part-00000-00001.safetensors"):
        (run.path / name).write_text("")
    (run.path / "linked").symlink_to(run.path / "data")
    found = problems(run.path)
    for name in ("notes.txt", "photos/2020", "linked"):
        assert found.pop(name) == "was not written by metastep."
    assert "leftover" in found.pop(temporary)
    assert "leftover" in found.pop(".lock")
    assert "a block that is not complete" in found.pop("data/part-00000-00001.safetensors")
    assert found == {}
    with write_lock(run.path):
        pass
    assert not list(run.path.rglob("*.tmp"))


def test_what_is_needed_is_missed_and_stages_to_come_are_not(run: Run) -> None:
    run.data_folder.rename(run.path / "spare")
    run.comparison_file.unlink()
    found = problems(run.path)
    assert found["data/manifest.json"] == found["comparison.safetensors"] == "is missing."
    (run.path / "spare").rename(run.data_folder)
    without_report(run)
    run.result_file("adam").unlink()
    assert problems(run.path) == {}


def test_a_report_that_lists_other_places_is_no_traceback(run: Run) -> None:
    listed = json.loads((run.path / "report.json").read_text())["files"]
    reseal(run.path / "report.json", files=listed | {"/etc/hostname": "0" * 64})
    assert any("hostname" in name for name in problems(run.path))
    for folder in (run.path / "results", run.path / "nowhere"):
        assert "is not the folder of a run" in refused(invoke("check", folder))


def test_export_writes_new_plain_files_only_and_leaves_runs_alone(run: Run, whole: Run, tmp_path: Path) -> None:
    target = tmp_path / "tuples.parquet"

    def export(target: Path, *more: str) -> str:
        result = invoke("export", run.path, "--parquet", target, *more)
        return refused(result) if result.exit_code else ""

    (tmp_path / ".tuples.parquet.0123456789abcdef.tmp").write_text("half")
    assert export(target) == ""
    assert pq.read_table(target).num_rows == 48
    assert not (tmp_path / ".tuples.parquet.0123456789abcdef.tmp").exists()
    before = target.read_bytes()
    assert "exists already; use another name, or --force to replace it" in export(target)
    target.write_text("old")
    assert export(target, "--force") == ""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(target)
    (tmp_path / "in").symlink_to(run.path)
    for name in ("pipe", "link", "", "/dev/null"):
        assert "something that is not a plain file" in export(tmp_path / name, "--force")
    for inside in (
        whole.model_file,
        run.path / "new.parquet",
        run.data_folder / "new",
        tmp_path / "in" / "new.parquet",
    ):
        assert "belongs to metastep; write it somewhere else" in export(inside, "--force")
    assert "there is no folder" in export(tmp_path / "nowhere" / "tuples.parquet")
    assert target.read_bytes() == before
    assert problems(run.path) == {}


def test_no_run_begins_in_a_folder_of_another_program(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    words = "holds thesis.tex, it must be new, empty or a folder of this command"
    assert words in refused(invoke("run", "nav2d", "--out", tmp_path))
    assert os.listdir(tmp_path) == ["thesis.tex"]
