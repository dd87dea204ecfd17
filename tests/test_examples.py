"""Every script in examples/ runs to its end, without a warning, from any folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parent.parent / "examples").glob("*.py"))


def test_there_are_examples_and_they_are_numbered():
    assert EXAMPLES
    assert all(path.name[:2].isdigit() for path in EXAMPLES)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path, tmp_path):
    environment = os.environ | {"METASTEP_EXAMPLE_QUICK": "1"}
    # Strict dtypes are for our own code under test, not for what users run.
    environment.pop("JAX_NUMPY_DTYPE_PROMOTION", None)
    command = [sys.executable, "-W", "error", str(path)]
    finished = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip()
    assert finished.stderr == ""
