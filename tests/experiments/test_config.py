import copy
import json
import math
import re
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from metastep.errors import InputError
from metastep.experiments import schema
from metastep.experiments.config import Experiment, list_presets, load_file, load_preset, parse
from metastep.meta.episodes import OBSERVATION_PARTS

# SPEC section 6: observations and actions give the number of parameters of the linear policy, (1 + s) * a.
SPEC = {
    "nav2d": {
        "parameters": (1 + 2) * 2,
        "initial": ("normal", (0.0,), (0.1,)),
        "sigma": 1.001,
        "n, H": (200, 10),
        "collect": ("trajectory", 4000, 20),
        "forest": (50, 0.01),
        "stepsizes": (0.0, 8.0),
    },
    "minigolf": {
        "parameters": (1 + 1) * 1,
        "initial": ("uniform", (-2.0, -1.0), (3.5, 2.0)),
        "sigma": 0.1,
        "n, H": (400, 20),
        "collect": ("generative", 10000, 20),
        "forest": (50, 0.01),
        "stepsizes": (0.0, 1.0),
    },
    "cartpole": {
        "parameters": (1 + 4) * 1,
        "initial": ("normal", (0.0,), (0.01,)),
        "sigma": 1.001,
        "n, H": (100, 100),
        "collect": ("trajectory", 3200, 15),
        "forest": (150, 0.05),
        "stepsizes": (0.0, 10.0),
    },
    "swingup": {
        "parameters": (1 + 4) * 1,
        "initial": ("normal", (0.0,), (0.1,)),
        "sigma": 1.001,
        "n, H": (100, 200),
        "collect": ("trajectory", 300, 25),
        "forest": (150, 0.05),
        "stepsizes": (0.0, 0.5),
    },
}
# SPEC section 5: RMSprop, Adam, metagrad h_0 and beta, decay.
TUNED = {"nav2d": (0.9, 0.8, 3, 0.001, 5), "minigolf": (0.3, 0.08, 0.3, 5, 2), "cartpole": (0.3, 0.3, 1, 0.1, 7.5)}


def both_scales():
    return [(name, scale) for name in list_presets() for scale in ("quick", "paper")]


def sections(section: type[BaseModel] = Experiment, prefix: str = ""):
    """Every section of the schema with the dotted prefix of its fields."""
    yield prefix, section
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from sections(field.annotation, f"{prefix}{name}.")


def error_of(call, *args) -> str:
    with pytest.raises(InputError) as error:
        call(*args)
    return str(error.value)


def is_one_sentence(message: str) -> bool:
    return re.fullmatch(r"[^\n]+[.?]", message) is not None and len(message) < 500


def test_every_environment_of_the_specification_has_a_preset():
    assert set(list_presets()) >= set(SPEC)


@pytest.mark.parametrize("name", SPEC)
def test_the_paper_scale_is_the_specification(name):
    config, spec = load_preset(name, "paper"), SPEC[name]
    initial = config.initial
    assert config.env.name == name
    assert config.policy.kind == "linear"
    first, second = (initial.mean, initial.variance) if initial.kind == "normal" else (initial.low, initial.high)
    assert (initial.kind, first, second) == spec["initial"]
    assert {len(first), len(second)} <= {1, spec["parameters"]}
    assert config.policy.sigma == spec["sigma"]
    assert (config.rollout.num_episodes, config.rollout.horizon) == spec["n, H"]
    assert (config.rollout.discount, config.rollout.baseline, config.meta.meta_discount) == (0.99, "optimal", 1.0)
    assert (config.collect.method, config.collect.num_meta_episodes, config.meta.num_updates) == spec["collect"]
    assert (config.fqi.trees, config.fqi.min_samples_split) == spec["forest"]
    assert (config.meta.stepsize_low, config.meta.stepsize_high, config.meta.stepsize_scale) == (
        *spec["stepsizes"],
        "linear",
    )
    assert (config.fqi.double, config.fqi.lam, config.fqi.num_stepsizes, config.fqi.maximum) == (True, 1.0, 101, "grid")
    assert config.meta.observation == ("theta", "gradient", "context")
    # The paper tuned on 20 tasks; fewer than about 50 leave the best fixed step to chance.
    assert (config.compare.num_tasks, config.compare.num_tuning_tasks, config.compare.num_resamples) == (100, 50, 10000)
    assert set(config.compare.methods) == set(get_args(schema.MethodName)) - {"geometric-decay"}


@pytest.mark.parametrize("scale", ["quick", "paper"])
@pytest.mark.parametrize("name", TUNED)
def test_the_grids_contain_what_the_paper_tuned(name, scale):
    grids = load_preset(name, scale).compare.grids
    searched = (grids.rmsprop, grids.adam, grids.metagrad_stepsize, grids.metagrad_beta, grids.decay)
    assert all(value in grid for value, grid in zip(TUNED[name], searched, strict=True))
    assert grids.hoof == (1e-4, 1e-3, 1e-2, 2e-2, 5e-2)


@pytest.mark.parametrize(("name", "scale"), both_scales())
def test_every_preset_constructs_and_survives_json(name, scale):
    config = load_preset(name, scale)
    stored = json.loads(json.dumps(config.to_dict(), allow_nan=False))
    assert parse(stored) == config
    assert stored == config.to_dict()
    grids = config.compare.grids
    for grid in (grids.fixed, grids.metagrad_stepsize):
        assert config.meta.stepsize_low <= min(grid) <= max(grid) <= config.meta.stepsize_high
    for field in schema.GridsSection.model_fields:
        assert list(getattr(grids, field)) == sorted(set(getattr(grids, field)))


def environment_steps(config: Experiment) -> int:
    """Steps of collection, selection, tuning and comparison, the greedy oracle's 101 tries an update included."""
    batch = config.rollout.num_episodes * config.rollout.horizon
    grids, compare = config.compare.grids, config.compare
    points = sum(math.prod(len(getattr(grids, grid)) for grid in names) for names in schema.GRIDS_OF.values())
    collected = config.collect.num_meta_episodes * (
        2 if config.collect.method == "generative" else config.meta.num_updates + 1
    )
    selected = config.fqi.iterations * config.selection.num_tasks * (config.meta.num_updates + 1)
    learners = compare.num_tuning_tasks * points + compare.num_tasks * (len(compare.methods) + 101)
    return batch * (collected + selected + learners * (compare.num_updates + 1))


@pytest.mark.parametrize("name", SPEC)
def test_the_quick_scale_is_much_cheaper_and_the_same_experiment(name):
    quick, paper = load_preset(name, "quick"), load_preset(name, "paper")
    assert environment_steps(quick) < 1.5e9  # a minute at 25 million steps a second
    assert environment_steps(quick) < environment_steps(paper) / 2
    for section in ("env", "policy", "initial", "meta", "rollout"):
        assert getattr(quick, section) == getattr(paper, section)


def test_cheetah_collects_all_learners_at_once_and_pads_none_at_either_scale():
    paper, quick = (load_preset("halfcheetah", scale).collect for scale in ("paper", "quick"))
    assert paper.block_size == paper.num_meta_episodes == 200
    assert quick.num_meta_episodes % quick.block_size == 0
    assert load_preset("halfcheetah", "paper").rollout.block_size == 20
    assert load_preset("nav2d", "paper").collect.block_size is None


def test_every_field_has_a_sentence():
    for prefix, section in sections():
        assert section.__doc__
        for name, field in section.model_fields.items():
            assert field.description, prefix + name
            assert field.description.endswith("."), prefix + name


def test_observation_parts_are_those_of_the_dataset():
    assert get_args(schema.ObservationPart) == OBSERVATION_PARTS


def test_configurations_cannot_be_changed():
    config = load_preset("nav2d")
    with pytest.raises(ValidationError, match="frozen"):
        config.fqi.trees = 3  # type: ignore[misc]


def test_overrides_take_toml_values_or_bare_text():
    overrides = ["fqi.trees=7", "fqi.double = false", "seed=3", "fqi.forest=sklearn", "rollout.damping=1e-3"]
    overrides += ['compare.methods=["adam", "metafqi"]', "compare.grids.adam=[0.5]", "env.options.force=continuous"]
    overrides += ['initial={kind = "uniform", low = -1, high = [0, 1, 2]}', "env.options.dt=0.01"]
    config = load_preset("cartpole", "quick", overrides)
    assert (config.fqi.trees, config.fqi.double, config.seed, config.fqi.forest) == (7, False, 3, "sklearn")
    assert (config.compare.methods, config.compare.grids.adam) == (("adam", "metafqi"), (0.5,))
    assert config.env.options == {"force": "continuous", "dt": 0.01}
    assert (config.initial.low, config.initial.high, config.initial.mean) == ((-1.0,), (0.0, 1.0, 2.0), None)
    assert config.rollout.damping == 1e-3


def test_files_have_the_form_of_presets(tmp_path):
    from metastep.experiments import config as module

    source = f"{module.__file__.removesuffix('config.py')}presets/minigolf.toml"
    own = tmp_path / "own.toml"
    with open(source, encoding="utf-8") as file:
        text = file.read()
    own.write_text(text)
    assert load_file(own) == load_preset("minigolf", "paper")
    assert load_file(own, "quick", ["seed=5"]) == load_preset("minigolf", "quick", ["seed=5"])
    own.write_text(text.partition("[quick.")[0])
    assert load_file(own) == load_preset("minigolf", "paper")
    assert error_of(load_file, own, "quick") == (
        f"scale: 'quick' needs a table [quick] in {own}, which has none; give --scale paper."
    )
    own.write_text("quick = 3\n" + text.partition("[quick.")[0])
    assert error_of(load_file, own, "quick") == "quick: 3 must be a table of settings."


def test_unreadable_files_are_named(tmp_path):
    path = tmp_path / "own.toml"
    assert error_of(load_file, path) == f"File {path} cannot be read: No such file or directory."
    for content in (b"seed = ", b"\xff", b"a = " + b"[" * 100_000, b"seed = 1" + b"0" * 5000):
        path.write_bytes(content)
        message = error_of(load_file, path)
        assert message.startswith(f"File {path} is not valid TOML: ")
        assert is_one_sentence(message)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("fqi.tree=3", "fqi.tree: is not a setting, did you mean 'fqi.trees'?"),
        ("fqu.trees=3", "fqu: is not a setting, did you mean 'fqi'?"),
        ("trees=3", "trees: is not a setting, did you mean 'fqi.trees'?"),
        ("compare.grids.addam=[1]", "compare.grids.addam: is not a setting, did you mean 'compare.grids.adam'?"),
        ("fqi.lam=0.5", "fqi.lam: 0.5 must be greater than 0.5."),
        ("fqi.lam=1.01", "fqi.lam: 1.01 must be less than or equal to 1."),
        ("fqi.trees=3.5", "fqi.trees: 3.5 must be a whole number."),
        ("fqi.trees=true", "fqi.trees: True must be a whole number."),
        ("fqi.double=1", "fqi.double: 1 must be true or false."),
        ("policy.sigma=wide", "policy.sigma: 'wide' must be a number."),
        ("policy.sigma=inf", "policy.sigma: inf must be a finite number."),
        ("policy.kind=tree", "policy.kind: 'tree' must be 'linear' or 'mlp'."),
        ("policy.kind=mlp", "policy.hidden: [] must be at least one size for the mlp policy."),
        ("policy.hidden=[8]", "policy.hidden: [8] must be empty for the linear policy."),
        ("policy=3", "policy: 3 must be a table of settings."),
        ("policy={}", "policy.sigma: is missing, it must be set."),
        ("env.name=", "env.name: '' must have at least 1 character."),
        ("env.name=7", "env.name: 7 must be text."),
        ("env.options=3", "env.options: 3 must be a table."),
        (
            "env.options.a=[1]",
            "env.options: {'a': [1]} must map names to true, false, numbers or text, 'a' does not.",
        ),
        ("meta.stepsize_low=8", "meta.stepsize_low: 8.0 must lie below stepsize_high = 8.0."),
        ("meta.stepsize_high=1e39", "meta.stepsize_high: 1e+39 must be less than or equal to 1000000000."),
        ("fqi.num_stepsizes=10001", "fqi.num_stepsizes: 10001 must be less than or equal to 10000."),
        (
            "meta={num_updates=2,stepsize_low=1.0,stepsize_high=1.000001}",
            "fqi.num_stepsizes: 101 must be fewer, float32 cannot tell so many apart between 1 and 1.",
        ),
        ("compare.num_tasks=1", "compare.num_tasks: 1 must be greater than or equal to 2."),
        ("compare.num_tuning_tasks=1", "compare.num_tuning_tasks: 1 must be greater than or equal to 2."),
        (
            'compare.methods=["geometric-decay"]',
            "compare.grids.geometric_decay_stepsize: [] must hold at least one number, geometric-decay is compared.",
        ),
        ("meta.stepsize_scale=log", "meta.stepsize_low: 0.0 must be positive on a log scale."),
        ('meta.observation=["theta","theta"]', "meta.observation: ['theta', 'theta'] must name each part once."),
        ("meta.observation=[]", "meta.observation: [] must have at least 1 item after validation, not 0."),
        ("meta.observation=theta", "meta.observation: 'theta' must be a list."),
        ("initial.variance=-1", "initial.variance: [-1.0] must not be negative."),
        ("initial.low=0", "initial.low: [0.0] must not be set where kind is 'normal'."),
        ('initial={kind="uniform",low=0}', "initial.high: None must be set where kind is 'uniform'."),
        (
            'initial={kind="uniform",low=[0,0],high=[1,0]}',
            "initial.low: [0.0, 0.0] must lie below high, which is [1.0, 0.0].",
        ),
        (
            "initial={mean=[0,0],variance=[1,1,1]}",
            "initial.variance: [1.0, 1.0, 1.0] must have one number, or as many as",
        ),
        ("compare.grids.adam=[]", "compare.grids.adam: [] must hold at least one number, adam is compared."),
        ("compare.grids.adam=[1, 0]", "compare.grids.adam[1]: 0 must be greater than 0."),
        ('compare.methods=["adam","adam"]', "compare.methods: ['adam', 'adam'] must name each method once."),
        ('compare.methods=["adamw"]', "compare.methods[0]: 'adamw' must be 'metafqi', 'fixed',"),
        ("collect.block_size=0", "collect.block_size: 0 must be greater than or equal to 1."),
        ("collect.block_size=all", "collect.block_size: 'all' must be a whole number."),
        ("seed=-1", "seed: -1 must be greater than or equal to 0."),
        ("seed", "--set: 'seed' must have the form section.key=value."),
        ("=3", "--set: '=3' lacks the name of a setting, as in section.key=value."),
        ("fqi.=3", "--set: 'fqi.=3' lacks the name of a setting, as in section.key=value."),
        ("fqi..trees=3", "--set: 'fqi..trees=3' lacks the name of a setting, as in section.key=value."),
        (
            "compare.methods=[fixd]",
            "--set: 'compare.methods=[fixd]' is no TOML value, text in a list or table needs quotes, as in key=[\"text\"].",
        ),
        ("initial={kind=uniform}", "--set: 'initial={kind=uniform}' is no TOML value, text in a list or table needs"),
        ("quick.fqi.trees=1", "quick: is not a setting, did you mean"),
    ],
)
def test_wrong_settings_are_named_with_what_is_allowed(override, message):
    found = error_of(load_preset, "nav2d", "quick", [override])
    assert found.startswith(message)
    assert is_one_sentence(found)


def test_an_override_into_a_value_is_refused():
    found = error_of(load_preset, "nav2d", "quick", ["seed=1", "seed.a=1"])
    assert found == "--set: 'seed.a=1' goes into seed, which is a value and not a table."


def test_unknown_presets_and_scales_are_named():
    assert error_of(load_preset, "cartpol") == "preset: 'cartpol' does not exist, did you mean 'cartpole'?"
    assert error_of(load_preset, "nav2d", "large") == "scale: 'large' must be one of quick, paper."


def test_a_method_that_is_not_compared_needs_no_grid():
    methods = 'compare.methods=["metafqi", "oracle", "adam"]'
    load_preset("nav2d", "quick", [methods, "compare.grids={adam=[0.1]}"])


# ---------------------------------------------------------------------------------------------------------------------
# Arbitrary configurations: presets with a few settings replaced, added or removed.

DOTTED = [prefix + name for prefix, section in sections() for name in section.model_fields]
WORDS = sorted({word for key in DOTTED for word in key.split(".")} | {"linear", "mlp", "normal", "uniform", "log"})
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, 1, 2, 0.0, 0.5, 0.51, 1.0, -1.0, 10**9, 2**32, 10**400, math.nan, math.inf])
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.sampled_from([*WORDS, *get_args(schema.MethodName)])
    | st.dates()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(DOTTED) | st.lists(st.sampled_from(WORDS) | st.text(max_size=4), min_size=1, max_size=3).map(
    ".".join
)


def put(data: dict, key: str, value: object, remove: bool) -> None:
    *parents, name = key.split(".")
    for parent in parents:
        data = data.setdefault(parent, {})
        if not isinstance(data, dict):
            return
    if remove:
        data.pop(name, None)
    else:
        data[name] = value


def check_outcome(call, *args) -> None:
    """Either an experiment that survives being stored, or one sentence; no other exception."""
    message, config = "", None
    try:
        config = call(*args)
    except InputError as error:
        message = str(error)
    if config is None:
        assert is_one_sentence(message)
    else:
        assert parse(json.loads(json.dumps(config.to_dict(), allow_nan=False))) == config
        assert config.meta.stepsize_low < config.meta.stepsize_high
        assert 0.5 < config.fqi.lam <= 1.0
        json.dumps(config.to_dict(), ensure_ascii=False).encode()


CHANGES = st.lists(st.tuples(KEYS, VALUES, st.booleans()), min_size=1, max_size=4)


def check_changed(preset: str, changes: list) -> None:
    data = copy.deepcopy(load_preset(preset).to_dict())
    for key, value, remove in changes:
        put(data, key, value, remove)
    check_outcome(parse, data)


@settings(max_examples=300)
@given(preset=st.sampled_from(list_presets()), changes=CHANGES)
def test_any_configuration_constructs_or_gives_one_sentence(preset, changes):
    check_changed(preset, changes)


@pytest.mark.soak
@settings(max_examples=5000)
@given(preset=st.sampled_from(list_presets()), changes=CHANGES)
def test_thousands_of_configurations_construct_or_give_one_sentence(preset, changes):
    check_changed(preset, changes)


@settings(max_examples=300)
@given(
    preset=st.sampled_from(list_presets()),
    overrides=st.lists(
        st.tuples(KEYS, st.text(max_size=12) | VALUES.map(repr) | SCALARS.map(str)).map("=".join)
        | st.text(max_size=12),
        max_size=3,
    ),
)
def test_any_override_constructs_or_gives_one_sentence(preset, overrides):
    check_outcome(load_preset, preset, "quick", overrides)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode(errors="replace")))
def test_any_file_gives_one_sentence(tmp_path, content):
    path = tmp_path / "own.toml"
    path.write_bytes(content)
    assert is_one_sentence(error_of(load_file, path))


VALID = {
    "seed": st.integers(0, 2**32 - 1),
    "policy.sigma": st.floats(1e-6, 1e6),
    "rollout.num_episodes": st.integers(1, 10**9),
    "rollout.discount": st.floats(0, 1),
    "rollout.baseline": st.sampled_from(["none", "mean", "optimal"]),
    "meta.stepsize_high": st.floats(0.1, 1e6),
    "meta.stepsize_low": st.floats(0, 0.09),
    "meta.observation": st.permutations(OBSERVATION_PARTS).flatmap(lambda parts: st.just(parts[:2])),
    "collect.block_size": st.none() | st.integers(1, 10**9),
    "fqi.lam": st.floats(0.5, 1.0, exclude_min=True),
    "fqi.min_samples_split": st.floats(0, 1, exclude_min=True),
    "fqi.maximum": st.sampled_from(["grid", "continuous"]),
    "compare.methods": st.lists(st.sampled_from(schema.DEFAULT_METHODS), min_size=1, unique=True),
    "compare.grids.fixed": st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=5),
    "initial": st.floats(0, 1).map(lambda value: {"mean": value, "variance": value})
    | st.floats(0, 1).map(lambda value: {"kind": "uniform", "low": [-value, -1], "high": value + 1}),
}


@settings(max_examples=200)
@given(preset=st.sampled_from(list_presets()), changes=st.fixed_dictionaries({}, optional=VALID))
def test_valid_configurations_construct(preset, changes):
    data = load_preset(preset).to_dict()
    for key, value in changes.items():
        put(data, key, value, remove=False)
    check_outcome(lambda: parse(data))
    assert parse(data).to_dict()["seed"] == data["seed"]
