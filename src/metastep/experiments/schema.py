"""The schema of a configuration: sections, and fields with a sentence each; what a class defines is taken from there."""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge, Le
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from metastep import features
from metastep._core.errors import shown
from metastep._core.settings import REQUIRED, Count, Float, Positive, Several, Share, settings_of
from metastep.fqi import MetaFQI
from metastep.fqi.iteration import Stepsizes
from metastep.fqi.maximise import Ties
from metastep.mdp import EpisodicMetaMDP, InitialPolicy
from metastep.rules.actor_critic import Sampler
from metastep.rules.spaces import Range, Scale, Space, space_for
from metastep.search.evolution import Objective, Search, Strategy
from metastep.search.network import Level
from metastep.simulation.gradients import DampingKind, Estimator, FisherSolver
from metastep.simulation.rollouts import Baseline, Rollout

# Keys whose values name parts, also where a name is short for a table.
_NAMING = ("name", "rule", "controller", "regressor", "observation", "directions")
_METHOD_NAME = re.compile(r"([\w.]+:)?\w[\w.=+-]{0,63}", re.ASCII)


def _plain(value: Any) -> Any:
    """Raise an error for an option that JSON cannot represent."""
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    is_number = isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))
    if not (is_number or (isinstance(value, str) and value.isprintable())):
        raise ValueError("must be true, false, a number, text or a list of them")
    return value


def _field(sentence: str, default: Any = ..., **bounds: Any) -> Any:
    """Return a field with a sentence; it must be set unless it has a default."""
    return Field(default, description=sentence, **bounds)


def _of(owner: Callable[..., Any], name: str, more: str = "", **default: Any) -> Any:
    """Return the field of a setting that a class defines: its default, bounds and sentence."""
    setting = settings_of(owner)[name]
    if setting.default is not REQUIRED:
        default = {"default": setting.default, **default}
    field = _field(setting.sentence + more, **default)
    field.metadata.extend(getattr(setting.kind, "__metadata__", ()))
    return field


def _features(value: Any) -> Any:
    """Expand the names of sets of features."""
    names = (value,) if isinstance(value, str) else value
    is_list = isinstance(names, tuple) and all(isinstance(name, str) for name in names)
    sets = is_list and any(name in features.SETS for name in names)  # repeated names are reported later
    return features.expanded(names) if sets or isinstance(value, str) else value


Learner = Literal["fitted-q", "search"]
Plain = Annotated[Any, AfterValidator(_plain)]
ModelName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,31}$")]
Thousand = Annotated[int, Ge(1), Le(1000)]
_one = BeforeValidator(lambda value: (value,) if type(value) in (int, float) else value)  # for all parameters
PerParameter = Annotated[tuple[Float, ...], _one, Field(min_length=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class _Named(_Section):
    """A name alone is short for a table."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class PartSection(_Named):
    """The options of a part stand beside its name."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Plain] = Field(init=False)
    name: str = _field("Name in the registry, or module:name.", min_length=1)

    @property
    def options(self) -> dict[str, Any]:
        """The options of the part, besides what the experiment gives it."""
        return dict(self.model_extra or {})


def _named(default: str) -> Any:
    """Let a table without a name be the options of this part."""
    return BeforeValidator(lambda value: {"name": default, **value} if isinstance(value, dict) else value)


class EnvSection(_Section):
    """The family of tasks."""

    name: str = _field("Name in the registry of environments, or module:name.", min_length=1)
    options: dict[str, Plain] = _field("Fields of its class to set.", {})
    fixed_context: tuple[Float, ...] | None = _field("The one task of a run, by coordinate.", None, min_length=1)


class InitialSection(_Section):
    """The distribution of the first policy, every parameter independent, in the order (b, W)."""

    kind: Literal["normal", "uniform", "orthogonal"] = _of(InitialPolicy, "kind")
    mean: PerParameter | None = _of(InitialPolicy, "mean")
    variance: PerParameter | None = _of(InitialPolicy, "variance")
    low: PerParameter | None = _of(InitialPolicy, "low")
    high: PerParameter | None = _of(InitialPolicy, "high")


_OF_EPISODES, _OF_STEPS = " For rules that learn from whole episodes.", " For rules that learn from steps."


class RolloutSection(_Section):
    """How policies are simulated and their gradients estimated."""

    num_episodes: int | None = _of(Rollout, "num_episodes", _OF_EPISODES, default=None)
    num_envs: int | None = _of(Sampler, "num_envs", _OF_STEPS, default=None)
    num_steps: int | None = _of(Sampler, "num_steps", _OF_STEPS, default=None)
    hold: int = _of(Sampler, "hold", _OF_STEPS)
    horizon: int = _of(Rollout, "horizon")
    discount: float = _of(Rollout, "discount")
    baseline: Baseline = _of(Rollout, "baseline")
    fisher: FisherSolver | None = _of(Estimator, "fisher")
    damping_kind: DampingKind = _of(Estimator, "damping_kind")
    cg_iterations: int = _of(Estimator, "cg_iterations")
    block_size: int = _of(EpisodicMetaMDP, "block_size")


class RangeSection(_Section):
    """The range of the step along one direction of a menu."""

    low: Float = _field("Smallest step.", ge=0.0)
    high: Float = _field("Largest step.", gt=0.0, le=1e9)
    scale: Scale = _field("What the number of a step means, and how it is spaced in samples and grids.", "linear")


class ChoiceSection(_Section):
    """A hyperparameter of the rule that is chosen for each update, by default from the rule's own range."""

    low: Float | None = _field("Smallest value.", None, ge=0.0)
    high: Float | None = _field("Largest value.", None, gt=0.0, le=1e9)
    scale: Literal["linear", "log"] | None = _field("How values are spaced in samples and grids.", None)


class MetaSection(_Section):
    """The meta-MDP: observation, choices and update rule."""

    num_updates: Count = _field("Updates of a learner (T) in the training data; 1 with the generative method.")
    rule: Annotated[PartSection, _named("nga")] = _field("The update whose steps are chosen.", PartSection(name="nga"))
    meta_discount: float = _of(EpisodicMetaMDP, "meta_discount")
    stepsize_low: Float = _field("Smallest step size.", 0.0, ge=0.0)
    stepsize_high: Float = _field("Largest step size.", gt=0.0, le=1e9)
    stepsize_scale: Scale = _field("Spacing of steps in samples and grids; divergence: a step is its KL.", "linear")
    ranges: dict[str, RangeSection] = _field("Ranges of the steps along directions of a menu.", {})
    choices: dict[str, ChoiceSection] = _field("Hyperparameters to choose besides the step, like clip_range.", {})
    observation: Annotated[tuple[str, ...], BeforeValidator(_features)] = _of(EpisodicMetaMDP, "observation")

    def space(self, rule: Any) -> Space:
        """Return the hyperparameter space of a rule."""
        step = Range(self.stepsize_low, self.stepsize_high, self.stepsize_scale)
        along = {name: Range(**dict(one)) for name, one in self.ranges.items()}
        changes = {name: one.model_dump(exclude_none=True) for name, one in self.choices.items()}
        choices = {name: replace(rule.choices.get(name, step), name=name, **each) for name, each in changes.items()}
        return space_for(rule, step, along, choices)


class CollectSection(_Section):
    """The training data (Algorithm 1 of the paper)."""

    method: Literal["trajectory", "generative"] = _field("Meta-episodes, or independent transitions.", "trajectory")
    num_meta_episodes: Count = _field("Meta-episodes (K) of each round; with the generative method, transitions.")
    labels: Thousand = _field("Updates evaluated at every state; one is applied, all become training data.", 1)
    rounds: Thousand = _field("Rounds of collection: the first explores, later ones use the model fitted so far.", 1)
    exploration: Share = _field("Share of random updates among those applied in later rounds.", 0.3)
    near: Share = _field("Share of the updates not applied in later rounds that are near the model's choice.", 0.0)
    block_size: Count | None = _field("Learners simulated together in collection; by default rollout.block_size.", None)


class FQISection(_Section):
    """Fitted Q-Iteration."""

    iterations: int = _of(MetaFQI, "iterations")
    regressor: Annotated[PartSection, _named("extra-trees")] = _field("What fits Q.", PartSection(name="extra-trees"))
    double: bool = _of(MetaFQI, "double")
    lam: float = _of(MetaFQI, "lam")
    num_stepsizes: int = _of(MetaFQI, "num_stepsizes")
    maximum: Literal["grid", "continuous"] = _of(MetaFQI, "maximum")
    ties: Ties = _of(MetaFQI, "ties")
    reward_floor: float = _of(MetaFQI, "reward_floor")


class SelectionSection(_Section):
    """The choice of the iteration."""

    num_tasks: Count = _field("Validation tasks; none is used in training, tuning or test.")


class SearchSection(_Section):
    """Search for a controller of all choices with evolution strategies, directly on learning curves."""

    strategy: Strategy = _of(Search, "strategy")
    objective: Objective = _of(Search, "objective")
    levels: tuple[Level, ...] = _of(Search, "levels")
    start: dict[str, Float] = _of(Search, "start", default={})
    generations: int = _of(Search, "generations")
    pairs: int = _of(Search, "pairs")
    deviation: float = _of(Search, "deviation")
    rate: float = _of(Search, "rate")
    knots: int = _of(Search, "knots")
    units: int = _of(Search, "units")
    observation: Annotated[tuple[str, ...], BeforeValidator(_features)] = _of(Search, "observation")
    validate_every: int = _of(Search, "validate_every")
    block_size: int | None = _of(Search, "block_size")
    model: str = _of(Search, "model")


class MethodSection(_Named):
    """One method of the comparison; the name of a registered baseline alone is enough."""

    name: str = _field("Name in tables and files; the name of a baseline, or module:name, sets the rest.")
    rule: PartSection | None = _field("The update; by default the baseline's, or meta.rule.", None)
    controller: PartSection | None = _field("What proposes the step sizes; by default the baseline's.", None)
    model: str = _field("The table [models.NAME] whose rule, step sizes and model it uses.", "")
    stepsize_scale: Scale | None = _field("What its steps mean; by default as in meta.", None)
    stepsize_range: tuple[Float, Float] | None = _field("Its smallest and largest step; by default as in meta.", None)
    grid: dict[str, tuple[Positive, ...]] = _field("Values of each tuned option (of the rule: rule.NAME).", {})
    label: str = _field("The name in figures and tables.", "", max_length=80)
    colour: str = _field("The colour in figures, like #0072B2.", "", pattern=r"^(#[0-9a-fA-F]{6})?$")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not _METHOD_NAME.fullmatch(self.name):
            raise ValueError(f"name: {shown(self.name)} must be letters, digits and . = + - _ only, 64 at most")
        if self.label and not self.label.isprintable():
            raise ValueError(f"label: {shown(self.label)} must be printable text")
        return self

    @property
    def own_name(self) -> str:
        """The name without its module."""
        return self.name.rpartition(":")[2]


_DEFAULT_METHODS = MethodSection(name="metafqi"), MethodSection(name="fixed")


class CompareSection(_Section):
    """The comparison on test tasks."""

    methods: tuple[MethodSection, ...] = _field("Methods, in the order of the tables.", _DEFAULT_METHODS, min_length=1)
    num_tasks: Several = _field("Test tasks, the same for every method.", 100)
    num_updates: Count = _field("Updates of a learner in the comparison, in tuning and in validation.")
    num_tuning_tasks: Several = _field("Tasks on which the baselines are tuned.", 20)
    shared_noise: bool = _field("Whether the points of a grid share their simulation noise when tuned.", False)
    blocks_together: Count = _field("Most blocks in one batch on a GPU, except while collecting; changes last bits.", 1)
    num_resamples: Count = _field("Random draws of sign-flip tests, interquartile means and oracle scores.", 10_000)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.names)) != len(self.names):
            raise ValueError(f"methods: {shown(list(self.names))} must name each method once")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the methods."""
        return tuple(method.own_name for method in self.methods)


class ModelSection(_Section):
    """A further model of the same experiment, and its different settings; all others are as above."""

    meta: dict[str, Any] = _field("Settings of meta that are different.", {})
    collect: dict[str, Any] = _field("Settings of collect that are different.", {})
    learner: Learner | None = _field("Learner of this model, if it differs from the experiment's.", None)
    fqi: dict[str, Any] = _field("Settings of fqi that are different.", {})
    search: dict[str, Any] = _field("Settings of search that are different.", {})
    selection: dict[str, Any] = _field("Settings of selection that are different.", {})


def _names(value: Any, key: str = "") -> Iterator[str]:
    """Yield the names of parts in a configuration; the first word of a menu's direction is the name of its rule."""
    if isinstance(value, dict):
        for name, entry in value.items():
            yield from _names(entry, name)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _names(entry, key)
    elif isinstance(value, str) and key in _NAMING:
        yield from value.split()[:1]


class Experiment(_Section):
    """A complete experiment, every setting resolved."""

    seed: int = _field("Seed of everything random.", 0, ge=0, le=2**32 - 1)
    env: EnvSection = _field("The family of tasks.")
    policy: Annotated[PartSection, _named("linear")] = _field("The policy that learns.", PartSection(name="linear"))
    initial: InitialSection = _field("The distribution of the first policy.")
    rollout: RolloutSection = _field("How policies are simulated and their gradients estimated.")
    meta: MetaSection = _field("What the meta-MDP shows and what is chosen.")
    collect: CollectSection = _field("The training data, not used by search.", CollectSection(num_meta_episodes=1))
    learner: Learner = _field("What learns the controller: Fitted Q-Iteration from data, or search.", "fitted-q")
    fqi: FQISection = _field("Fitted Q-Iteration.", FQISection())
    search: SearchSection = _field("Evolution strategies.", SearchSection())
    selection: SelectionSection = _field("The choice of the iteration.")
    compare: CompareSection = _field("The comparison on test tasks.")
    models: dict[ModelName, ModelSection] = _field("Further models by name, and what is different for each.", {})

    @model_validator(mode="after")
    def _check(self) -> Self:
        # These constructors check their settings, and raise their own messages.
        InitialPolicy(**dict(self.initial))
        Search(**dict(self.search))
        if self.learner == "fitted-q" and "collect" not in self.model_fields_set:
            raise ValueError("collect: is missing, it must be a table with num_meta_episodes")
        meta = self.meta
        Stepsizes(meta.stepsize_low, meta.stepsize_high, meta.stepsize_scale, num=self.fqi.num_stepsizes)
        if self.fqi.maximum == "continuous" and self.fqi.ties != "smallest":
            raise ValueError(f"fqi.ties: {self.fqi.ties!r} must be 'smallest' where fqi.maximum is 'continuous'")
        if len(set(meta.observation)) != len(meta.observation) or not meta.observation:
            raise ValueError(f"meta.observation: {shown(meta.observation)} must name one feature or more, each once")
        return self

    def part_names(self) -> tuple[str, ...]:
        """Return the names of all parts; those of the form `module:name` are in users' own modules."""
        return tuple(_names(self.to_dict()))

    def to_dict(self) -> dict[str, Any]:
        """Return all settings as JSON values; `parse` turns them back into an equal experiment."""
        return self.model_dump(mode="json")
