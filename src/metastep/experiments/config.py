"""Load configurations from presets and files, and build the objects that a configuration describes.

A preset is a TOML file whose tables are the sections of `Experiment`, at full scale, which is the paper's; its table `[quick]`
overrides some settings for a run of a minute or two. A table `[readings.NAME]`, an interpretation of the paper, overrides
settings if `--set reading=NAME` selects it. `extends = "NAME"` merges the file over a preset, a base of presets or another file.
Users' own files have the same form.
"""

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from pydantic import ValidationError

from metastep import envs, features, policies, rules
from metastep._core.errors import InputError, not_registered, shown, with_all
from metastep._core.storage import read_bytes
from metastep.experiments.reference import sentence
from metastep.experiments.schema import Experiment
from metastep.fqi import MetaFQI, regressors
from metastep.fqi.regressors import Regressor
from metastep.mdp import ActorCriticMDP, EpisodicMetaMDP, InitialPolicy, MetaMDP
from metastep.rules.actor_critic import Sampler
from metastep.rules.actor_critic.sampler import restartable
from metastep.rules.spaces import HyperparameterSpace, MenuSpace
from metastep.simulation.engine import start_episode
from metastep.simulation.gradients import Estimator
from metastep.simulation.rollouts import Rollout

Scale = Literal["quick", "full"]

_PRESETS = Path(__file__).parent / "presets"
# Settings of rollouts that are used only by rules that learn from steps, or only by those that learn from whole episodes.
_OF_STEPS = ("num_envs", "num_steps", "hold")
_OF_EPISODES = ("num_episodes", "baseline", "fisher", "damping_kind", "cg_iterations")


def list_presets() -> tuple[str, ...]:
    """Return the names of the experiments that come with the library."""
    return tuple(sorted(file.stem for file in _PRESETS.glob("*.toml")))


def load(source: str | Path, scale: Scale | None = None, overrides: Sequence[str] = ()) -> Experiment:
    """Return the configuration of a preset, or of a file whose name ends in .toml, with overrides like `seed=3`.

    The default scale is `quick` if the file has a table of that name, else `full`.
    """
    data = _read(source)
    if scale not in (None, *get_args(Scale)):
        raise InputError(f"scale: {scale!r} must be one of {', '.join(get_args(Scale))}.")
    if scale == "quick" and "quick" not in data:
        raise InputError(f"scale: 'quick' needs a table [quick] in {source}, which has none; give --scale full.")
    quick, readings = data.pop("quick", {}), data.pop("readings", {})
    for name, table in (("quick", quick), ("readings", readings)):
        if not isinstance(table, dict):
            raise InputError(f"{name}: {shown(table)} must be a table of settings.")
    data = data if scale == "full" else _merged(data, quick)
    settings = list(map(_setting, overrides))
    for reading in [value for names, value in settings if names == ["reading"]][-1:]:
        table = readings.get(reading) if isinstance(reading, str) else None
        if not isinstance(table, dict):
            listed = ", ".join(readings) or "none"
            raise InputError(f"reading: {shown(reading)} is no table [readings.NAME] of {source}, which has {listed}.")
        data = _merged(data, table)
    for names, value in (setting for setting in settings if setting[0] != ["reading"]):
        data = _replaced(data, names, value)
        if len(names) == 2 and isinstance(value, dict) and "name" in value:
            # The part is replaced by another: options that further models set were for the old part. Checks follow in `parse`.
            with suppress(AttributeError):
                for section in (table.get(names[0], {}) for table in data.get("models", {}).values()):
                    if isinstance(section.get(names[1]), dict) and "name" not in section[names[1]]:
                        del section[names[1]]
    return parse(data)


def _setting(override: str) -> tuple[list[str], Any]:
    """Return the name of an overridden setting, split at dots, and its value: parsed as TOML, else plain text."""
    key, equals, text = (part.strip() for part in override.partition("="))
    if not equals or not all(names := key.split(".")):
        raise InputError(f"--set: {shown(override)} must have the form section.key=value.")
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        parsed = {}
        if text[:1] in ("[", "{"):
            needs = 'text in a list or table needs quotes, as in key=["text"]'
            raise InputError(f"--set: {shown(override)} is no TOML value, {needs}.") from None
    return names, parsed["value"] if len(parsed) == 1 else text


def _read(source: str | Path, extending: tuple[Path, ...] = ()) -> Any:
    """Read a preset or file, merged over what it extends; `extending` is the chain of files that extend it."""
    if str(source).endswith(".toml"):
        file = extending[-1].parent / source if extending else Path(source)
    else:
        # A base of presets is incomplete: it can be extended, but not loaded.
        files = {preset: _PRESETS / f"{preset}.toml" for preset in list_presets()}
        files |= {base.stem: base for base in (_PRESETS / "bases").glob("*.toml")} if extending else {}
        if str(source) not in files:
            what = "is neither a preset nor a file that ends in .toml"
            raise not_registered("extends" if extending else "preset", str(source), [*files], what)
        file = files[str(source)]
    if file.resolve() in [seen.resolve() for seen in extending]:
        raise InputError(f"extends: {' extends '.join(str(path) for path in (*extending, file))}, which is a circle.")
    content = read_bytes(file)
    try:
        data = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        text = " ".join(str(error).split()) or "nested too deeply"
        raise InputError(f"File {file} is not valid TOML: {text}.") from error
    if (base := data.pop("extends", None)) is None:
        return data
    if not isinstance(base, str):
        raise InputError(f"extends: {shown(base)} must be the name of a preset or the path of a .toml file.")
    below = _read(base, (*extending, file))
    with suppress(KeyError, TypeError):  # `parse` reports values that are not tables
        wanted, quick = data["compare"]["methods"], below["quick"]["compare"]
        tables, settings = _tables(wanted), _by_name(quick["methods"])
        if settings and isinstance(wanted, list) and tables != wanted:  # the file selects methods, for both scales
            quick["methods"] = [settings[entry["name"]] for entry in tables or () if entry["name"] in settings]
    return _merged(below, data)


def parse(data: Mapping[str, Any]) -> Experiment:
    """Check a configuration; raise the first problem as an `InputError` of one sentence."""
    try:
        config = Experiment.model_validate(with_all(tuple, data))
    except ValidationError as error:
        raise InputError(sentence(error)) from error
    for model in config.models:
        variant(config, model)
    return config


def variant(config: Experiment, model: str) -> Experiment:
    """Return the experiment of one of its further models: with that model's settings, and without other models."""
    if not model:
        return config
    data = config.to_dict()
    models = data.pop("models")
    if model not in models:
        raise InputError(f"models: {model!r} is not one of this experiment's, {', '.join(models) or 'it has none'}.")
    data["compare"]["methods"] = [{"name": "metafqi"}]
    try:
        return parse(_merged(data, {name: value for name, value in models[model].items() if value is not None}))
    except InputError as error:
        raise InputError(f"models.{model}.{error}") from None


def _merged(base: Any, changes: Any) -> Any:
    """Merge tables key by key and lists of named tables entry by entry; replace everything else."""
    if isinstance(base, str) and isinstance(changes, dict):
        base = {"name": base}
    if isinstance(base, dict) and isinstance(changes, dict):
        if "name" in base and changes.get("name", base["name"]) != base["name"]:
            return changes  # another part replaces the old one and its options
        return base | {name: _merged(base.get(name), value) for name, value in changes.items()}
    by_name, tables = _by_name(base), _tables(changes)
    if by_name is None or tables is None or tables != changes:
        return _picked(base, changes)
    return [*(by_name | {entry["name"]: _merged(by_name.get(entry["name"], {}), entry) for entry in tables}).values()]


def _replaced(data: Any, names: Sequence[str], value: Any) -> Any:
    """Return a copy of the settings with one of them set; an entry of a list of methods is found by its name."""
    if not names:
        return _picked(data, value)
    name, *rest = names
    if tables := _tables(data):
        by_name = {entry["name"]: entry for entry in tables}
        return [*(by_name | {name: _replaced(by_name.get(name, {"name": name}), rest, value)}).values()]
    if not isinstance(data, dict):  # a part given by its name alone; `parse` reports other values
        data = {"name": data} if isinstance(data, str) else {}
    return data | {name: _replaced(data.get(name), rest, value)}


def _picked(known: Any, wanted: Any) -> Any:
    """Return the methods that the list `wanted` selects from the tables `known`, with their settings; else `wanted` itself."""
    settings, tables = _by_name(known), _tables(wanted)
    return wanted if settings is None or not tables else [settings.get(entry["name"], {}) | entry for entry in tables]


def _tables(entries: Any) -> list[dict[str, Any]] | None:
    """Return a list of methods, each a table with a name or a name alone, as tables; None for other values."""
    listed = entries if isinstance(entries, list) else [None]
    tables: list[Any] = [{"name": entry} if isinstance(entry, str) else entry for entry in listed]
    return tables if all(isinstance(entry, dict) and isinstance(entry.get("name"), str) for entry in tables) else None


def _by_name(entries: Any) -> dict[str, dict[str, Any]] | None:
    """Return a list of named tables as a dictionary by name; None for other values."""
    tables = _tables(entries)
    return None if tables is None or tables != entries else {entry["name"]: entry for entry in tables}


def build_env(config: Experiment) -> Any:
    """Return the environment; with `env.fixed_context`, all its tasks are the same."""
    env: Any = envs.make(config.env.name, **config.env.options)
    if (values := config.env.fixed_context) is None:
        return env
    if not dataclasses.is_dataclass(type(env)):
        raise InputError(f"env.fixed_context: the context of {config.env.name} cannot be fixed, it is not a dataclass.")
    env.context_space.validate(np.array([values]), "env.fixed_context")
    return dataclasses.replace(env, context_space=env.context_space.fixed(values))


def require_available(mdp: MetaMDP) -> None:
    """Start an episode, so that missing requirements of an environment are reported before anything is written."""
    try:
        episodes = start_episode(mdp.env)
    except ImportError as error:
        raise InputError(f"env: {mdp.env.name} needs something that is not installed: {error}.") from None
    if isinstance(mdp, ActorCriticMDP) and isinstance(mdp.env, envs.HostEnv):
        restartable(mdp.env, episodes)


def build_rule(config: Experiment) -> rules.Rule | rules.ActorCriticRule:
    """Return the rule whose hyperparameters are chosen."""
    return rules.REGISTRY.build(config.meta.rule.name, config.meta.rule.options)


def build_mdp(config: Experiment) -> MetaMDP:
    """Return the meta-MDP of a configuration; the rule decides whether it learns from whole episodes or from steps."""
    env, meta, rollout, rule = build_env(config), config.meta, config.rollout, build_rule(config)
    policy: Any = policies.build(config.policy.name, config.policy.options, env)
    initial = InitialPolicy(**dict(config.initial))
    initial.require_for(policy)
    from_steps, where = isinstance(rule, rules.ActorCriticRule), f"where the rule is {meta.rule.name!r}"
    if isinstance(policy, policies.ActorCritic) != from_steps:
        must = f"must have {'a' if from_steps else 'no'} critic"
        raise InputError(f"policy.name: {config.policy.name!r} {must}, which 'actor-critic' has, {where}.")
    used, unused = (_OF_STEPS, _OF_EPISODES) if from_steps else (_OF_EPISODES, _OF_STEPS)
    for name in used:
        if name.startswith("num_") and getattr(rollout, name) is None:
            raise InputError(f"rollout.{name}: is missing, it must be set {where}.")
    for name in unused:
        if (value := getattr(rollout, name)) != type(rollout).model_fields[name].default:
            raise InputError(f"rollout.{name}: {value!r} must not be set {where}, which does not use it.")
    shared: dict[str, Any] = {name: getattr(meta, name) for name in ("meta_discount", "observation")}
    shared |= {"space": meta.space(rule), "initial": initial, "block_size": rollout.block_size}
    options: dict[str, Any] = {name: getattr(rollout, name) for name in ("horizon", "discount", *used)}
    if isinstance(rule, rules.ActorCriticRule):
        sampler = Sampler(env, policy, **options)
        if "gradient_steps" in meta.choices:
            most = shared["space"].high[shared["space"].names.index("gradient_steps")]
            dataclasses.replace(rule, gradient_steps=round(most)).require_batch(sampler.batch_size)  # type: ignore[type-var]
        mdp: MetaMDP = ActorCriticMDP(sampler, rule=rule, budget=meta.num_updates, **shared)
    else:
        solved = {name: options.pop(name) for name in ("fisher", "damping_kind", "cg_iterations")}
        mdp = EpisodicMetaMDP(Estimator(Rollout(env, policy, **options), **solved), rule=rule, **shared)
    features.require_known(mdp)
    return mdp


def build_regressor(config: Experiment) -> Regressor:
    """Return the regressor of the Q-function."""
    return regressors.REGISTRY.build(config.fqi.regressor.name, config.fqi.regressor.options)


def build_fqi(config: Experiment, space: HyperparameterSpace | MenuSpace, random_state: int | None = None) -> MetaFQI:
    """Return the estimator of the Q-function, not fitted."""
    settings: dict[str, Any] = {name: value for name, value in config.fqi if name != "regressor"}
    if (step := space.branches.get("")) is None:
        settings["menu"] = space.branches
    else:
        settings |= {"stepsize_low": step.low, "stepsize_high": step.high, "stepsize_scale": step.scale}
        if space.num_coordinates > 1:
            others = ", ".join(name for name in space.names if name != "stepsize")
            instead = 'search can (`learner = "search"` in a table of models), as can fitted Q from a list'
            raise InputError(f"meta.choices: fitted Q cannot choose {others} from a range; {instead}.")
    seed = config.seed if random_state is None else random_state
    discount = config.meta.meta_discount
    return MetaFQI(regressor=build_regressor(config), meta_discount=discount, random_state=seed, **settings)


def learners_collected(config: Experiment) -> int:
    """Return the number of learners K of the training data; each of several rounds has whole blocks, as it has its own model."""
    collect = config.collect
    if collect.rounds == 1:
        return collect.num_meta_episodes
    block = collect.block_size or config.rollout.block_size
    return collect.rounds * -(-collect.num_meta_episodes // block) * block


def updates_collected(config: Experiment) -> int:
    """Return the number of updates T of the training data: 1 for the generative method, which draws every state independently."""
    return 1 if config.collect.method == "generative" else config.meta.num_updates
