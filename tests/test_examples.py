"""Every script in examples/ runs to its end, without a warning, from any folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from metastep.fqi import save_model
from tests.steppers import tiny_model

EXAMPLES = sorted((Path(__file__).resolve().parent.parent / "examples").glob("*.py"))


def test_there_are_examples_and_they_are_numbered():
    assert EXAMPLES
    assert all(path.name[:2].isdigit() for path in EXAMPLES)


def test_examples_of_loops_are_short():
    for path in EXAMPLES:
        if "_rate_" in path.name:
            assert len(path.read_text().splitlines()) <= 40, path.name


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path, tmp_path):
    model = tmp_path / "tiny.safetensors"
    save_model(tiny_model(), model)
    environment = os.environ | {"METASTEP_EXAMPLE_QUICK": "1", "METASTEP_MODEL": str(model)}
    # Strict dtypes are for our own code under test, not for what users run.
    environment.pop("JAX_NUMPY_DTYPE_PROMOTION", None)
    command = [sys.executable, "-W", "error", str(path)]
    finished = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip()
    assert finished.stderr == ""
