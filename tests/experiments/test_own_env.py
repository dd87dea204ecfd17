"""A mistake in an environment of one's own is one sentence before anything is written."""

from pathlib import Path

import pytest

from metastep._core.errors import InputError
from metastep.experiments import run as run_module
from metastep.experiments.run import start_run
from tests.cli.test_cli import invoke, refused

OWN = Path(__file__).parent.parent / "own"
WIDE = 'policy={name="linear", sigma=3.0}'

MISTAKES = [
    ("ReturnsTuple", "env 'walk': `step` must return a metastep.envs.Step, its result has no `state`."),
    ("ObservesVector", "env 'walk': observation 0 has shape (2,), it must be a scalar."),
    ("ObservesTwo", "env 'walk': `observe` returns 2 numbers, but num_observations is 1."),
    ("Branches", "env 'walk': `step with 1 actions and 0 normals` depends on a value in Python (an `if`, "),
    ("PaysNan", "env 'walk': the reward is nan at step 0 of an episode in the task goal = "),
    ("SaysLittle", "env 'walk': `num_observations` must be a whole number of at least 1, got None."),
    ("NanOnHost", "env 'host walk': the reward is nan at step 0 of an episode in the task goal = "),
]


@pytest.fixture(autouse=True)
def _own_modules(monkeypatch):
    monkeypatch.syspath_prepend(str(OWN))


def started(out, env, *overrides):
    settings = [f"env.name=wrong_walks:{env}", *overrides]
    return start_run(str(OWN / "ridge_walk.toml"), None, out, command="", overrides=settings)


@pytest.mark.parametrize(("env", "sentence"), MISTAKES)
def test_a_mistake_is_one_sentence_and_leaves_no_folder(tmp_path, env, sentence):
    words = ["--set", f"env.name=wrong_walks:{env}", "--out", tmp_path / "run"]
    result = invoke("collect", OWN / "ridge_walk.toml", *words)
    assert refused(result).startswith(f"error: {sentence}")
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("env", ["Idle", "Cut", "NanFarOut", "OnHost", "CutOnHost"])
def test_what_can_be_run_starts_and_resumes(tmp_path, env):
    """A few steps do not show whether all that is declared has an effect."""
    for _ in range(2):
        folder = started(tmp_path / "run", env)
    assert folder.config.env.name == f"wrong_walks:{env}"


def test_actions_are_as_wide_as_the_policys(tmp_path):
    with pytest.raises(InputError, match="env 'walk': the reward is nan at step"):
        started(tmp_path / "run", "NanFarOut", WIDE)


def test_an_environment_of_the_library_is_not_checked(tmp_path, monkeypatch):
    checked = []
    monkeypatch.setattr(run_module, "check_env", lambda env, **settings: checked.append(env.name))
    start_run("nav2d", "quick", tmp_path / "library", command="")
    assert checked == []
    started(tmp_path / "own", "Idle")
    assert checked == ["walk"]
