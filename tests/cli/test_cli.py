"""The command line itself: how it stops, what it refuses before it leaves anything behind."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

import metastep
from metastep.cli import app


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


DURING_IMPORTS = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background begins with Ctrl-C ignored
from metastep import __main__ as entry

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "jax":
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000): pass

sys.meta_path.insert(0, Interrupting())
sys.argv = ["metastep", "envs"]
entry.main()
"""


@pytest.mark.parametrize(("script", "said"), [(INTERRUPTED, "half a line"), (DURING_IMPORTS, "")])
def test_ctrl_c_ends_at_once_with_all_that_was_said(script, said):
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 130, done.stderr
    assert done.stdout == said
    assert done.stderr == "stopped; the same command resumes where it was.\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("run nav2d --set fqi.regressor.trees=0", "fqi.regressor.trees: 0 must be greater than or equal to 1"),
        ("collect nav2d --set rolout.horizon=3", "rolout: is not a setting, did you mean"),
        ("collect nav2d --tasks nowhere.csv", "nowhere.csv"),
        ("collect pendulum-update", "learner: 'search' collects no training data"),
    ],
)
def test_what_cannot_run_leaves_no_folder(tmp_path, words, sentence):
    assert sentence in refused(invoke(*words.split(), "--out", tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("fit", "holds no config.json"),
        ("compare", "holds no config.json"),
        ("report", "holds no config.json"),
        ("inspect", "does not exist"),
        ("export", "nothing to do, give --parquet FILE"),
        ("export --parquet out.parquet", "holds no config.json"),
    ],
)
def test_stages_out_of_order_say_what_is_missing(tmp_path, words, sentence):
    verb, *options = words.split()
    assert sentence in refused(invoke(verb, tmp_path / "nowhere", *options))


def test_a_search_has_no_data_to_export(tmp_path):
    run = metastep.Run.create(tmp_path / "run", metastep.load_experiment("pendulum-update", "quick"))
    sentence = refused(invoke("export", run.path, "--parquet", tmp_path / "out.parquet"))
    assert "learner: 'search' collects no training data, so there is none in" in sentence


def test_the_version():
    result = invoke("--version")
    assert (result.exit_code, result.stdout) == (0, f"metastep {metastep.__version__}\n")
