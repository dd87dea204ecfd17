import copy
import json
import math
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from metastep import features
from metastep._core.errors import InputError
from metastep._core.settings import fits_float32
from metastep.evaluation import baselines
from metastep.experiments import schema
from metastep.experiments.budget import budget_of
from metastep.experiments.config import Experiment, build_mdp, build_regressor, list_presets, load, parse
from metastep.experiments.reference import to_toml
from metastep.experiments.run import Run
from metastep.experiments.stages import method_specs
from metastep.rules.spaces import Range

METHODS = ("metastep", "metafqi", "fixed", "fixed-kl", "kl-adaptive", "decay", "rmsprop", "adam", "hoof", "metagrad")
METHODS += ("single", "oracle", "menu-oracle")
# The paper's settings; what it leaves open as it is read: a normal's second number is a standard deviation.
# Observations and actions give the number of parameters of the linear policy, (1 + s) * a.
PAPER = {
    "nav2d": {
        "parameters": (1 + 2) * 2,
        "initial": ("normal", (0.0,), (0.01,)),
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
        "initial": ("normal", (0.0,), (0.0001,)),
        "sigma": 1.001,
        "n, H": (100, 100),
        "collect": ("trajectory", 3200, 15),
        "forest": (150, 0.05),
        "stepsizes": (0.0, 10.0),
    },
    "swingup": {
        "parameters": (1 + 4) * 1,
        "initial": ("normal", (0.0,), (0.01,)),
        "sigma": 1.001,
        "n, H": (100, 200),
        "collect": ("trajectory", 300, 25),
        "forest": (150, 0.05),
        "stepsizes": (0.0, 0.5),
    },
}
# What the paper tuned: RMSprop, Adam, metagrad h_0 and beta, decay.
TUNED = {"nav2d": (0.9, 0.8, 3, 0.001, 5), "minigolf": (0.3, 0.08, 0.3, 5, 2), "cartpole": (0.3, 0.3, 1, 0.1, 7.5)}


def both_scales():
    return [(name, scale) for name in list_presets() for scale in ("quick", "full")]


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


def test_every_environment_of_the_paper_has_a_preset():
    assert set(list_presets()) >= set(PAPER)


@pytest.mark.parametrize("name", PAPER)
def test_the_full_scale_is_the_papers(name):
    config, spec = load(name, "full"), PAPER[name]
    initial = config.initial
    assert config.env.name == name
    assert config.policy.name == "linear"
    first, second = (initial.mean, initial.variance) if initial.kind == "normal" else (initial.low, initial.high)
    assert (initial.kind, first, second) == spec["initial"]
    assert {len(first), len(second)} <= {1, spec["parameters"]}
    assert config.policy.options == {"sigma": spec["sigma"]}
    assert (config.rollout.num_episodes, config.rollout.horizon) == spec["n, H"]
    assert (config.rollout.discount, config.rollout.baseline, config.meta.meta_discount) == (0.99, "optimal", 1.0)
    assert (config.collect.method, config.collect.num_meta_episodes, config.meta.num_updates) == spec["collect"]
    assert config.fqi.regressor.name == "extra-trees"
    forest = build_regressor(config)
    assert (forest.trees, forest.min_samples_split) == spec["forest"]
    assert (config.meta.stepsize_low, config.meta.stepsize_high, config.meta.stepsize_scale) == (
        *spec["stepsizes"],
        "linear",
    )
    assert (config.fqi.double, config.fqi.lam, config.fqi.num_stepsizes, config.fqi.maximum) == (True, 1.0, 101, "grid")
    assert config.meta.observation == ("theta", "natural_gradient", "context")
    rule = build_mdp(config).rule
    solved = (rule.name, rule.damping, config.rollout.fisher, config.rollout.damping_kind)
    assert solved == (
        ("nga", 1e-3, "closed", "relative") if name == "swingup" else ("nga", 1e-2, "truncated", "absolute")
    )
    # The paper tuned on 20 tasks; fewer than about 50 leave the best fixed step to chance.
    assert (config.compare.num_tasks, config.compare.num_tuning_tasks, config.compare.num_resamples) == (100, 50, 10000)
    assert tuple(method.name for method in config.compare.methods) == METHODS


@pytest.mark.parametrize("scale", ["quick", "full"])
@pytest.mark.parametrize("name", TUNED)
def test_the_grids_contain_what_the_paper_tuned(name, scale):
    config = load(name, scale)
    grids = {method: spec.grid for method, spec in method_specs(config).items()}
    searched = (
        grids["rmsprop"]["stepsize"], grids["adam"]["stepsize"], *grids["metagrad"].values(), grids["decay"]["alpha"]
    )  # fmt: skip
    assert all(value in grid for value, grid in zip(TUNED[name], searched, strict=True))
    assert set(grids["hoof"]["max_divergence"]) >= {1e-4, 1e-3, 1e-2, 2e-2, 5e-2}


@pytest.mark.parametrize(("name", "scale"), both_scales())
def test_every_preset_constructs_and_survives_json(name, scale):
    config = load(name, scale)
    stored = json.loads(json.dumps(config.to_dict(), allow_nan=False))
    assert parse(stored) == config
    assert stored == config.to_dict()
    for spec in method_specs(config).values():
        if spec.name == "metagrad":  # its steps are clipped, a schedule's are not
            bounds = spec.steps or Range(config.meta.stepsize_low, config.meta.stepsize_high)
            assert bounds.low <= min(spec.grid["stepsize"]) <= max(spec.grid["stepsize"]) <= bounds.high
        for values in spec.grid.values():
            assert list(values) == sorted(set(values))


@pytest.mark.parametrize("name", PAPER)
def test_the_quick_scale_is_much_cheaper_and_the_same_experiment(name):
    quick, full = load(name, "quick"), load(name, "full")
    cheap, dear = (budget_of(Run(Path(), config)).steps for config in (quick, full))
    assert cheap < 5e9  # a few minutes at 25 million steps a second, padding included
    assert cheap < dear / 2
    for section in ("env", "policy", "initial", "meta", "rollout"):
        assert getattr(quick, section) == getattr(full, section)


def test_cheetah_collects_all_learners_at_once_and_pads_none_at_either_scale():
    full, quick = (load("halfcheetah", scale).collect for scale in ("full", "quick"))
    assert full.block_size == full.num_meta_episodes == 200
    assert quick.num_meta_episodes % quick.block_size == 0
    assert load("halfcheetah", "full").rollout.block_size == 20
    assert load("nav2d", "full").collect.block_size is None


def test_every_field_has_a_sentence():
    for prefix, section in sections():
        assert section.__doc__
        for name, field in section.model_fields.items():
            assert field.description, prefix + name
            assert field.description.endswith("."), prefix + name


def test_overrides_take_toml_values_or_bare_text():
    overrides = ["fqi.regressor.trees=7", "fqi.double = false", "seed=3", "meta.rule.damping=1e-2"]
    overrides += ['compare.methods=["adam", "metafqi"]', "compare.methods.adam.grid.stepsize=[0.5]"]
    overrides += ['initial={kind = "uniform", low = -1, high = [0, 1, 2]}', "env.options.dt=0.01"]
    overrides += ["env.options.force=continuous", "policy=mlp", "policy.hidden=[4, 4]", "policy.sigma=1.0"]
    config = load("cartpole", "quick", overrides)
    assert (config.fqi.regressor.options["trees"], config.fqi.double, config.seed) == (7, False, 3)
    assert [method.name for method in config.compare.methods] == ["adam", "metafqi"]
    assert config.compare.methods[0].grid == {"stepsize": (0.5,)}
    assert config.env.options == {"force": "continuous", "dt": 0.01}
    assert (config.initial.low, config.initial.high, config.initial.mean) == ((-1.0,), (0.0, 1.0, 2.0), None)
    assert (config.meta.rule.name, config.meta.rule.options) == ("nga", {"damping": 1e-2})
    assert (config.policy.name, config.policy.options) == ("mlp", {"hidden": (4, 4), "sigma": 1.0})


def test_the_default_methods_need_no_grid():
    data = load("nav2d").to_dict()
    del data["compare"]["methods"]
    specs = method_specs(parse(data))
    assert list(specs) == ["metafqi", "fixed"]
    assert specs["fixed"].grid["stepsize"] == pytest.approx([0.8 * i for i in range(1, 11)])


def test_methods_of_ones_own():
    own = 'compare.methods=[{name="slow", controller={name="hoof", num_candidates=5}, grid={max_divergence=[0.1]}, '
    own += 'rule="adam", label="Slow", colour="#112233"}, {name="adam", rule={name="adam", epsilon=0.5}}]'
    specs = method_specs(load("nav2d", "quick", [own]))
    slow = specs["slow"]
    assert (slow.label, slow.colour, slow.rule, slow.controller) == ("Slow", "#112233", "adam", "hoof")
    assert slow.build_controller({"max_divergence": 0.1}).num_candidates == 5
    mdp = build_mdp(load("nav2d"))
    assert specs["adam"].build_rule(mdp).epsilon == 0.5
    assert specs["adam"].label == "Adam"


def test_every_baseline_can_be_named_alone():
    names = sorted(set(baselines.names()) - {"decay", "rmsprop", "adam", "metagrad", "geometric-decay"})
    config = load("nav2d", "quick", ["compare.methods=" + json.dumps(names)])
    assert list(method_specs(config)) == names


@pytest.mark.parametrize("name", list_presets())
def test_a_preset_printed_as_toml_is_the_same_experiment(name, tmp_path):
    config = load(name, "quick")
    path = tmp_path / "own.toml"
    path.write_text(to_toml(config))
    assert load(path) == config
    for _, section in sections():
        for field in section.model_fields.values():
            if section not in (schema.ControllerSection, schema.MethodSection):
                assert field.description in path.read_text()


def test_files_have_the_form_of_presets(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text(to_toml(load("minigolf", "full")))
    assert load(own) == load(own, "full") == load("minigolf", "full")
    expected = f"scale: 'quick' needs a table [quick] in {own}, which has none; give --scale full."
    assert error_of(load, own, "quick") == expected
    own.write_text('extends = "minigolf"\nquick = 3\n')
    assert error_of(load, own, "quick") == "quick: 3 must be a table of settings."


def test_files_extend_presets_bases_and_other_files(tmp_path):
    """Tables merge key by key, methods by name; a file is found relative to the one that extends it."""
    (tmp_path / "inner").mkdir()
    own, inner = tmp_path / "own.toml", tmp_path / "inner" / "base.toml"
    inner.write_text('extends = "pendulum-ppo"\nseed = 3\n[collect]\nlabels = 5\n[quick]\nseed = 4\n')
    own.write_text('extends = "inner/base.toml"\n[[compare.methods]]\nname = "fixed"\nlabel = "mine"\n')
    full, preset = load(own, "full"), load("pendulum-ppo", "full")
    assert (full.seed, load(own).seed, full.collect.labels) == (3, 4, 5)
    assert full.collect.num_meta_episodes == preset.collect.num_meta_episodes
    assert full.compare.names == preset.compare.names
    assert [method.label for method in full.compare.methods][:2] == ["learned rate", "mine"]
    assert full.compare.methods[1].grid == preset.compare.methods[1].grid
    for name in ("acrobot", "mountaincar"):
        own.write_text(f'extends = "ppo"\nenv.name = "{name}"\n')
        assert error_of(load, own, "full").startswith("rollout.horizon: is missing")  # a base is not complete


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('extends = "own.toml"', r"extends: .*own\.toml extends .*own\.toml, which is a circle\."),
        (
            'extends = "other.toml"',
            r"extends: .*own\.toml extends .*other\.toml extends .*own\.toml, which is a circle\.",
        ),
        (
            'extends = "ppoo"',
            r"extends: 'ppoo' does not exist, there are .*, and files that end in .toml\. Did you mean 'ppo'\?",
        ),
        ("extends = 3", r"extends: 3 must be the name of a preset or the path of a .toml file\."),
        ('extends = "gone.toml"', r"File .*gone\.toml is missing\."),
    ],
)
def test_what_cannot_be_extended_is_one_sentence(tmp_path, text, sentence):
    (tmp_path / "own.toml").write_text(text)
    (tmp_path / "other.toml").write_text('extends = "own.toml"')
    found = error_of(load, tmp_path / "own.toml")
    assert re.fullmatch(sentence, found)
    assert is_one_sentence(found)
    assert error_of(load, "ppo").startswith("preset: 'ppo' does not exist")  # a base is not a preset


def test_unreadable_files_are_named(tmp_path):
    path = tmp_path / "own.toml"
    assert error_of(load, path) == f"File {path} is missing."
    for content in (b"seed = ", b"\xff", b"a = " + b"[" * 100_000, b"seed = 1" + b"0" * 5000):
        path.write_bytes(content)
        message = error_of(load, path)
        assert message.startswith(f"File {path} is not valid TOML: ")
        assert is_one_sentence(message)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("fqi.tree=3", "fqi.tree: is not a setting, did you mean 'fqi.regressor.trees'?"),
        ("fqu.lam=3", "fqu: is not a setting, did you mean 'fqi'?"),
        ("trees=3", "trees: is not a setting, did you mean 'fqi.regressor.trees'?"),
        ("rollout.damping=1", "rollout.damping: is not a setting, did you mean 'meta.rule.damping'?"),
        ("fqi.lam=0.5", "fqi.lam: 0.5 must be greater than 0.5."),
        ("fqi.lam=1.01", "fqi.lam: 1.01 must be less than or equal to 1."),
        ("fqi.iterations=3.5", "fqi.iterations: 3.5 must be a whole number."),
        ("fqi.iterations=true", "fqi.iterations: True must be a whole number."),
        ("fqi.double=1", "fqi.double: 1 must be true or false."),
        ("policy.sigma=inf", "policy: {'sigma': inf} must map names to true, false, numbers, text or lists of them,"),
        ("policy=3", "policy: 3 must be a table of settings."),
        ("rollout={}", "rollout.horizon: is missing, it must be set."),
        ("env.name=", "env.name: '' must have at least 1 character."),
        ("env.name=7", "env.name: 7 must be text."),
        ("env.options=3", "env.options: 3 must be a table."),
        (
            "env.options.a={b=1}",
            "env.options: {'a': {'b': 1}} must map names to true, false, numbers, text or lists of them, 'a' does not.",
        ),
        ("meta.stepsize_low=8", "meta.stepsize_low: 8.0 must lie below stepsize_high = 8.0, and both be finite."),
        ("meta.stepsize_high=1e39", "meta.stepsize_high: 1e+39 must be less than or equal to 1000000000."),
        ("fqi.num_stepsizes=10001", "fqi.num_stepsizes: 10001 must be less than or equal to 10000."),
        ("compare.num_tasks=1", "compare.num_tasks: 1 must be greater than or equal to 2."),
        ("compare.num_tuning_tasks=1", "compare.num_tuning_tasks: 1 must be greater than or equal to 2."),
        ("meta.stepsize_scale=log", "meta.stepsize_low: 0.0 must be positive on a log scale."),
        ('meta.observation=["theta","theta"]', "meta.observation: ['theta', 'theta'] must name one feature or more,"),
        ("meta.observation=[]", "meta.observation: [] must name one feature or more, each once."),
        ("meta.observation=5", "meta.observation: 5 must be a list."),
        ("initial.variance=-1", "initial.variance: [-1.0] must not be negative."),
        ("initial.low=0", "initial.low: [0.0] must not be set where kind is 'normal'."),
        ('initial={kind="uniform",low=0}', "initial.high: None must be set where kind is 'uniform'."),
        (
            'initial={kind="uniform",low=[0,0.5],high=[1,0]}',
            "initial.low: [0.0, 0.5] must not exceed high, which is [1.0, 0.0].",
        ),
        (
            "initial={mean=[0,0],variance=[1,1,1]}",
            "initial.variance: [1.0, 1.0, 1.0] must have one number, or as many as",
        ),
        ("compare.methods.adam.grid.stepsize=[1, 0]", "compare.methods[7].grid.stepsize[1]: 0 must be greater than 0."),
        ('compare.methods=["adam","adam"]', "compare.methods: ['adam', 'adam'] must name each method once."),
        ('compare.methods=["../x"]', "compare.methods[0].name: '../x' must be letters, digits and"),
        ("compare.methods.adam.color=red", "compare.methods[7].color: is not a setting, did you mean"),
        ("collect.block_size=0", "collect.block_size: 0 must be greater than or equal to 1."),
        ("collect.block_size=all", "collect.block_size: 'all' must be a whole number."),
        ("seed=-1", "seed: -1 must be greater than or equal to 0."),
        ("seed", "--set: 'seed' must have the form section.key=value."),
        ("=3", "--set: '=3' lacks the name of a setting, as in section.key=value."),
        ("fqi.=3", "--set: 'fqi.=3' lacks the name of a setting, as in section.key=value."),
        ("fqi..lam=3", "--set: 'fqi..lam=3' lacks the name of a setting, as in section.key=value."),
        (
            "compare.methods=[fixd]",
            "--set: 'compare.methods=[fixd]' is no TOML value, text in a list or table needs quotes, as in key=[\"text\"].",
        ),
        ("initial={kind=uniform}", "--set: 'initial={kind=uniform}' is no TOML value, text in a list or table needs"),
        ("compare.methods=[]", "compare.methods: [] must have at least 1 item."),
        ("quick.fqi.lam=1", "quick: is not a setting, did you mean"),
    ],
)
def test_wrong_settings_are_named_with_what_is_allowed(override, message):
    found = error_of(load, "nav2d", "quick", [override])
    assert found.startswith(message)
    assert is_one_sentence(found)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("policy.name=tree", "policy.name: 'tree' is not registered, allowed are actor-critic, linear, mlp."),
        ("policy.hiden=[8]", "policy: 'hiden' is not an option of linear, allowed are sigma."),
        ("policy={}", "policy.sigma: is missing, linear cannot be built without it."),
        ("policy.sigma=wide", "policy.sigma: 'wide' must be a number."),
        (
            "meta.rule=ngaa",
            "meta.rule: 'ngaa' is not registered, allowed are a2c, adam, gradient, menu, nga, ppo, rmsprop, trpo. Did you",
        ),
        ("meta.rule.dampin=0.1", "meta.rule: 'dampin' is not an option of nga, allowed are damping. Did you mean"),
        ("meta.rule.damping=2.0", "meta.rule.damping: 2.0 must lie in (0, 1)."),
        ('meta.observation=["thet"]', "meta.observation: 'thet' is not registered, allowed are"),
        ("fqi.regressor=tree", "fqi.regressor: 'tree' is not registered, allowed are extra-trees, "),
        (
            'compare.methods=["adamw"]',
            "compare.methods: 'adamw' is not registered, allowed are adam, cosine-annealing,",
        ),
        (
            'compare.methods=[{name="decay", grid={alpha=[]}}]',
            "compare.methods.decay.grid.alpha: [] must hold at least",
        ),
        (
            "compare.methods.fixed.grid.stepsize=[]",
            "compare.methods.fixed.grid.stepsize: [] must hold at least one number.",
        ),
        (
            'compare.methods=[{name="fixed", grid={alpha=[1]}}]',
            "compare.methods.fixed.controller: 'alpha' is not an option of fixed, allowed are stepsize.",
        ),
        (
            "models.metastep.fqi.regressor.tress=3",
            "fqi.regressor: 'tress' is not an option of extra-trees, allowed are trees, min_samples_split, state_first.",
        ),
        ("initial.mean=[0,1]", "initial.mean: [0.0, 1.0] must hold one number, or one for each of the 6 parameters."),
        ("rollout={horizon=5}", "rollout.num_episodes: is missing, it must be set where the rule is 'nga'."),
        ("rollout.num_envs=4", "rollout.num_envs: 4 must not be set where the rule is 'nga', which does not use it."),
        ("policy=actor-critic", "policy.name: 'actor-critic' must not be set where the rule is 'nga', which learns"),
        ("meta.rule=ppo", "policy.name: 'linear' has no critic, take 'actor-critic' where the rule is 'ppo'."),
        ("initial={kind='orthogonal'}", "initial.kind: 'orthogonal' is for policies with an actor and a critic,"),
        (
            "meta.observation=training",
            "meta.observation: 'last_rate' is not known where the rule is 'nga', allowed are",
        ),
    ],
)
def test_parts_that_do_not_exist_are_named_before_anything_runs(override, message):
    check_refused("nav2d", override, message)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "rollout.num_episodes=3",
            "rollout.num_episodes: 3 must not be set where the rule is 'ppo', which does not use",
        ),
        ("rollout.fisher=cg", "rollout.fisher: 'cg' must not be set where the rule is 'ppo'"),
        (
            "meta.rule.minibatch_size=300",
            "meta.rule.minibatch_size: 300 must divide the 3200 steps of a batch, which are",
        ),
        ("meta.stepsize_scale=divergence", "meta.stepsize_scale: 'divergence' needs a rule that moves along a line"),
        (
            "meta.observation=paper",
            "meta.observation: 'natural_gradient' is not known where the rule is 'ppo', allowed are",
        ),
        ("policy={name='linear', sigma=1.0}", "initial.kind: 'orthogonal' is for policies with an actor and a critic"),
        ('compare.methods=["rmsprop"]', "compare.methods.rmsprop.grid.stepsize: is missing, it must be a list of"),
        (
            'compare.methods=[{name="x", rule="adam", controller={name="fixed", stepsize=1.0}}]',
            "meta.rule: 'adam' learns from whole episodes",
        ),
    ],
)
def test_what_does_not_go_with_batches_of_steps_is_named(override, message):
    check_refused("pendulum-ppo", override, message)


def check_refused(preset: str, override: str, message: str) -> None:
    found = error_of(lambda: Run(Path(), load(preset, "quick", [override])).require_buildable())
    assert found.startswith(message)
    assert is_one_sentence(found)


def test_baselines_of_one_clip_range_stand_beside_a_choice_of_several():
    own = '{name="fixed", rule="ppo", grid={stepsize=[0.001]}}'
    config = load("pendulum-ppo", "quick", ["meta.rule.clip_range=[0.1,0.2]", f"compare.methods=['metafqi', {own}]"])
    specs = method_specs(config)
    mdp = build_mdp(config)
    assert specs["metafqi"].on(mdp).rule.directions == ("clip 0.1", "clip 0.2")
    assert specs["fixed"].on(mdp).rule.directions == ()


def test_a_missing_section_names_its_keys():
    data = load("nav2d").to_dict()
    del data["collect"]
    assert error_of(parse, data) == "collect: is missing, it must be a table [collect] with num_meta_episodes."


def test_an_override_into_a_value_is_refused():
    found = error_of(load, "nav2d", "quick", ["seed=1", "seed.a=1"])
    assert found == "--set: 'seed.a=1' goes into seed, which is a value and not a table."


def test_unknown_presets_and_scales_are_named():
    listed = f"{', '.join(list_presets())}, and files that end in .toml."
    assert error_of(load, "cartpol") == f"preset: 'cartpol' does not exist, there are {listed} Did you mean 'cartpole'?"
    assert error_of(load, "nosuch") == f"preset: 'nosuch' does not exist, there are {listed}"
    assert error_of(load, "nav2d", "large") == "scale: 'large' must be one of quick, full."


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
    | st.sampled_from([*WORDS, *METHODS])
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


@settings(max_examples=300)
@given(preset=st.sampled_from(list_presets()), changes=CHANGES)
def test_any_configuration_constructs_or_gives_one_sentence(preset, changes):
    data = copy.deepcopy(load(preset).to_dict())
    for key, value, remove in changes:
        put(data, key, value, remove)
    check_outcome(parse, data)


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
    check_outcome(load, preset, "quick", overrides)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode(errors="replace")))
def test_any_file_gives_one_sentence(tmp_path, content):
    path = tmp_path / "own.toml"
    path.write_bytes(content)
    assert is_one_sentence(error_of(load, path))


VALID = {
    "seed": st.integers(0, 2**32 - 1),
    "policy.sigma": st.floats(1e-6, 1e6),
    "meta.rule": st.sampled_from(["nga", "rmsprop"]) | st.just({"name": "nga", "damping": 0.1}),
    "rollout.num_episodes": st.integers(1, 10**9),
    "rollout.discount": st.floats(0, 1, width=32, allow_subnormal=False),
    "rollout.baseline": st.sampled_from(["none", "mean", "optimal"]),
    "meta.stepsize_high": st.floats(0.1, 1e6),
    "meta.stepsize_low": st.floats(0, 0.09, allow_subnormal=False).filter(fits_float32),
    "meta.observation": st.permutations(features.names()).flatmap(lambda parts: st.just(parts[:2])),
    "collect.block_size": st.none() | st.integers(1, 10**9),
    "fqi.lam": st.floats(0.5, 1.0, exclude_min=True),
    "fqi.regressor": st.floats(0, 1, exclude_min=True).map(lambda share: {"min_samples_split": share}),
    "fqi.maximum": st.sampled_from(["grid", "continuous"]),
    "compare.methods": st.lists(st.sampled_from(METHODS), min_size=1, unique=True),
    "initial": st.floats(0, 1, width=32, allow_subnormal=False).map(lambda value: {"mean": value, "variance": value})
    | st.floats(0, 1, width=32, allow_subnormal=False).map(
        lambda value: {"kind": "uniform", "low": [-value, -1], "high": value + 1}
    ),
}


@settings(max_examples=200)
@given(preset=st.sampled_from(sorted(PAPER)), changes=st.fixed_dictionaries({}, optional=VALID))
def test_valid_configurations_construct(preset, changes):
    data = load(preset).to_dict()
    for key, value in changes.items():
        put(data, key, value, remove=False)
    check_outcome(lambda: parse(data))
    assert parse(data).to_dict()["seed"] == data["seed"]
