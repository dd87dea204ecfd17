"""All families keep the contract of environments, and the presets name them."""

from pathlib import Path

import pytest

from metastep import load_experiment, make_env
from metastep.testing import check_env
from pretraining.families import FAMILIES

PRESETS = sorted((Path(__file__).parents[1] / "presets").glob("*.toml"))


@pytest.mark.parametrize("name", FAMILIES)
def test_families_keep_the_contract(name: str) -> None:
    check_env(FAMILIES[name]())


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
@pytest.mark.parametrize("scale", ["quick", "full"])
def test_presets_name_a_family(preset: Path, scale: str) -> None:
    config = load_experiment(preset, scale)
    assert type(make_env(config.env.name)) in FAMILIES.values()
    assert config.learner == "search"
