"""Run the campaigns of `make soak` as a user who may write to one folder only, and small shares of them in this process.

METASTEP_SOAK scales them: 0.3 runs three tenths.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.campaigns import inputs, kills, mutations
from tests.sandbox import own, unprivileged

ROOT = Path(__file__).resolve().parent.parent
KEPT = ("PATH", "LANG")


@pytest.fixture
def place() -> Iterator[Path]:
    """Return a folder that another user can reach, unlike those of pytest."""
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def campaign(place: Path, *words: str | int) -> dict[str, Any]:
    sandbox, caches = own(place / "sandbox"), own(place / "caches")
    environment = {name: value for name, value in os.environ.items() if name in KEPT}
    environment |= {"JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    environment |= dict.fromkeys(("HOME", "MPLCONFIGDIR", "JAX_COMPILATION_CACHE_DIR", "NUMBA_CACHE_DIR"), str(caches))
    module, *rest = words
    done = subprocess.run(
        [*unprivileged(), sys.executable, "-m", f"tests.campaigns.{module}", *map(str, rest), str(sandbox)],
        cwd=sandbox,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    print(json.dumps(found))
    return found


def large(number: int) -> int:
    return int(number * float(os.environ.get("METASTEP_SOAK", "1")))


def check(found: dict[str, Any]) -> None:
    assert found["failures"] == []
    assert not {"traceback", "hang", "other numbers"} & set(found["outcomes"])
    assert set(found.get("unexpected", ())) <= {"cwd", "inputs"}


def test_some_mutations(tmp_path):
    check(mutations.campaign(55, 1, tmp_path))


def test_some_configurations(tmp_path):
    check(inputs.configurations(100, 1, tmp_path, runs=0.0))


def test_some_command_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the campaign changes it
    check(inputs.commands(60, 1, tmp_path))


def test_some_kills(tmp_path):
    check(kills.campaign(1, 1, tmp_path))


@pytest.mark.soak
def test_killed_workers_and_schedulers(place):
    check(campaign(place, "workers", large(100), large(10), 1))


@pytest.mark.soak
def test_kills(place):
    found = campaign(place, "kills", large(1000), 1)
    check(found)
    stages = {"start", "collect", "fit", "validate", "compare", "report"}
    assert all(found["outcomes"].get(stage, 0) >= found["kills"] // 20 for stage in stages)


@pytest.mark.soak
def test_mutations(place):
    check(campaign(place, "mutations", large(10_000), 2))


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "number"), [("configurations", 10_000), ("commands", 2000)])
def test_inputs(place, kind, number):
    check(campaign(place, "inputs", kind, large(number), 2))
