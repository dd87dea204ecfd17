"""The command line itself: how it stops, what it refuses before it leaves anything behind, what its help says."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

import metastep
from metastep.cli import app
from metastep.envs.planar.model import load_model
from tests.experiments.tiny import make_folder


def invoke(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


def refused(result):
    """The one sentence of a refusal."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert lines[-1].startswith("error: ")
    return lines[-1]


INTERRUPTED = """
import atexit, os, sys
from metastep import cli

def interrupted(*_):
    print("half a line", end="")
    raise KeyboardInterrupt

atexit.register(os.abort)  # stands for the threads that crash when the interpreter goes away under them
cli.prepare_jax = interrupted
sys.argv = ["metastep", "envs"]
cli.main()
"""


def test_ctrl_c_ends_at_once_with_all_that_was_said():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert done.returncode == 130, done.stderr
    assert done.stdout == "half a line"
    assert done.stderr == "stopped; the same command resumes where it was.\n"


@pytest.mark.parametrize("verb", ["run", "collect"])
def test_what_cannot_be_fitted_leaves_no_folder(tmp_path, verb):
    sentence = refused(invoke(verb, "nav2d", "--out", tmp_path / "run", "--set", "fqi.regressor.trees=0"))
    assert "fqi.regressor.trees: 0 must be greater than or equal to 1" in sentence
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("verb", ["run", "collect"])
def test_an_environment_that_is_not_installed_leaves_no_folder(tmp_path, monkeypatch, verb):
    load_model.cache_clear()
    monkeypatch.setitem(sys.modules, "mujoco", None)
    assert "halfcheetah needs MuJoCo" in refused(invoke(verb, "halfcheetah", "--out", tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_description_is_whole_or_none(tmp_path):
    folder = make_folder(tmp_path / "run")
    folder.collect()
    assert "48 tuples" in invoke("inspect", folder.path).stdout
    assert "nowhere.csv" in refused(invoke("inspect", folder.path, "--coverage", tmp_path / "nowhere.csv"))


def test_the_version():
    result = invoke("--version")
    assert (result.exit_code, result.stdout) == (0, f"metastep {metastep.__version__}\n")
