"""One file outside the package brings a part of every kind; a configuration names them, and the command runs them."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from metastep.evaluation import load
from tests.processes import metastep

OWN = Path(__file__).parent / "own"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The run, as a user starts it in the folder where the module lies."""
    folder = tmp_path_factory.mktemp("own")
    for name in ("ridge_walk.py", "ridge_walk.toml"):
        (folder / name).write_bytes((OWN / name).read_bytes())
    done = metastep("run", "ridge_walk.toml", "--out", "run", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "report: run/report.html" in done.stdout
    return folder


def test_the_file_is_short():
    assert len([line for line in (OWN / "ridge_walk.py").read_text().splitlines() if line.strip()]) <= 75


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
    for words in ("ridge_walk:ridge, ridge 0.1", "ridge_walk:sign", "theta, ridge_walk:slope, context", "halving"):
        assert words in report


@pytest.mark.soak
def test_other_stages_take_them_up_again(folder):
    for verb in ("report", "check", "inspect"):
        refused = metastep(verb, "run", cwd=folder)
        assert refused.returncode == 2
        assert "names parts of the module 'ridge_walk', which would be run; give --allow-imports" in refused.stderr
        done = metastep(verb, "run", "--allow-imports", cwd=folder)
        assert done.returncode == 0, done.stderr
    assert "2 heads of ridge_walk:ridge, ridge 0.1" in done.stdout


def test_every_part_keeps_its_contract(monkeypatch):
    monkeypatch.syspath_prepend(str(OWN))
    import ridge_walk

    from metastep import testing
    from metastep.experiments.build import build_mdp
    from metastep.experiments.config import load as load_config

    mdp = build_mdp(load_config(OWN / "ridge_walk.toml"))
    testing.check_env(ridge_walk.Walk())
    testing.check_policy(mdp.estimator.rollout.policy)
    testing.check_rule(ridge_walk.SignAscent())
    testing.check_feature(ridge_walk.Slope(), mdp)
    testing.check_controller(ridge_walk.Halving(0.1), mdp)
    testing.check_regressor(ridge_walk.LeastSquares())


def test_a_module_here_does_not_take_the_place_of_an_installed_one(tmp_path):
    for name in ("jax", "typer", "numpy"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    for words in ([sys.executable, "-m", "metastep"], [str(Path(sys.executable).with_name("metastep"))]):
        done = subprocess.run([*words, "envs"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "cartpole" in done.stdout
