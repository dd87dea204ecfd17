"""Small shares of the campaigns, and all of `make soak` as a user with one folder to write to; METASTEP_SOAK scales them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.campaigns import guards, inputs, kills, mutations, steppers
from tests.processes import own, unprivileged

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def place() -> Iterator[Path]:
    """Return a folder that another user can reach, unlike those of pytest."""
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def campaign(place: Path, *words: str | int) -> dict[str, Any]:
    sandbox, caches = own(place / "sandbox"), own(place / "caches")
    environment = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG")}
    environment |= {"JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    environment |= dict.fromkeys(("HOME", "MPLCONFIGDIR", "JAX_COMPILATION_CACHE_DIR", "NUMBA_CACHE_DIR"), str(caches))
    module, *rest = words
    command = [*unprivileged(), sys.executable, "-m", f"tests.campaigns.{module}", *map(str, rest), str(sandbox)]
    done = subprocess.run(command, cwd=sandbox, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    print(json.dumps(found))
    return found


def check(found: dict[str, Any]) -> None:
    assert found["failures"] == []
    wrong = ("traceback", "hang", "other numbers", "outside of its range")
    assert not [name for name in found["outcomes"] if name.endswith(wrong)]
    assert set(found.get("unexpected", ())) <= {"cwd", "inputs"}


@pytest.mark.parametrize(
    ("some", "number"),
    [
        (mutations.campaign, 55),
        (partial(inputs.configurations, runs=0.0), 100),
        (inputs.commands, 60),
        (partial(kills.campaign, "run"), 1),
        (steppers.campaign, 100),
        (guards.campaign, 22),
    ],
    ids=["mutations", "configurations", "commands", "kills", "steppers", "guards"],
)
def test_some(some, number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # commands change it
    check(some(number, 1, tmp_path))


@pytest.mark.soak
@pytest.mark.parametrize(
    "words",
    [
        ("workers", 100, 10),
        ("kills", "run", 1000),
        *(("kills", work, 100) for work in kills.WORKS if work != "run"),
        *(("trouble", work, 50) for work in kills.WORKS if work != "reproduce"),
        ("swaps", 1000),
        ("mutations", 10_000),
        ("steppers", 10_000),
        ("guards", 1000),
        ("inputs", "configurations", 10_000),
        ("inputs", "commands", 2000),
    ],
    ids=str,
)
def test_all(place, words):
    share = float(os.environ.get("METASTEP_SOAK", "1"))
    found = campaign(place, *(int(share * word) if isinstance(word, int) else word for word in words), 2)
    check(found)
    if words[:2] == ("kills", "run"):
        stages = ("start", "collect", "fit", "validate", "compare", "report")
        assert all(found["outcomes"].get(stage, 0) >= found["kills"] // 20 for stage in stages)
