"""Parts of one's own are one class and one line each: TOML names them, the command line and other people's loops use them."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from metastep.evaluation import load
from tests.processes import metastep

OWN = Path(__file__).parent / "own"


def run(tmp_path_factory, name: str, *options: str) -> Path:
    """Run an experiment as a user does, in the folder of the module."""
    folder = tmp_path_factory.mktemp(name)
    for path in (OWN / "ridge_walk.py", OWN / "certainty.py", OWN / f"{name}.toml"):
        shutil.copy(path, folder)
    done = metastep("run", f"{name}.toml", "--out", "run", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "report: run/report.html" in done.stdout
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return run(tmp_path_factory, "ridge_walk")


def test_the_file_with_a_part_of_every_kind_is_short():
    assert len((OWN / "ridge_walk.py").read_text().splitlines()) <= 75


def test_every_part_took_part(folder):
    comparison = load(folder / "run" / "comparison.safetensors")
    assert [(record.name, record.label, record.rule, record.controller) for record in comparison.methods] == [
        ("metafqi", "metaFQI", "sign", "metafqi"),
        ("halving", "halving", "sign", "halving"),
        ("mine", "halving with Adam", "adam", "halving"),
    ]
    assert comparison.methods[1].colour == "#884488"
    first = comparison.methods[1].values["first"]
    np.testing.assert_allclose(comparison.hyperparameters[1, 0, :, 0], first / 2.0 ** np.arange(3))
    assert comparison.context_names == ("goal",)
    report = (folder / "run" / "report.md").read_text()
    for words in ("ridge_walk:bagged, trees 3", "ridge_walk:sign", "theta, ridge_walk:slope, context", "halving"):
        assert words in report


@pytest.mark.soak
def test_other_commands_read_the_run_if_its_code_may_run(folder):
    for verb in ("report", "check", "inspect"):
        refused = metastep(verb, "run", cwd=folder)
        assert refused.returncode == 2
        assert "names parts of the module 'ridge_walk', which would be run; give --allow-imports" in refused.stderr
        done = metastep(verb, "run", "--allow-imports", cwd=folder)
        assert done.returncode == 0, done.stderr
    assert "2 heads of ridge_walk:bagged, trees 3" in done.stdout


@pytest.mark.filterwarnings("ignore::UserWarning")  # the loop differs from the simulated one
def test_an_environment_with_a_ppo_preset_and_a_feature_in_stable_baselines3(tmp_path_factory, monkeypatch):
    folder = run(tmp_path_factory, "ppo_walk", "--set", 'compare.methods=[{name = "metafqi"}]')
    stable_baselines3 = pytest.importorskip("stable_baselines3")
    monkeypatch.syspath_prepend(str(folder))
    import certainty

    from metastep.integrations.stable_baselines3 import LearnedRate

    seen = []
    call = lambda self, now: seen.append(now["approx_kl"] - now["entropy"]) or seen[-1]  # noqa: E731
    monkeypatch.setattr(certainty.Certainty, "__call__", call)
    rate = LearnedRate(folder / "run")
    agent = stable_baselines3.PPO("MlpPolicy", "CartPole-v1", n_steps=12, batch_size=12, n_epochs=1, device="cpu")
    agent.learn(36, callback=rate)
    assert len(rate.proposed) == 3
    assert all(3e-5 <= proposed <= 0.03 for proposed in rate.proposed)
    assert seen[0] == pytest.approx(-np.log(2.0), abs=1e-3)  # two actions, and no update yet
    # What the report says about using the model works where the run was started.
    said = (folder / "run" / "report.md").read_text().partition("## How to use")[2].partition("\n## ")[0]
    lines, callback, command = re.findall(r"```\n(.*?)\n```", said, flags=re.S)
    monkeypatch.chdir(folder)
    names = {"num_updates": 2, "diagnostics": {"entropy": 0.6}, "agent": agent, "total_timesteps": 12}
    exec(f"{lines}\n{callback}", names)
    assert 3e-5 <= names["values"]["stepsize"] <= 0.03
    words = shlex.split(command)
    assert words == ["metastep", "learn", "run", "--task", "goal=0", "--allow-imports"]
    done = metastep(*words[1:], cwd=folder)
    assert done.returncode == 0, done.stderr


def test_a_module_here_does_not_replace_an_installed_one(tmp_path):
    for name in ("jax", "typer", "numpy"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    for words in ([sys.executable, "-m", "metastep"], [str(Path(sys.executable).with_name("metastep"))]):
        done = subprocess.run([*words, "envs"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "cartpole" in done.stdout
