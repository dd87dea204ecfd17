"""Presets, files, overrides and what is said about wrong ones."""

import json
import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from metastep._core.errors import InputError
from metastep._core.settings import Entry
from metastep.evaluation import baselines
from metastep.experiments import schema
from metastep.experiments.config import Experiment, build_mdp, build_regressor, list_presets, load, parse, variant
from metastep.experiments.reference import to_toml
from metastep.experiments.run import Run
from metastep.experiments.stages import method_specs
from metastep.fqi import regressors
from metastep.rules.spaces import Range

METHODS = ("metastep", "metafqi", "fixed", "fixed-kl", "kl-adaptive", "decay", "rmsprop", "adam", "hoof", "metagrad")
METHODS += ("single", "oracle", "menu-oracle")
# The paper's settings: parameters of the linear policy, first policies (what the paper leaves open as it is read: a normal's
# second number is a standard deviation), sigma, (n, H), data, forest, largest step.
PAPER = {
    "nav2d": (6, ("normal", (0.0,), (0.01,)), 1.001, (200, 10), ("trajectory", 4000, 20), (50, 0.01), 8.0),
    "minigolf": (
        *(2, ("uniform", (-2.0, -1.0), (3.5, 2.0)), 0.1, (400, 20)),
        *(("generative", 10000, 20), (50, 0.01), 1.0),
    ),
    "cartpole": (5, ("normal", (0.0,), (0.0001,)), 1.001, (100, 100), ("trajectory", 3200, 15), (150, 0.05), 10.0),
    "swingup": (5, ("normal", (0.0,), (0.01,)), 1.001, (100, 200), ("trajectory", 300, 25), (150, 0.05), 0.5),
}
# What the paper tuned: RMSprop, Adam, metagrad h_0 and beta, decay.
TUNED = {"nav2d": (0.9, 0.8, 3, 0.001, 5), "minigolf": (0.3, 0.08, 0.3, 5, 2), "cartpole": (0.3, 0.3, 1, 0.1, 7.5)}


def sections(section: type[BaseModel] = Experiment, prefix: str = ""):
    """Every section of the schema with the dotted prefix of its fields."""
    yield prefix, section
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from sections(field.annotation, f"{prefix}{name}.")


def error_of(call, *args) -> str:
    with pytest.raises(InputError) as error:
        call(*args)
    assert re.fullmatch(r"[^\n]{1,500}[.?]", str(error.value))
    return str(error.value)


@pytest.mark.parametrize("name", PAPER)
def test_the_full_scale_is_the_papers(name):
    config, (parameters, initial, sigma, batch, collected, forest, high) = load(name, "full"), PAPER[name]
    own, meta, fqi, regressor = config.initial, config.meta, config.fqi, build_regressor(config)
    first, second = (own.mean, own.variance) if own.kind == "normal" else (own.low, own.high)
    assert (own.kind, first, second) == initial
    assert {len(first), len(second)} <= {1, parameters}
    assert (config.env.name, config.policy.name, config.policy.options) == (name, "linear", {"sigma": sigma})
    assert (config.rollout.num_episodes, config.rollout.horizon) == batch
    assert (config.rollout.discount, config.rollout.baseline, meta.meta_discount) == (0.99, "optimal", 1.0)
    assert (config.collect.method, config.collect.num_meta_episodes, meta.num_updates) == collected
    assert (fqi.regressor.name, regressor.trees, regressor.min_samples_split) == ("extra-trees", *forest)
    assert (meta.stepsize_low, meta.stepsize_high, meta.stepsize_scale) == (0.0, high, "linear")
    assert (fqi.double, fqi.lam, fqi.num_stepsizes, fqi.maximum) == (True, 1.0, 101, "grid")
    assert meta.observation == ("theta", "natural_gradient", "context")
    rule = build_mdp(config).rule
    solved = (rule.name, rule.damping, config.rollout.fisher, config.rollout.damping_kind)
    exact = ("nga", 1e-3, "closed", "relative")
    assert solved == (exact if name == "swingup" else ("nga", 1e-2, "truncated", "absolute"))
    # The paper tuned on 20 tasks; fewer than about 50 leave the best fixed step to chance.
    assert (config.compare.num_tasks, config.compare.num_tuning_tasks, config.compare.num_resamples) == (100, 50, 10000)
    assert config.compare.names == METHODS


@pytest.mark.parametrize("scale", ["quick", "full"])
@pytest.mark.parametrize("name", TUNED)
def test_the_grids_contain_what_the_paper_tuned(name, scale):
    grids = {method: spec.grid for method, spec in method_specs(load(name, scale)).items()}
    steps = (grids["rmsprop"]["stepsize"], grids["adam"]["stepsize"])
    searched = (*steps, *grids["metagrad"].values(), grids["decay"]["alpha"])
    assert all(value in grid for value, grid in zip(TUNED[name], searched, strict=True))
    assert set(grids["hoof"]["max_divergence"]) >= {1e-4, 1e-3, 1e-2, 2e-2, 5e-2}


@pytest.mark.parametrize("scale", ["quick", "full"])
@pytest.mark.parametrize("name", list_presets())
def test_every_preset_constructs_and_survives_json_and_toml(name, scale, tmp_path):
    config = load(name, scale)
    stored = json.loads(json.dumps(config.to_dict(), allow_nan=False))
    assert parse(stored) == config
    assert stored == config.to_dict()
    for spec in method_specs(config).values():
        if spec.name == "metagrad":  # its steps are clipped, a schedule's are not
            bounds = spec.steps or Range(config.meta.stepsize_low, config.meta.stepsize_high)
            assert bounds.low <= min(spec.grid["stepsize"]) <= max(spec.grid["stepsize"]) <= bounds.high
        assert all(list(values) == sorted(set(values)) for values in spec.grid.values())
    path = tmp_path / "own.toml"
    path.write_text(to_toml(config))
    assert load(path) == load(path, "full") == config
    for prefix, section in sections():
        for field in section.model_fields.values():
            assert (field.description or "").endswith("."), prefix
            if section is not schema.MethodSection:
                assert field.description in path.read_text()


def test_overrides_take_toml_values_or_bare_text():
    overrides = ["fqi.regressor.trees=7", "fqi.double = false", "seed=3", "meta.rule.damping=1e-2"]
    overrides += ['compare.methods=["adam", "metafqi"]', "compare.methods.adam.grid.stepsize=[0.5]"]
    overrides += ['initial={kind = "uniform", low = -1, high = [0, 1, 2]}', "env.options.dt=0.01"]
    overrides += ["env.options.force=continuous", "policy=mlp", "policy.hidden=[4, 4]", "policy.sigma=1.0"]
    config = load("cartpole", "quick", overrides)
    assert (config.fqi.regressor.options["trees"], config.fqi.double, config.seed) == (7, False, 3)
    assert config.compare.names == ("adam", "metafqi")
    assert config.compare.methods[0].grid == {"stepsize": (0.5,)}
    assert config.env.options == {"force": "continuous", "dt": 0.01}
    assert (config.initial.low, config.initial.high, config.initial.mean) == ((-1.0,), (0.0, 1.0, 2.0), None)
    assert (config.meta.rule.name, config.meta.rule.options) == ("nga", {"damping": 1e-2})
    assert (config.policy.name, config.policy.options) == ("mlp", {"hidden": (4, 4), "sigma": 1.0})


def test_methods_by_default_by_name_and_of_ones_own():
    data = load("nav2d").to_dict()
    del data["compare"]["methods"]
    specs = method_specs(parse(data))
    assert list(specs) == ["metafqi", "fixed"]
    assert specs["fixed"].grid["stepsize"] == pytest.approx([0.8 * i for i in range(1, 11)])
    names = sorted(set(baselines.names()) - {"decay", "rmsprop", "adam", "metagrad", "geometric-decay"})
    assert list(method_specs(load("nav2d", "quick", ["compare.methods=" + json.dumps(names)]))) == names
    own = 'compare.methods=[{name="slow", controller={name="hoof", num_candidates=5}, grid={max_divergence=[0.1]}, '
    own += 'rule="adam", label="Slow", colour="#112233"}, {name="adam", rule={name="adam", epsilon=0.5}}]'
    specs = method_specs(load("nav2d", "quick", [own]))
    slow = specs["slow"]
    assert (slow.label, slow.colour, slow.rule, slow.controller) == ("Slow", "#112233", "adam", "hoof")
    assert slow.build_controller({"max_divergence": 0.1}).num_candidates == 5
    assert specs["adam"].on(build_mdp(load("nav2d"))).rule.epsilon == 0.5
    assert specs["adam"].label == "Adam"


@pytest.mark.parametrize("scale", ["quick", "full"])
@pytest.mark.parametrize("name", [name for name in list_presets() if name.endswith("-update")])
def test_the_whole_update_can_be_searched_in_the_loop_of_stable_baselines3(name, scale):
    run = Run(Path(), load(name, scale, ["reading=sb3"])).require_buildable()
    mdp = run.of_model("update").mdp
    assert (mdp.sampler.num_envs, mdp.sampler.num_steps, mdp.rule.epochs, mdp.rule.minibatch_size) == (1, 2048, 10, 64)
    assert dict(zip(mdp.space.names, mdp.space.high, strict=True))["gradient_steps"] == 10 * 2048 // 64
    for method in ("fixed", "linear-annealing", "cosine-annealing"):
        assert 3e-4 in run.methods[method].grid["stepsize"]  # the default


def test_baselines_of_one_clip_range_stand_beside_a_choice_of_several():
    own = '{name="fixed", rule="ppo", grid={stepsize=[0.001]}}'
    config = load("pendulum-ppo", "quick", ["meta.rule.clip_range=[0.1,0.2]", f"compare.methods=['metafqi', {own}]"])
    specs, mdp = method_specs(config), build_mdp(config)
    assert specs["metafqi"].on(mdp).rule.directions == ("clip 0.1", "clip 0.2")
    assert specs["fixed"].on(mdp).rule.directions == ()


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
    own.write_text('extends = "nav2d"\ncompare.methods = ["metafqi", "fixed"]\n')
    for scale in ("quick", "full"):  # a list of names chooses at both scales, and the methods keep their settings
        found, preset = load(own, scale).compare, {each.name: each for each in load("nav2d", scale).compare.methods}
        assert list(found.methods) == [preset["metafqi"], preset["fixed"]]
    own.write_text('extends = "ppo"\nenv.name = "acrobot"\n')
    assert error_of(load, own, "full").startswith("rollout.horizon: is missing")  # a base is not complete


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b'extends = "own.toml"', r"extends: .*own\.toml extends .*own\.toml, which is a circle\."),
        (b'extends = "other.toml"', r"extends: .*own\.toml extends .*other\.toml extends .*own\.toml, which is a circle\."),
        (b'extends = "ppoo"', r"extends: 'ppoo' is neither a preset nor a file that ends in .toml, .* mean 'ppo'\?"),
        (b"extends = 3", r"extends: 3 must be the name of a preset or the path of a .toml file\."),
        (b'extends = "gone.toml"', r"File .*gone\.toml is missing\."),
        (b'extends = "minigolf"\nquick = 3\n', r"quick: 3 must be a table of settings\."),
        (b'extends = "other.toml"\n[a', r"File .*own\.toml is not valid TOML: .*\."),
        (b"\xff", r"File .*own\.toml is not valid TOML: .*\."),
        (b"a = " + b"[" * 100_000, r"File .*own\.toml is not valid TOML: .*\."),
        (b"seed = 1" + b"0" * 5000, r"File .*own\.toml is not valid TOML: .*\."),
    ],
    ids=str,
)  # fmt: skip
def test_files_that_cannot_be_used_are_one_sentence(tmp_path, content, sentence):
    (tmp_path / "own.toml").write_bytes(content)
    (tmp_path / "other.toml").write_text('extends = "own.toml"')
    assert re.fullmatch(sentence, error_of(load, tmp_path / "own.toml"))


def test_unknown_presets_and_scales_are_named(tmp_path):
    sentence = error_of(load, "cartpol")
    assert sentence.startswith("preset: 'cartpol' is neither a preset nor a file that ends in .toml, allowed are")
    assert sentence.endswith(f"{', '.join(list_presets())}. Did you mean 'cartpole'?")
    assert error_of(load, "ppo").startswith("preset: 'ppo' is neither a preset")  # but a base, which is not complete
    assert error_of(load, "nav2d", "large") == "scale: 'large' must be one of quick, full."
    (tmp_path / "own.toml").write_text(to_toml(load("minigolf", "full")))
    assert error_of(load, tmp_path / "own.toml", "quick").startswith("scale: 'quick' needs a table [quick] in ")


NAV2D = {
    "fqi.tree=3": "fqi.tree: is not a setting, did you mean 'fqi.regressor.trees'?",
    "rollout.damping=1": "rollout.damping: is not a setting, did you mean 'meta.rule.damping'?",
    "quick.fqi.lam=1": "quick: is not a setting, did you mean",
    "fqi.lam=0.5": "fqi.lam: 0.5 must be greater than 0.5.",
    "fqi.iterations=true": "fqi.iterations: True must be a whole number.",
    "fqi.double=1": "fqi.double: 1 must be true or false.",
    "policy.sigma=inf": "policy.sigma: inf must be true, false, a number, text or a list of them.",
    "rollout={}": "rollout.horizon: is missing, it must be set.",
    "env.name=": "env.name: '' must have at least 1 character.",
    "env.options.a={b=1}": "env.options.a: {'b': 1} must be true, false, a number, text or a list of them.",
    "meta.stepsize_low=8": "meta.stepsize_low: 8.0 must lie below stepsize_high = 8.0, and both be finite.",
    "meta.stepsize_high=1e39": "meta.stepsize_high: 1e+39 must be less than or equal to 1000000000.",
    "meta.stepsize_scale=log": "meta.stepsize_low: 0.0 must be positive on a log scale.",
    'meta.observation=["theta","theta"]': "meta.observation: ['theta', 'theta'] must name one feature or more,",
    'initial={kind="uniform",low=[0,0.5],high=[1,0]}': "initial.low: [0.0, 0.5] must not exceed high, which is",
    "compare.methods.adam.grid.stepsize=[1, 0]": "compare.methods[7].grid.stepsize[1]: 0 must be greater than 0.",
    'compare.methods=["adam","adam"]': "compare.methods: ['adam', 'adam'] must name each method once.",
    'compare.methods=["../x"]': "compare.methods[0].name: '../x' must be letters, digits and",
    "collect.block_size=all": "collect.block_size: 'all' must be a whole number.",
    "seed": "--set: 'seed' must have the form section.key=value.",
    "seed.a=1": "seed: {'a': 1} must be a whole number.",
    "fqi..lam=3": "--set: 'fqi..lam=3' must have the form section.key=value.",
    "collect={}": "collect.num_meta_episodes: is missing, it must be set.",
    "reading=third": "reading: 'third' is no table [readings.NAME] of nav2d, which has first",
    "env.fixed_context=[1]": "env.fixed_context: got an array of shape (1, 1), expected (tasks, 2) with columns goal_x,",
    'compare.methods=[{name="metastep", model="none"}]': "models: 'none' is not one of this experiment's, metastep",
    "compare.methods=[fixd]": "--set: 'compare.methods=[fixd]' is no TOML value, text in a list or table needs quotes,",
    # What the parts themselves refuse.
    "policy.hiden=[8]": "policy: 'hiden' is not an option of linear, allowed are sigma.",
    "policy={}": "policy.sigma: is missing, linear cannot be built without it.",
    "policy.sigma=wide": "policy.sigma: 'wide' must be a number.",
    "meta.rule=ngaa": "meta.rule: 'ngaa' is not registered, allowed are a2c, adam, gradient, menu, nga, ppo, rmsprop,",
    "meta.rule.damping=2.0": "meta.rule.damping: 2.0 must be less than 1.",
    'compare.methods=["adamw"]': "compare.methods: 'adamw' is not registered, allowed are adam, bandit, cosine-annealing,",
    "compare.methods.fixed.grid.stepsize=[]": "compare.methods.fixed.grid.stepsize: [] must hold at least one number.",
    'compare.methods=[{name="fixed", grid={alpha=[1]}}]': "compare.methods.fixed.controller: 'alpha' is not an option of",
    "models.metastep.fqi.regressor.tress=3": "fqi.regressor: 'tress' is not an option of extra-trees, allowed are trees,",
    "initial.mean=[0,1]": "initial.mean: [0.0, 1.0] must hold 1 number, or 6, one for each parameter.",
    "rollout={horizon=5}": "rollout.num_episodes: is missing, it must be set where the rule is 'nga'.",
    "rollout.num_envs=4": "rollout.num_envs: 4 must not be set where the rule is 'nga', which does not use it.",
    "policy=actor-critic": "policy.name: 'actor-critic' must have no critic, which 'actor-critic' has, where the rule is 'nga'",
    "meta.rule=ppo": "policy.name: 'linear' must have a critic, which 'actor-critic' has, where the rule is 'ppo'.",
    "meta.observation=training": "meta.observation: 'last_rate' is not known where the rule is 'nga', allowed are",
    "models.metastep.meta.stepsize_hihg=1": "models.metastep.meta.stepsize_hihg: is not a setting, did you",
    "models.metastep.meta.stepsize_low=0.0": "models.metastep.meta.stepsize_low: 0.0 must be positive on",
    "compare.methods.fixed.stepsize_scale=log": "compare.methods.fixed: meta.stepsize_low: 0.0 must be",
}
PENDULUM_PPO = {
    "rollout.num_episodes=3": "rollout.num_episodes: 3 must not be set where the rule is 'ppo', which does not use",
    "meta.rule.minibatch_size=300": "meta.rule.minibatch_size: 300 must divide the 3200 steps of a batch, which are",
    "meta.stepsize_scale=divergence": "meta.stepsize_scale: 'divergence' needs a rule that moves along a line",
    "meta.observation=paper": "meta.observation: 'natural_gradient' is not known where the rule is 'ppo', allowed are",
    "policy={name='linear', sigma=1.0}": "initial.kind: 'orthogonal' needs an actor and a critic",
    'compare.methods=["rmsprop"]': "compare.methods.rmsprop.grid.stepsize: is missing, it must be a list of",
    'compare.methods=[{name="x", rule="adam", controller={name="fixed", stepsize=1.0}}]': "meta.rule: 'adam' learns from",
}
SEARCH = {
    "search.strategy='hill'": "search.strategy: 'hill' must be 'open-es', 'cma-es', 'snes' or 'pgpe'",
    "search.generation=4": "search.generation: is not a setting",
    "models.update.meta.choices.momentum={}": "meta.choices: 'momentum' must be a hyperparameter of the rule 'ppo', grad",
    "models.update.meta.choices.gradient_steps.high=65.0": "gradient_steps: 65 must not exceed 64",
    "search.start.momentum=1.0": "search.start: 'momentum' is not chosen here, allowed are stepsize",
}
WRONG = {"nav2d": NAV2D, "pendulum-ppo": PENDULUM_PPO, "pendulum-update": SEARCH}


@pytest.mark.parametrize(
    ("preset", "override", "message"), [(preset, *case) for preset, cases in WRONG.items() for case in cases.items()]
)
def test_wrong_settings_and_parts_are_named_with_what_is_allowed(preset, override, message):
    found = error_of(lambda: Run(Path(), load(preset, "quick", ["seed=1", override])).require_buildable())
    assert found.startswith(message)


def test_a_missing_section_names_its_keys():
    for section, key in (("collect", "num_meta_episodes"), ("selection", "num_tasks")):
        data = load("nav2d").to_dict()
        del data[section]
        assert error_of(parse, data) == f"{section}: is missing, it must be a table with {key}."


def test_another_regressor_brings_its_own_options_in_further_models(monkeypatch):
    monkeypatch.setitem(regressors.REGISTRY._entries, "plain", Entry(lambda: regressors.ExtraTrees(), "plain", ""))
    config = load("minigolf", "quick", ['fqi.regressor={name="plain"}'])
    assert variant(config, "metastep").fqi.regressor == config.fqi.regressor
    assert variant(config, "metastep").fqi.iterations == variant(load("minigolf", "quick"), "metastep").fqi.iterations
    Run(Path(), config).require_buildable()
