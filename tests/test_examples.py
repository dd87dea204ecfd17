"""Every script in examples/ runs to its end, without a warning, from any folder."""

import os
import re
import subprocess
import sys
from dataclasses import replace
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
    # As one of several families, whose batches differ: no loop is unlike them.
    anywhere = replace(tiny_model().record, setting={"env": "several", "rule": {"name": "ppo"}})
    save_model(replace(tiny_model(), record=anywhere), model)
    environment = os.environ | {"METASTEP_EXAMPLE_QUICK": "1", "METASTEP_MODEL": str(model)}
    # Strict dtypes are for our own code under test, not for what users run.
    environment.pop("JAX_NUMPY_DTYPE_PROMOTION", None)
    command = [sys.executable, "-W", "error", str(path)]
    finished = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip()
    assert finished.stderr == ""


ADDED = {"stable_baselines3": 3, "optax": 3, "pytorch": 3, "plain_loop": 3}


def test_what_a_script_needs_is_as_the_guide_shows_it():
    """Lines with a plus are in the example, those with a minus are not, and they are few."""
    guide = (EXAMPLES[0].parent.parent / "docs" / "where-you-train.md").read_text()
    shown = re.findall(r"```diff\n(.*?)```", guide, flags=re.S)
    scripts = [path for path in EXAMPLES if "_rate_" in path.name]
    assert len(shown) == len(scripts) == len(ADDED)
    for text, path in zip(shown, scripts, strict=True):
        lines = {line.strip() for line in path.read_text().splitlines()}
        added, removed, kept = (
            [line[1:].strip() for line in text.splitlines() if line.startswith(mark)] for mark in "+- "
        )
        assert lines >= {*added, *kept}, path.name
        assert not lines & set(removed), path.name
        assert len(added) <= ADDED[path.name.split("_rate_")[1].removesuffix(".py")], path.name
