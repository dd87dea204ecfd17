"""From presets and files to configurations, and from a configuration to the objects that run it.

A preset is a TOML file whose tables are the sections of `Experiment`, at full scale, which is the paper's; its table `[quick]`
overrides some of them for a run of a minute or two. Tables `[readings.NAME]` override others where `--set reading=NAME` asks for
it: a paper can be read in more than one way. `extends = "NAME"` merges the file over a preset, a base of presets or another
file. A user's own file has the same form.
"""

import dataclasses
import difflib
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import ValidationError

from metastep import envs, features, policies, rules
from metastep._core.errors import InputError, shown
from metastep._core.settings import with_tuples
from metastep._core.storage import read_bytes
from metastep.experiments.reference import sentence
from metastep.experiments.schema import Experiment
from metastep.fqi import MetaFQI, regressors
from metastep.fqi.regressors import Regressor
from metastep.mdp import ActorCriticMDP, EpisodicMetaMDP, MetaMDP
from metastep.rules.actor_critic import Sampler
from metastep.rules.actor_critic.sampler import restartable
from metastep.rules.spaces import HyperparameterSpace, MenuSpace
from metastep.simulation.engine import start_episode
from metastep.simulation.gradients import Estimator
from metastep.simulation.rollouts import Rollout

Scale = Literal["quick", "full"]

_PRESETS = Path(__file__).parent / "presets"


def list_presets() -> tuple[str, ...]:
    """Return the names of the experiments that come with the library."""
    return tuple(sorted(file.stem for file in _PRESETS.glob("*.toml")))


def load(source: str | Path, scale: Scale | None = None, overrides: Sequence[str] = ()) -> Experiment:
    """Return the configuration of a preset, or of a file whose name ends in .toml, with overrides like `seed=3`.

    Without a scale, `quick` is taken where there is a table of that name.
    """
    data = _read(source)
    if scale not in (None, *get_args(Scale)):
        raise InputError(f"scale: {scale!r} must be one of {', '.join(get_args(Scale))}.")
    if scale == "quick" and "quick" not in data:
        raise InputError(f"scale: 'quick' needs a table [quick] in {source}, which has none; give --scale full.")
    quick, readings = data.pop("quick", None), data.pop("readings", {})
    if quick is not None and scale != "full":
        if not isinstance(quick, dict):
            raise InputError(f"quick: {shown(quick)} must be a table of settings.")
        data = _merged(data, quick)
    chosen = [override for override in overrides if override.partition("=")[0].strip() == "reading"]
    if chosen:
        name = _toml_value(chosen[-1], chosen[-1].partition("=")[2])
        known = readings if isinstance(readings, dict) else {}
        reading = known.get(name) if isinstance(name, str) else None
        if not isinstance(reading, dict):
            listed = ", ".join(map(str, known)) or "none"
            raise InputError(f"reading: {shown(name)} is not a table [readings.NAME] of {source}, which has {listed}.")
        data = _merged(data, reading)
    for override in overrides:
        key, equals, text = override.partition("=")
        names = key.strip().split(".")
        if not equals:
            raise InputError(f"--set: {shown(override)} must have the form section.key=value.")
        if not all(names):
            raise InputError(f"--set: {shown(override)} lacks the name of a setting, as in section.key=value.")
        if override not in chosen:
            value = _toml_value(override, text)
            data = _replaced(data, names, value, override)
            if len(names) == 2 and isinstance(value, dict) and "name" in value:
                # A part of another name: what further models set was for the part before. What is no table is refused later.
                with suppress(AttributeError):
                    for own in (table.get(names[0], {}) for table in data.get("models", {}).values()):
                        if isinstance(own.get(names[1]), dict) and "name" not in own[names[1]]:
                            del own[names[1]]
    return parse(data)


def _read(source: str | Path, extending: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read a preset or file, merged over what it extends; `extending` are the files that led here."""
    if str(source).endswith(".toml"):
        file = extending[-1].parent / source if extending else Path(source)
    else:
        # A base of presets, which is not complete, can only be extended.
        known = {preset: _PRESETS / f"{preset}.toml" for preset in list_presets()}
        known |= {base.stem: base for base in (_PRESETS / "bases").glob("*.toml")} if extending else {}
        if str(source) not in known:
            near = difflib.get_close_matches(str(source), known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            place, there = "extends" if extending else "preset", f"{', '.join(known)}, and files that end in .toml"
            raise InputError(f"{place}: {shown(source)} does not exist, there are {there}.{hint}")
        file = known[str(source)]
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
    wanted, quick = _methods(data), _methods(below.get("quick"))
    if _has_plain_names(wanted) and _are_named(quick):  # the file says which methods to compare, at either scale
        names = [entry.get("name") if isinstance(entry, dict) else entry for entry in wanted]
        below["quick"]["compare"]["methods"] = [entry for entry in quick if entry["name"] in names]
    merged: dict[str, Any] = _merged(below, data)
    return merged


def parse(data: Mapping[str, Any]) -> Experiment:
    """Check a configuration; what is wrong with it is one sentence."""
    try:
        config = Experiment.model_validate(with_tuples(data))
    except ValidationError as error:
        raise InputError(sentence(error)) from error
    for model in config.models:
        variant(config, model)
    return config


def variant(config: Experiment, model: str) -> Experiment:
    """Return the experiment of one of its models: with the settings that differ for it, and without other models."""
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
    """Merge tables key by key and lists of named tables entry by entry; replace everything else.

    A part of another name brings options of its own.
    """
    if isinstance(base, str) and isinstance(changes, dict):
        base = {"name": base}
    if isinstance(base, dict) and isinstance(changes, dict):
        if "name" in base and changes.get("name", base["name"]) != base["name"]:
            return changes
        return base | {name: _merged(base.get(name), value) for name, value in changes.items()}
    if _are_named(base) and _are_named(changes):
        updated = {entry["name"]: entry for entry in base}
        for entry in changes:
            updated[entry["name"]] = _merged(updated.get(entry["name"], {}), entry)
        return list(updated.values())
    return _picked(base, changes) if _has_plain_names(changes) else changes


def _methods(data: Any) -> Any:
    compare = data.get("compare") if isinstance(data, dict) else None
    return compare.get("methods") if isinstance(compare, dict) else None


def _are_named(entries: Any) -> bool:
    return isinstance(entries, list) and all(isinstance(entry, dict) and "name" in entry for entry in entries)


def _has_plain_names(entries: Any) -> bool:
    return isinstance(entries, list) and any(isinstance(entry, str) for entry in entries)


def _picked(known: Any, wanted: Any) -> Any:
    """Return the entries that a list of names picks from a list of named tables, with their settings; else the list itself."""
    if not (_are_named(known) and isinstance(wanted, list)):
        return wanted
    named = [{"name": entry} if isinstance(entry, str) else entry for entry in wanted]
    if not _are_named(named) or not all(isinstance(entry["name"], str) for entry in named):
        return wanted
    settings = {entry["name"]: entry for entry in known}
    return [settings.get(entry["name"], {}) | entry for entry in named]


def _replaced(data: Any, names: Sequence[str], value: Any, override: str, where: str = "") -> Any:
    """Return a copy of the settings with one of them set; a list of named tables is entered by name, or picked from."""
    if not names:
        return _picked(data, value)
    name, *rest = names
    if isinstance(data, str):  # a part by its name alone, of which an option is set
        data = {"name": data}
    if _are_named(data):
        if all(entry["name"] != name for entry in data):
            data = [*data, {"name": name}]
        return [_replaced(e, rest, value, override, name) if e["name"] == name else e for e in data]
    if not isinstance(data, dict):
        raise InputError(f"--set: {shown(override)} goes into {where}, which is a value and not a table.")
    return data | {name: _replaced(data.get(name, {}) if rest else data.get(name), rest, value, override, name)}


def _toml_value(override: str, text: str) -> Any:
    """Return the value of an override: as TOML writes it, else plain text."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        if text.strip()[:1] in ("[", "{"):
            raise InputError(
                f'--set: {shown(override)} is no TOML value, text in a list or table needs quotes, as in key=["text"].'
            ) from None
        return text.strip()
    return parsed["value"] if len(parsed) == 1 else text.strip()


def build_env(config: Experiment) -> envs.Env | envs.HostEnv:
    """Return the environment, every task equal where the configuration fixes the context."""
    env, values = envs.make(config.env.name, **config.env.options), config.env.fixed_context
    if values is None:
        return env
    names = env.context_space.names
    if len(values) != len(names):
        raise InputError(f"env.fixed_context: {list(values)} must hold one number for each of {', '.join(names)}.")
    if not dataclasses.is_dataclass(type(env)):
        raise InputError(f"env.fixed_context: the context of {config.env.name} cannot be fixed, it is not a dataclass.")
    record: Any = env  # a protocol says nothing on how it is implemented
    fixed: envs.Env | envs.HostEnv = dataclasses.replace(record, context_space=env.context_space.fixed(values))
    return fixed


def require_available(mdp: MetaMDP) -> None:
    """Start an episode, so that what an environment needs and does not find is reported before anything is written."""
    env = mdp.env
    try:
        episodes = start_episode(env)
    except ImportError as error:
        raise InputError(f"env: {env.name} needs something that is not installed: {error}.") from None
    if isinstance(mdp, ActorCriticMDP) and isinstance(env, envs.HostEnv):
        restartable(env, episodes)


def build_rule(config: Experiment) -> rules.Rule | rules.ActorCriticRule:
    """Return the rule whose hyperparameters are chosen."""
    return rules.REGISTRY.build(config.meta.rule.name, config.meta.rule.options)


def build_mdp(config: Experiment) -> MetaMDP:
    """Return the meta-MDP of a configuration; the rule decides whether it learns from whole episodes or from steps."""
    env, meta, rollout, rule = build_env(config), config.meta, config.rollout, build_rule(config)
    policy = policies.build(config.policy.name, config.policy.options, env)
    initial = config.initial.build()
    initial.require_for(policy)
    learns_from_steps, named = isinstance(rule, rules.ActorCriticRule), f"the rule is {meta.rule.name!r}"
    if learns_from_steps and not isinstance(policy, policies.ActorCritic):
        raise InputError(f"policy.name: {config.policy.name!r} has no critic, take 'actor-critic' where {named}.")
    if isinstance(policy, policies.ActorCritic) and not learns_from_steps:
        raise InputError(f"policy.name: {config.policy.name!r} must not be set where {named}, it learns from episodes.")
    of_steps, of_episodes = ("num_envs", "num_steps"), ("num_episodes",)
    for name in of_steps if learns_from_steps else of_episodes:
        if getattr(rollout, name) is None:
            raise InputError(f"rollout.{name}: is missing, it must be set where {named}.")
    fisher = ("fisher", "damping_kind", "cg_iterations")
    for name in (*of_episodes, "baseline", *fisher) if learns_from_steps else (*of_steps, "hold"):
        if (value := getattr(rollout, name)) != type(rollout).model_fields[name].default:
            raise InputError(f"rollout.{name}: {value!r} must not be set where {named}, which does not use it.")
    shared: dict[str, Any] = {"meta_discount": meta.meta_discount, "observation": meta.observation}
    shared |= {"space": meta.space(rule), "initial": initial, "block_size": rollout.block_size}
    mdp: MetaMDP
    if isinstance(rule, rules.ActorCriticRule):
        assert isinstance(policy, policies.ActorCritic)
        counts = rollout.num_envs or 0, rollout.num_steps or 0
        sampler = Sampler(env, policy, *counts, rollout.horizon, rollout.discount, rollout.hold)
        if "gradient_steps" in meta.choices:
            most = shared["space"].high[shared["space"].names.index("gradient_steps")]
            dataclasses.replace(rule, gradient_steps=round(most)).require_batch(sampler.batch_size)  # type: ignore[type-var]
        mdp = ActorCriticMDP(sampler, rule=rule, budget=meta.num_updates, **shared)
    else:
        assert not isinstance(policy, policies.ActorCritic)
        episodes = rollout.num_episodes or 0
        simulation = Rollout(env, policy, episodes, rollout.horizon, rollout.discount, rollout.baseline)
        estimator = Estimator(simulation, **{name: getattr(rollout, name) for name in fisher})
        mdp = EpisodicMetaMDP(estimator, rule=rule, **shared)
    features.require_known(mdp)
    return mdp


def build_regressor(config: Experiment) -> Regressor:
    """Return the regressor of Q."""
    return regressors.REGISTRY.build(config.fqi.regressor.name, config.fqi.regressor.options)


def build_fqi(config: Experiment, space: HyperparameterSpace | MenuSpace, random_state: int | None = None) -> MetaFQI:
    """Return the estimator of Q, not fitted yet."""
    step = space.branches.get("")
    steps: dict[str, Any] = {"menu": space.branches}
    if step is not None and space.num_coordinates > 1:
        others = ", ".join(name for name in space.names if name != "stepsize")
        instead = 'search can (`learner = "search"` in a table of models), as can fitted Q from a list'
        raise InputError(f"meta.choices: fitted Q cannot choose {others} from a range; {instead}.")
    if step is not None:
        steps = {"stepsize_low": step.low, "stepsize_high": step.high, "stepsize_scale": step.scale}
    names = ("iterations", "double", "lam", "num_stepsizes", "maximum", "ties")
    return MetaFQI(
        regressor=build_regressor(config),
        meta_discount=config.meta.meta_discount,
        random_state=config.seed if random_state is None else random_state,
        **{name: getattr(config.fqi, name) for name in names},
        **steps,
    )


def learners_collected(config: Experiment) -> int:
    """Return K of the training data; with several rounds each has whole blocks, so that none follows two models."""
    collect = config.collect
    if collect.rounds == 1:
        return collect.num_meta_episodes
    block = collect.block_size or config.rollout.block_size
    return collect.rounds * -(-collect.num_meta_episodes // block) * block


def updates_collected(config: Experiment) -> int:
    """Return T of the training data: the generative method samples every tuple afresh, an episode of one update."""
    return 1 if config.collect.method == "generative" else config.meta.num_updates
