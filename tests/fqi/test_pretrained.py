"""Model files of version 0.2 load, propose the same values, and still fit the meta-MDP that their configuration builds."""

import numpy as np
import pytest

from metastep import pretrained
from metastep._core.errors import InputError
from metastep._core.storage import read_tensors, write_tensors
from metastep.controllers import MetaFQIController
from metastep.experiments.config import build_mdp, parse
from metastep.fqi import load_model, save_model
from tests.steppers import clip_model

BEFORE = {
    "acrobot-ppo": (0.0197435, 0.0111898, 0.00945265),
    "cartpole": (1.0, 1.77828, 2.0, 1.99526, 1.49879),
    "cartpole-ppo": (0.000834645, 0.000769613, 0.00428435),
    "halfcheetah": (0.0, 0.398107, 1.0, 0.00707946, 1.2903),
    "minigolf": (2.0, 19.0546, 2.0, 2754.23, 1088.36),
    "mountaincar-ppo": (0.0850242, 0.00359434, 0.0303529),
    "nav2d": (1.0, 1.41254, 2.0, 0.177828, 2.52843),
    "pendulum-ppo": (0.0614649, 0.00458465, 0.0163177),
    "swingup": (0.0, 0.316228, 2.0, 0.0707946, 1.43892),
}
"""What version 0.2 gave: the actions of two observations, and the mean step of 64."""


@pytest.mark.parametrize("name", BEFORE)
def test_models_propose_what_they_did_before_and_fit_their_meta_mdp(name):
    model = pretrained.load(name)
    record = model.record
    low, high = np.array(record.feature_low), np.array(record.feature_high)
    rows = low + (high - low) * np.random.default_rng(0).uniform(size=(64, len(low)))
    actions = np.asarray(model.act(rows), float).reshape(64, -1)
    assert (*actions[0], *actions[1], actions[:, -1].mean()) == pytest.approx(BEFORE[name], rel=1e-5)
    assert record.hyperparameters == (("direction", "stepsize") if record.directions else ("stepsize",))
    place, sizes = 0, {}
    for part, size in record.keywords.items():
        sizes[part], place = rows[0, place : place + size], place + size
    proposal = model.propose(**sizes)
    assert [*proposal.values.values()] == pytest.approx(actions[0])
    MetaFQIController(model).init(build_mdp(parse(record.configuration["experiment"])), None)


def test_a_choice_of_clip_ranges_gets_its_values_from_the_recorded_rule(tmp_path):
    save_model(clip_model(), tmp_path / "new")
    arrays, metadata = read_tensors(tmp_path / "new")
    for branch in metadata["record"]["branches"]:
        del branch["values"]
    metadata["record"]["setting"]["rule"] = {"name": "ppo", "clip_range": [0.1, 0.3]}
    write_tensors(tmp_path / "old", arrays, metadata)
    assert load_model(tmp_path / "old").record.branches == clip_model().record.branches
    metadata["record"]["setting"]["rule"]["clip_range"] = ["0.1", None]
    write_tensors(tmp_path / "old", arrays, metadata)
    with pytest.raises(InputError, match=r"^File .*: model record: .*clip_range"):
        load_model(tmp_path / "old")
