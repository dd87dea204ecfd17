"""Q over a menu: which direction, and how far along it."""

import copy
import warnings
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.neighbors import KNeighborsRegressor

from metastep._core.errors import InputError
from metastep._core.storage import read_tensors, write_tensors
from metastep.fqi import (
    Branch,
    ExtraTrees,
    MetaFQI,
    Model,
    ObservationPart,
    Proposal,
    TrainingData,
    load_model,
    model_from,
    save_model,
)
from metastep.fqi.iteration import forest_seed
from metastep.fqi.qfunction import MenuQ
from metastep.fqi.record import record_from_json, record_to_json
from metastep.mdp.history import Transitions
from metastep.rules.spaces import Range
from tests.fqi.problems import HIGH, all_actions, transitions

MENU = {"natural": Range(1e-3, 1.0, "divergence"), "plain": Range(0.0, HIGH), "adam": Range(0.01, 2.0, "log")}
SMALL = {"iterations": 3, "regressor": ExtraTrees(8, 0.05), "random_state": 7, "num_stepsizes": 31, "menu": MENU}


def menu_transitions(tuples: int, features: int, seed: int) -> Transitions:
    """Random tuples of `MENU`; which direction is best, and how far along it, depends on the observation."""
    draw = np.random.default_rng(seed)
    observation = draw.normal(size=(tuples, features)).astype(np.float32)
    direction = draw.integers(len(MENU), size=tuples)
    axis = np.array([bounds.axis for bounds in MENU.values()])[direction]
    coordinate = axis[:, 0] + (axis[:, 1] - axis[:, 0]) * draw.uniform(size=tuples)
    step = np.stack([bounds.from_axis(coordinate) for bounds in MENU.values()], axis=1)[np.arange(tuples), direction]
    share = (coordinate - axis[:, 0]) / (axis[:, 1] - axis[:, 0])
    reward = observation[:, 0] * (direction - 1) - (share - 0.5 - 0.2 * observation[:, 1]) ** 2
    following = (0.8 * observation + 0.1 * share[:, None]).astype(np.float32)
    return Transitions(observation, np.stack([direction, step], axis=1).astype(np.float32), reward, following)


@pytest.fixture(scope="module")
def data():
    return menu_transitions(600, 4, seed=0)


@pytest.fixture(scope="module")
def fitted(data):
    return MetaFQI(**SMALL).fit(data)


def _model(fitted: MetaFQI) -> Model:
    parts = (ObservationPart("theta", 2), ObservationPart("mine:gain", 2))
    training = TrainingData(600, 0, "abc")
    return model_from(fitted, setting={"env": "nav2d"}, observation=parts, training_data=training)


@pytest.fixture
def model(fitted) -> Model:
    return _model(fitted)


@pytest.mark.parametrize(("double", "lam"), [(True, 1.0), (True, 0.7), (False, 1.0)])
def test_equals_a_plain_implementation_iteration_by_iteration(data, double, lam):
    fitted = MetaFQI(**SMALL, double=double, lam=lam, meta_discount=0.9).fit(data)
    grids = [np.linspace(*bounds.axis, 31) for bounds in MENU.values()]
    heads, target = 2 if double else 1, data.reward.astype(float)
    for iteration in range(1, 4):
        seen, following = [], []
        for index, (bounds, grid) in enumerate(zip(MENU.values(), grids, strict=True)):
            rows = data.stepsize[:, 0] == index
            inputs = np.column_stack([data.observation, bounds.to_axis(data.stepsize[:, 1])])[rows]
            forests = [
                ExtraTrees(8, 0.05).fit(inputs, target[rows], seed=forest_seed(7, iteration, index * heads + head))
                for head in range(heads)
            ]
            for observation, found in ((data.observation, seen), (data.next_observation, following)):
                values = [f.predict(all_actions(observation, grid)).reshape(-1, 31) for f in forests]
                found.append(lam * np.minimum(values[0], values[-1]) + (1 - lam) * np.maximum(values[0], values[-1]))
        expected = np.stack(seen, axis=1)
        assert fitted.values(data.observation, iteration) == pytest.approx(expected, abs=1e-10)
        best = fitted.q_functions_[iteration - 1].maximum(data.observation)
        assert best.value == pytest.approx(expected.max(axis=(1, 2)), abs=1e-10)
        chosen = fitted.act(data.observation, iteration)
        for row, (direction, step) in enumerate(chosen):
            place = np.abs(list(MENU.values())[int(direction)].grid(31) - step).argmin()
            assert expected[row, int(direction), place] == pytest.approx(expected[row].max(), abs=1e-10)
        best = fitted.q_functions_[iteration - 1].maximum(data.next_observation).value
        assert best == pytest.approx(np.stack(following, axis=1).max(axis=(1, 2)), abs=1e-10)
        target = data.reward + 0.9 * best  # to the last bit: the next forests' splits depend on it


def test_the_continuous_maximum_is_attained_and_above_every_action_tried(data):
    fitted = MetaFQI(**SMALL, maximum="continuous").fit(data)
    function = fitted.q_functions_[-1]
    observation, rows = data.observation[:50], np.arange(50)
    best = function.maximum(observation)
    assert (best.value >= fitted.values(observation).max(axis=(1, 2))).all()
    draw = np.random.default_rng(0)
    at_best = []
    for own, bounds in zip(function.functions, MENU.values(), strict=True):
        tried = draw.uniform(*bounds.axis, 500).astype(np.float32)
        inputs = all_actions(observation, tried)
        assert (
            np.minimum(*(h.predict(inputs) for h in own.heads)).reshape(50, -1) <= best.value[:, None] + 1e-13
        ).all()
        assert ((best.stepsize >= np.float32(bounds.low)) | (best.branch != len(at_best))).all()
        there = np.column_stack([observation, bounds.to_axis(best.stepsize)])
        at_best.append(np.minimum(*(head.predict(there) for head in own.heads)))
    attained = np.stack(at_best)[best.branch, rows]
    assert np.mean(np.abs(attained - best.value) < 1e-13) > 0.9  # a logarithm may round across a threshold


def test_ties_go_to_the_first_direction_and_the_smallest_step(data):
    flat = MetaFQI(**SMALL | {"iterations": 1}).fit(data._replace(reward=np.zeros(600)))
    np.testing.assert_array_equal(flat.act(data.observation[:9]), np.full((9, 2), [0.0, 1e-3], np.float32))


# Two towns, and a third that pays: the road there from town 0 begins with a detour that costs. `walk` moves a little and pays at
# once; `ride` costs now and leads on. From town 1 riding pays, walking does not.
TOWNS = {("walk", 0): (0, 0.1), ("ride", 0): (1, -0.1), ("walk", 1): (1, 0.0), ("ride", 1): (2, 1.0)}
TOWNS |= {("walk", 2): (2, 0.0), ("ride", 2): (2, 0.0)}


def _towns() -> Transitions:
    """Every town, direction and step; only steps above one half lead anywhere or pay anything."""
    rows = []
    for (direction, town), (following, reward) in TOWNS.items():
        for step in np.linspace(0.1, 1.0, 10):
            far = step > 0.55
            place = ["walk", "ride"].index(direction)
            rows.append((town, place, step, reward * far, following if far else town))
    table = np.array(rows, np.float32)
    return Transitions(table[:, :1], table[:, 1:3], table[:, 3], table[:, 4:])


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_the_best_direction_depends_on_the_state_and_on_planning(scale):
    menu = {"walk": Range(0.1, 1.0, scale), "ride": Range(0.1, 1.0, scale)}
    fitted = MetaFQI(3, ExtraTrees(5, 2), 0.8, menu=menu, num_stepsizes=10).fit(_towns())
    towns = np.arange(3.0)[:, None]
    short, long = fitted.act(towns, 1), fitted.act(towns, 3)
    assert list(short[:2, 0]) == [0, 1]  # one update ahead, walking pays in the first town and riding in the second
    assert list(long[:2, 0]) == [1, 1]  # further ahead, riding does in both
    assert (short[:2, 1] > 0.55).all()
    assert (long[:2, 1] > 0.55).all()
    assert list(long[2]) == [0, np.float32(0.1)]  # nothing to gain: the first direction, the smallest step
    best = fitted.q_functions_[2].maximum(towns).value
    assert best == pytest.approx([-0.1 + 0.8 * 1.0, 1.0, 0.0], abs=1e-6)


def test_bits_do_not_depend_on_threads(data):
    one, many = (MetaFQI(**SMALL, threads=threads).fit(data) for threads in (1, 3))
    assert all(
        np.array_equal(a, b)
        for left, right in zip(one.q_functions_, many.q_functions_, strict=True)
        for first, second in zip(left.heads, right.heads, strict=True)
        for a, b in zip(first, second, strict=True)
    )
    observation = menu_transitions(2500, 4, seed=1).observation  # more than one thread walks alone
    for rows in (observation[:30], observation):
        for answer in ("act", "values"):
            np.testing.assert_array_equal(getattr(one, answer)(rows), getattr(many, answer)(rows))


def test_any_regressor_can_learn_it(data):
    fitted = MetaFQI(**SMALL | {"regressor": KNeighborsRegressor(5)}).fit(data)
    function = fitted.q_functions_[0]
    assert not function.is_forest
    values = fitted.values(data.observation[:20], 1)
    chosen = fitted.act(data.observation[:20], 1)
    assert values.shape == (20, 3, 31)
    np.testing.assert_array_equal(chosen[:, 0], values.reshape(20, -1).argmax(axis=1) // 31)


def test_one_direction_is_a_menu_too(data):
    rows = data.stepsize[:, 0] == 1
    only = Transitions(*(part[rows] for part in data))
    named = only._replace(stepsize=only.stepsize * [0, 1])
    menu = MetaFQI(**SMALL | {"menu": {"plain": MENU["plain"]}}).fit(named)
    plain = MetaFQI(**SMALL | {"menu": None}, stepsize_high=HIGH).fit(only._replace(stepsize=only.stepsize[:, 1]))
    np.testing.assert_array_equal(menu.values(data.observation)[:, 0], plain.values(data.observation))
    np.testing.assert_array_equal(menu.act(data.observation)[:, 1], plain.act(data.observation))


@pytest.mark.parametrize("scale", ["log", "divergence"])
def test_steps_alone_may_be_seen_by_their_logarithm(scale):
    data = transitions(400, 3, seed=1)
    data = data._replace(stepsize=np.maximum(data.stepsize, 0.01))
    kept = data.stepsize.copy()
    settings = {"regressor": ExtraTrees(6, 0.05), "iterations": 2}
    fitted = MetaFQI(**settings, stepsize_low=0.01, stepsize_high=HIGH, stepsize_scale=scale).fit(data)
    np.testing.assert_array_equal(data.stepsize, kept)
    # The same as fitting the logarithm as it is.
    by_hand = MetaFQI(**settings, stepsize_low=-2.0, stepsize_high=np.log10(HIGH)).fit(
        data._replace(stepsize=np.log10(data.stepsize.astype(float)))
    )
    np.testing.assert_array_equal(fitted.values(data.observation), by_hand.values(data.observation))
    assert fitted.act(data.observation) == pytest.approx(10.0 ** by_hand.act(data.observation), rel=1e-5)
    assert set(fitted.act(data.observation)) <= set(Range(0.01, HIGH, scale).grid(101))
    assert clone(fitted).get_params() == fitted.get_params()


def test_what_is_not_finite_gets_the_first_directions_smallest_step(fitted, data):
    observation = data.observation[:4].astype(float)
    observation[1, 0], observation[2, 3] = np.nan, 1e300
    chosen = fitted.act(observation)
    np.testing.assert_array_equal(chosen[1:3], np.full((2, 2), [0.0, 1e-3], np.float32))
    np.testing.assert_array_equal(chosen[[0, 3]], fitted.act(data.observation[[0, 3]]))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"menu": {}}, r"fqi\.menu: \{\} must give one name or more, each with a Range"),
        ({"menu": {"": MENU["plain"]}}, r"fqi\.menu: .* must give one name or more"),
        ({"menu": {"plain": (0.0, 1.0)}}, r"fqi\.menu: .* must give one name or more"),
        ({"menu": ["plain"]}, r"fqi\.menu: \['plain'\] must give one name or more"),
        ({"menu": MENU | {"plain": Range(0.0, 1.0)}}, r"stepsize of 'plain' spans .* allowed is 0.0 to 1.0"),
        ({"menu": MENU | {"hoof": Range(0.0, 1.0)}}, "direction 'hoof' has 0 tuples, allowed are 2 or more"),
        (
            {"menu": {"natural": MENU["natural"], "plain": MENU["plain"]}},
            "of tuple .* is 2, allowed is the position 0 to 1",
        ),
        ({"menu": None}, r"stepsize has shape \(600, 2\), allowed is \(600,\)"),
        ({"stepsize_scale": "cubic"}, r"fqi\.stepsize_scale: 'cubic' must be 'linear', 'log' or 'divergence'"),
        ({"menu": None, "stepsize_scale": "log"}, "must be positive on a log scale"),
    ],
)
def test_bad_settings_are_one_sentence(data, change, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        MetaFQI(**SMALL | change).fit(data)
    assert "\n" not in str(caught.value)


def test_bad_directions_are_one_sentence(data):
    for value, sentence in (
        (0.5, "is 0.5, allowed is the position"),
        (-1, "is -1"),
        (np.nan, "1 tuples are not finite"),
    ):
        chosen = data.stepsize.copy()
        chosen[17, 0] = value
        with pytest.raises(InputError, match=sentence):
            MetaFQI(**SMALL).fit(data._replace(stepsize=chosen))
    with pytest.raises(InputError, match=r"stepsize has shape \(600,\), allowed is \(600, 2\)"):
        MetaFQI(**SMALL).fit(data._replace(stepsize=data.stepsize[:, 1]))


def test_a_model_proposes_direction_and_step(model, data):
    row = data.observation[3]
    found = model.propose(theta=row[:2], gain=row[2:])
    direction, step = model.act(row[None])[0]
    assert isinstance(found, Proposal)
    assert found == ({"direction": direction, "stepsize": float(step)}, list(MENU)[int(direction)])
    smallest = {"direction": 0.0, "stepsize": float(np.float32(1e-3))}
    assert model.propose(theta=row[:2], gain=[np.nan, 0.0]) == (smallest, "natural")
    assert model.record.directions == tuple(MENU)
    assert model.record.branches[2] == Branch("adam", 0.01, 2.0, "log", {"direction": 2.0})
    assert record_from_json(record_to_json(model.record)) == model.record
    with pytest.raises(
        InputError, match=r"^stepsize: the model chooses among natural, plain, adam as well; use propose\.$"
    ):
        model.stepsize(theta=row[:2], gain=row[2:])
    with pytest.raises(InputError, match="propose: 'gains' is not what the model looks at"):
        model.propose(theta=row[:2], gains=row[2:])
    with pytest.warns(UserWarning, match=r"gain\[0\] is 70, outside") as caught:
        model.propose(theta=row[:2], gain=[70.0, 0.0])
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.propose(theta=row[:2], gain=[70.0, 0.0])


def test_a_model_of_steps_alone_proposes_no_direction():
    fitted = MetaFQI(1, ExtraTrees(4, 0.1), stepsize_high=HIGH).fit(transitions(100, 4, seed=0))
    model = _model(fitted)
    assert model.record.directions == ()
    given = {"theta": [0.1, 0.2], "gain": [0.3, 0.4]}
    assert model.propose(**given) == ({"stepsize": model.stepsize(**given)}, "")


def test_files_keep_the_bits(model, data, tmp_path):
    save_model(model, tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert loaded.record == model.record
    assert isinstance(loaded.q_functions[0], MenuQ)
    for iteration in (1, 3):
        for answer in ("act", "values"):
            expected = getattr(model, answer)(data.observation, iteration)
            np.testing.assert_array_equal(getattr(loaded, answer)(data.observation, iteration), expected)
    arrays, _ = read_tensors(tmp_path / "m")
    assert len(arrays) == 3 * 6 * 7
    np.testing.assert_array_equal(arrays["2/5/value"], model.q_functions[1].functions[2].heads[1].value)
    save_model(loaded, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "m").read_bytes()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda found: found["branches"].pop(), "heads, allowed are 4 of every iteration"),
        (lambda found: found["branches"].append(found["branches"][0] | {"name": "more"}), "allowed are 8 of every"),
        (
            lambda found: found["branches"][1].update(name="adam"),
            r"branches: \['natural', 'adam', 'adam'\] must have a name",
        ),
        (lambda found: found["branches"][1].update(name=""), "must have a name each, given once"),
        (lambda found: found["branches"][1].update(name=3), r"model record: branches\.1\.name"),
        (lambda found: found["branches"][1].update(low="0"), r"model record: branches\.1\.low"),
        (lambda found: found["branches"][1].update(surprise=0), r"model record: branches\.1\.surprise"),
        (lambda found: found["branches"][1].update(scale="log"), "must be positive on a log scale"),
        (lambda found: found["branches"][2].update(high=0.001), "low is 0.01 and high 0.001"),
        (lambda found: found.update(branches={}), "model record: branches"),
    ],
)
def test_files_that_cannot_be_are_named(model, tmp_path, change, sentence):
    save_model(model, tmp_path / "m")
    arrays, metadata = read_tensors(tmp_path / "m")
    change(metadata["record"])
    write_tensors(tmp_path / "m", arrays, metadata)
    with pytest.raises(InputError, match=sentence) as caught:
        load_model(tmp_path / "m")
    assert str(caught.value).startswith("File ")
    assert "\n" not in str(caught.value)


def test_mended_checksums_do_not_help(model, tmp_path):
    """What is loaded of a file whose record and tensors were shuffled by someone who knows the format can act."""
    save_model(model, tmp_path / "m")
    arrays, metadata = read_tensors(tmp_path / "m")
    arrays = {name: np.array(array) for name, array in arrays.items()}
    draw, refused = np.random.default_rng(0), 0
    names = sorted(arrays)
    for _ in range(150):
        changed, record = dict(arrays), copy.deepcopy(metadata["record"])
        if draw.integers(2):
            one, other = draw.choice(names, 2)
            kind = draw.integers(3)
            if kind == 0:
                changed[one] = arrays[other]
            elif kind == 1:
                del changed[one]
            else:
                changed[one.replace("/", f"/{draw.integers(7)}", 1)] = arrays[other]
        else:
            branch = record["branches"][draw.integers(3)]
            field = draw.choice(sorted(branch))
            branch[field] = [0.0, -1.0, 1e30, 1e39, "", "plain", "log", None, 10**400][draw.integers(9)]
        write_tensors(tmp_path / "m", changed, metadata | {"record": record})
        try:
            loaded = load_model(tmp_path / "m")
        except InputError:
            refused += 1
            continue
        assert np.isfinite(loaded.act(np.zeros((3, 4)))).all()
    assert 40 < refused < 150


def test_records_of_other_directions_are_refused(model):
    with pytest.raises(InputError, match="a Q function has 3 directions, allowed is 2"):
        replace(model, record=replace(model.record, branches=model.record.branches[:2]))
    with pytest.raises(InputError, match="a Q function has 3 directions, allowed is 0"):
        replace(model, record=replace(model.record, branches=(Branch("", 0.0, 1.0, "linear"),)))
