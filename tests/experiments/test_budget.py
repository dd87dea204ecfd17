"""What is out of reach is refused from its shapes, with the estimate, before anything is allocated or written."""

import re
import time
from pathlib import Path

import pytest

from metastep._core.errors import InputError
from metastep.experiments import budget
from metastep.experiments.config import list_presets, load
from metastep.experiments.run import Run, start_run
from tests.cli.test_cli import invoke, refused

BILLION = 10**9


@pytest.mark.parametrize("preset", list_presets())
@pytest.mark.parametrize("scale", ["quick", "full"])
def test_every_preset_is_within_reach(preset, scale):
    found = budget.budget_of(Run(Path("run"), load(preset, scale)))
    assert max(found.block, found.fit, found.results) < 1e9
    pace = "with learning" if preset.endswith("-ppo") else "on the host" if preset == "halfcheetah" else "in JAX"
    # Learning with networks at the scale of `full` is for GPUs.
    assert found.steps / budget.STEPS_PER_SECOND[pace] < (36 if pace == "with learning" else 12) * 3600.0


@pytest.mark.parametrize(
    "setting",
    [
        "rollout.block_size",
        "collect.block_size",
        "rollout.num_episodes",
        "meta.num_updates",
        "collect.num_meta_episodes",
        "compare.num_tasks",
        "compare.num_updates",
        "compare.num_resamples",
        "selection.num_tasks",
    ],
)
def test_memory_out_of_reach_is_refused_at_once(tmp_path, setting):
    began = time.monotonic()
    with pytest.raises(InputError, match=r"^[a-z_.]+: .* takes about [\d.]+ [GTPk]?.*B of memory .* available; .*\.$"):
        start_run("nav2d", "quick", tmp_path / "run", command="", overrides=[f"{setting}={BILLION}"], anyway=True)
    assert time.monotonic() - began < 10.0
    assert not (tmp_path / "run").exists()


def test_the_disk_is_looked_at_before_there_is_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "available_memory", lambda: 10**18)
    with pytest.raises(InputError, match="of free disk space"):
        start_run(
            "nav2d",
            "quick",
            tmp_path / "run",
            command="",
            overrides=["collect.num_meta_episodes=100000000"],
            anyway=True,
        )
    assert not (tmp_path / "run").exists()


def test_weeks_need_a_yes(tmp_path):
    long = ["--set", "rollout.horizon=1000000000", "--set", 'compare.methods=["fixed", "adam"]']
    sentence = refused(invoke("run", "nav2d", "--out", tmp_path / "run", *long))
    days = re.fullmatch(
        r"error: The experiment simulates [\d.]+ Tsteps in JAX, about ([\d.e+]+) days at 10.0 Msteps/s; "
        r"more than 10 days need --yes\.",
        sentence,
    )
    assert days is not None
    assert float(days[1]) > 10.0
    assert not (tmp_path / "run").exists()
    config = load("nav2d", "quick", [word for word in long if word != "--set"])
    assert budget.require_affordable(Run(Path("run"), config), anyway=True).steps > 1e13


def test_simulators_on_the_host_are_slower():
    config = load("halfcheetah", "full", ["compare.num_tasks=100000", 'compare.methods=["fixed", "adam"]'])
    with pytest.raises(InputError, match=r"simulates [\d.]+ Gsteps on the host, about [\d.]+ days at 100.0 ksteps/s;"):
        budget.require_affordable(Run(Path("run"), config))


def test_learning_with_networks_is_priced():
    """Months, of which the simulation alone would be a day."""
    config = load("cartpole-ppo", "quick", ["compare.num_tuning_tasks=300000"])
    with pytest.raises(
        InputError, match=r"simulates [\d.]+ [GT]steps with learning, about [\d.]+ days at 100.0 ksteps/s;"
    ):
        budget.require_affordable(Run(Path("run"), config))


def test_the_block_of_a_network_grows_with_the_horizon():
    network = ["policy={name='mlp', sigma=1.0}", 'compare.methods=["fixed"]', "initial={mean=0.0, variance=0.1}"]
    short, long = (
        budget.budget_of(Run(Path("run"), load("nav2d", "quick", [*network, f"rollout.horizon={h}"]))).block
        for h in (10, 1000)
    )
    assert long > 20 * short
    linear = [
        budget.budget_of(Run(Path("run"), load("nav2d", "quick", [*network[1:], f"rollout.horizon={h}"]))).block
        for h in (10, 1000)
    ]
    assert linear[0] == linear[1]
