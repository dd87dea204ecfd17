"""What the paper leaves open: every reading can be built, and presets keep the first."""

import pytest

from metastep._core.errors import InputError
from metastep.experiments.build import build_mdp, method_specs
from metastep.experiments.config import load
from paper.points import FOLLOWED, POINTS, readings
from paper.readings import config_of
from paper.workbench import Workbench


@pytest.mark.parametrize("env", POINTS)
def test_every_reading_is_another_experiment_that_can_be_built(env):
    configs = [load(env, "full", reading.overrides) for reading in readings(env)]
    for config in configs:
        build_mdp(config)
    assert len({config.model_dump_json() for config in configs}) == len(configs) > 1


@pytest.mark.parametrize("env", POINTS)
def test_the_first_reading_has_a_name(env):
    first, *others = readings(env)
    assert load(env, "full", ["reading=first"]) == load(env, "full", ["reading=first", *first.overrides])
    for other in others:
        # Whatever the preset is, the name leads back.
        assert load(env, "full", [*other.overrides]) != load(env, "full", ["reading=first"])
    assert load(env, "quick", ["reading=first"]).env == load(env, "full", ["reading=first"]).env


@pytest.mark.parametrize("env", POINTS)
def test_presets_follow_the_reading_that_is_said(env):
    # The policies are linear, so what is not said is the closed form.
    said = [] if load(env, "full").rollout.fisher else ["rollout.fisher=closed"]
    preset = build_mdp(load(env, "full", said))
    same = [one.choices for one in readings(env) if build_mdp(load(env, "full", one.overrides)) == preset]
    assert same == [FOLLOWED[env]]


@pytest.mark.parametrize("env", POINTS)
def test_every_reading_can_be_screened_at_every_scale(env, tmp_path):
    for scale in ("quick", "full"):
        bench = Workbench(tmp_path, scale, 0)
        configs = [config_of(bench, reading) for reading in readings(env)]
        for config in configs:
            method_specs(config)
        assert not configs[0].models
        assert len({config.model_dump_json() for config in configs}) == len(configs)


def test_an_unknown_reading_is_refused(tmp_path):
    with pytest.raises(
        InputError, match=r"reading: 'frist' is not a table \[readings.NAME\] of cartpole, which has first"
    ):
        load("cartpole", "full", ["reading=frist"])
    file = tmp_path / "own.toml"
    file.write_text("readings = 3\n")
    with pytest.raises(InputError, match=r"reading: 'x' is not a table \[readings.NAME\] of .*, which has none"):
        load(file, None, ["reading=x"])
