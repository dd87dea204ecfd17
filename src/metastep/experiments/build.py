"""From a configuration to the objects that run it."""

import dataclasses
from typing import Any

from metastep import controllers, envs, features, policies, rules
from metastep._core.errors import InputError
from metastep.controllers import Controller
from metastep.evaluation import MethodSpec, baselines
from metastep.experiments.schema import Experiment, MethodSection
from metastep.fqi import MetaFQI, regressors
from metastep.fqi.regressors import Regressor
from metastep.mdp import ActorCriticMDP, EpisodicMetaMDP, MetaMDP
from metastep.rules.actor_critic import Sampler
from metastep.rules.actor_critic.sampler import restartable
from metastep.rules.spaces import Range, Space
from metastep.simulation.engine import start_episode
from metastep.simulation.gradients import Estimator
from metastep.simulation.rollouts import Rollout


def build_env(config: Experiment) -> envs.Env | envs.HostEnv:
    """Return the environment, every task equal where the configuration fixes the context."""
    env = whole_family(config)
    values = config.env.fixed_context
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


def whole_family(config: Experiment) -> envs.Env | envs.HostEnv:
    """Return the environment with all of its tasks, also where the experiment fixes one."""
    return envs.make(config.env.name, **config.env.options)


def require_available(mdp: MetaMDP) -> None:
    """Start an episode, so that what an environment needs and does not find is reported before anything is written."""
    env = mdp.env
    try:
        episodes = start_episode(env)
    except ImportError as error:
        raise InputError(f"env: {env.name} needs something that is not installed: {error}.") from None
    if isinstance(mdp, ActorCriticMDP) and isinstance(env, envs.HostEnv):
        restartable(env, episodes)


def build_mdp(config: Experiment) -> MetaMDP:
    """Return the meta-MDP of a configuration; the rule decides whether it learns from whole episodes or from steps."""
    env, meta, rollout, name = build_env(config), config.meta, config.rollout, config.meta.rule.name
    rule = _rule(config)
    policy = policies.build(config.policy.name, config.policy.options, env)
    initial = config.initial.build()
    initial.require_for(policy)
    shared: dict[str, Any] = {
        "space": meta.space(rule),
        "initial": initial,
        "meta_discount": meta.meta_discount,
        "observation": meta.observation,
        "block_size": rollout.block_size,
    }
    mdp: MetaMDP
    if isinstance(rule, rules.ActorCriticRule):
        if not isinstance(policy, policies.ActorCritic):
            raise InputError(
                f"policy.name: {config.policy.name!r} has no critic, which the rule {name!r} needs; take 'actor-critic'."
            )
        unused = ("num_episodes", "baseline", "fisher", "damping_kind", "cg_iterations")
        envs_, steps = _batch_settings(config, ("num_envs", "num_steps"), unused)
        sampler = Sampler(env, policy, envs_, steps, rollout.horizon, rollout.discount, rollout.hold)
        mdp = ActorCriticMDP(sampler, rule=rule, budget=meta.num_updates, **shared)
    else:
        if isinstance(policy, policies.ActorCritic):
            raise InputError(
                f"policy.name: {config.policy.name!r} is for rules that learn from steps, {name!r} is not one of them."
            )
        (episodes,) = _batch_settings(config, ("num_episodes",), ("num_envs", "num_steps", "hold"))
        simulation = Rollout(env, policy, episodes, rollout.horizon, rollout.discount, rollout.baseline)
        fisher = {part: getattr(rollout, part) for part in ("fisher", "damping_kind", "cg_iterations")}
        mdp = EpisodicMetaMDP(Estimator(simulation, **fisher), rule=rule, **shared)
    features.require_known(mdp)
    return mdp


def _rule(config: Experiment) -> rules.Rule | rules.ActorCriticRule:
    return rules.REGISTRY.build(config.meta.rule.name, config.meta.rule.options)


def _batch_settings(config: Experiment, needed: tuple[str, ...], unused: tuple[str, ...]) -> list[int]:
    """Return the settings that a rule's batches need, and refuse those of the other kind of batches."""
    rollout, rule = config.rollout, config.meta.rule.name
    for name in needed:
        if getattr(rollout, name) is None:
            raise InputError(f"rollout.{name}: is missing, it must be set where the rule is {rule!r}.")
    for name in unused:
        if (value := getattr(rollout, name)) != type(rollout).model_fields[name].default:
            raise InputError(
                f"rollout.{name}: {value!r} must not be set where the rule is {rule!r}, which does not use it."
            )
    return [getattr(rollout, name) for name in needed]


def build_regressor(config: Experiment) -> Regressor:
    """Return the regressor of Q."""
    return regressors.REGISTRY.build(config.fqi.regressor.name, config.fqi.regressor.options)


def build_fqi(config: Experiment, space: Space, random_state: int | None = None) -> MetaFQI:
    """Return the estimator of Q, not fitted yet."""
    step = space.branches.get("")
    steps: dict[str, Any] = {"menu": space.branches}
    if step is not None and space.num_coordinates > 1:
        others = ", ".join(name for name in space.names if name != "stepsize")
        raise InputError(
            f"meta.ranges: fitted Q chooses a step from a range and other hyperparameters from a list; list the values of "
            f"{others} instead, as in meta.rule.clip_range = [0.1, 0.2]."
        )
    if step is not None:
        steps = {"stepsize_low": step.low, "stepsize_high": step.high, "stepsize_scale": step.scale}
    names = ("iterations", "double", "lam", "num_stepsizes", "maximum")
    return MetaFQI(
        regressor=build_regressor(config),
        meta_discount=config.meta.meta_discount,
        random_state=config.seed if random_state is None else random_state,
        **{name: getattr(config.fqi, name) for name in names},
        **steps,
    )


def method_specs(config: Experiment) -> dict[str, MethodSpec]:
    """Return the methods of the comparison by name, as data; `Run.methods` also checks that they can be built."""
    return {method.own_name: _spec(config, method) for method in config.compare.methods}


def unlisted_spec(config: Experiment, name: str) -> MethodSpec:
    """Return a registered method that the comparison does not list, with its registered grid."""
    return _spec(config, MethodSection(name=name))


def _spec(config: Experiment, method: MethodSection) -> MethodSpec:
    if method.controller is None:
        spec = baselines.make(method.name)
    else:
        controller = method.controller
        spec = MethodSpec(method.own_name, controller.name, controller.options, label=method.own_name)
    if method.rule is not None:
        spec = dataclasses.replace(spec, rule=method.rule.name, rule_options=method.rule.options)
    spec = dataclasses.replace(spec, model=method.model or spec.model, steps=_steps(config, method, spec))
    if spec.model and spec.model not in config.models:
        known = ", ".join(config.models) or "there is none"
        raise InputError(f"compare.methods.{spec.name}.model: {spec.model!r} must be a table of models, {known}.")
    if controllers.REGISTRY.takes(spec.controller, "num_updates") and "num_updates" not in spec.controller_options:
        options = {**spec.controller_options, "num_updates": config.compare.num_updates}
        spec = dataclasses.replace(spec, controller_options=options)
    given = {**spec.grid, **method.grid}
    tuned = dict.fromkeys((*spec.needs_grid, *given))  # in this order: it is that of the points
    grid = {option: tuple(given[option]) if option in given else _usual_grid(config, spec, option) for option in tuned}
    return dataclasses.replace(spec, grid=grid, label=method.label or spec.label, colour=method.colour or spec.colour)


def _usual_grid(config: Experiment, spec: MethodSpec, option: str) -> tuple[float, ...]:
    """Return ten values of the range, for steps along the experiment's own rule; nothing else has a usual size."""
    if option != "stepsize" or spec.rule is not None or spec.model:
        raise InputError(f"compare.methods.{spec.name}.grid.{option}: is missing, it must be a list of numbers.")
    return tuple(float(step) for step in _usual_steps(config, spec).grid(11)[1:])


def _usual_steps(config: Experiment, spec: MethodSpec) -> Range:
    """Return the step sizes of a method, or those of the experiment."""
    meta = config.meta
    return spec.steps or Range(meta.stepsize_low, meta.stepsize_high, meta.stepsize_scale)


def _steps(config: Experiment, method: MethodSection, spec: MethodSpec) -> Range | None:
    """Return the step sizes of a method with a range of its own, or with another rule than the menu of the others."""
    scale, bounds = method.stepsize_scale, method.stepsize_range
    if scale is None and bounds is None and not (spec.rule is not None and _rule(config).directions):
        return spec.steps
    usual = _usual_steps(config, spec)
    low, high = bounds or (usual.low, usual.high)
    try:
        return Range(low, high, scale or usual.scale)
    except InputError as error:
        raise InputError(f"compare.methods.{spec.name}: {error}") from None


def some_controller(spec: MethodSpec) -> Controller:
    """Return the controller of a method with the first values of its grid: what it declares does not depend on them."""
    return spec.build_controller({name: values[0] for name, values in spec.grid.items()})


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
