"""The schema of an experiment's configuration: sections, fields with a sentence each, and what is allowed."""

import math
from itertools import cycle
from typing import Annotated, Any, Literal, Self, get_args

import numpy as np
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

MethodName = Literal[
    "metafqi", "fixed", "decay", "rmsprop", "adam", "hoof", "metagrad", "single", "oracle", "geometric-decay"
]
ObservationPart = Literal["theta", "gradient", "context", "return"]

Count = Annotated[int, Field(ge=1, le=10**9)]
Several = Annotated[int, Field(ge=2, le=10**9)]  # an interval over tasks needs two
Positive = Annotated[float, Field(gt=0.0)]
# Which grids a method is tuned over; the others have nothing to tune.
GRIDS_OF: dict[str, tuple[str, ...]] = {
    "fixed": ("fixed",),
    "decay": ("decay",),
    "rmsprop": ("rmsprop",),
    "adam": ("adam",),
    "hoof": ("hoof",),
    "metagrad": ("metagrad_stepsize", "metagrad_beta"),
    "geometric-decay": ("geometric_decay_stepsize", "geometric_decay_alpha"),
}
# The paper compares with alpha/t only; the other decay is there for who asks for it.
DEFAULT_METHODS: tuple[MethodName, ...] = tuple(name for name in get_args(MethodName) if name != "geometric-decay")


def shown(value: Any) -> str:
    """A value as an error message shows it."""
    text = repr(_with_lists(value))
    return text if len(text) <= 80 else f"{text[:80]}..."


def _with_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_lists(item) for name, item in value.items()}
    return [_with_lists(item) for item in value] if isinstance(value, tuple) else value


def _one_or_more(value: Any) -> Any:
    """A single number stands for all parameters."""
    return (value,) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    """Options become keyword arguments, and go into JSON."""
    for name, value in options.items():
        finite = isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))
        if not name.isidentifier() or not (finite or (isinstance(value, str) and value.isprintable())):
            raise ValueError(f"must map names to true, false, numbers or text, {shown(name)} does not")
    return options


PerParameter = Annotated[tuple[float, ...], BeforeValidator(_one_or_more), Field(min_length=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class EnvSection(_Section):
    """The family of tasks."""

    name: str = Field(
        description="Name in the registry, or module:name for one that a module of yours registers.", min_length=1
    )
    options: Annotated[dict[str, Any], AfterValidator(_plain)] = Field(
        default={}, description="Fields of the environment's class to set."
    )
    fixed_context: tuple[float, ...] | None = Field(
        default=None, min_length=1, description="The one task of a run without a family: a number for each coordinate."
    )


class PolicySection(_Section):
    """The policy that learns."""

    kind: Literal["linear", "mlp"] = Field(default="linear", description="The form of the mean action.")
    sigma: Positive = Field(description="Standard deviation of the actions, fixed.")
    hidden: tuple[Annotated[int, Field(ge=1, le=4096)], ...] = Field(
        default=(), description="Sizes of the hidden layers of the mlp, none for the linear policy."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.kind == "mlp") != bool(self.hidden):
            needed = "at least one size for the mlp policy" if self.kind == "mlp" else "empty for the linear policy"
            raise ValueError(f"hidden: {shown(self.hidden)} must be {needed}")
        return self


class InitialSection(_Section):
    """The distribution of the first policy, every parameter independent, in the order (b, W)."""

    kind: Literal["normal", "uniform"] = Field(default="normal", description="The form of the distribution.")
    mean: PerParameter | None = Field(
        default=None, description="Means of the normal, one for all parameters or one for each."
    )
    variance: PerParameter | None = Field(
        default=None, description="Variances of the normal, one for all or one for each."
    )
    low: PerParameter | None = Field(
        default=None, description="Lower bounds of the uniform, one for all or one for each."
    )
    high: PerParameter | None = Field(
        default=None, description="Upper bounds of the uniform, one for all or one for each."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = {"normal": ("mean", "variance"), "uniform": ("low", "high")}[self.kind]
        for name in ("mean", "variance", "low", "high"):
            value = getattr(self, name)
            if (value is not None) != (name in names):
                rule = "be set" if value is None else "not be set"
                raise ValueError(f"{name}: {shown(value)} must {rule} where kind is {self.kind!r}")
        first, second = (getattr(self, name) for name in names)
        if 1 not in (len(first), len(second)) and len(first) != len(second):
            raise ValueError(f"{names[1]}: {shown(second)} must have one number, or as many as {names[0]}")
        if self.kind == "normal" and min(second) < 0.0:
            raise ValueError(f"variance: {shown(second)} must not be negative")
        pairs = zip(cycle(first), cycle(second), range(max(len(first), len(second))), strict=False)
        if self.kind == "uniform" and any(low >= high for low, high, _ in pairs):
            raise ValueError(f"low: {shown(first)} must lie below high, which is {shown(second)}")
        return self


class RolloutSection(_Section):
    """How a policy is tried out and its gradient estimated."""

    num_episodes: Count = Field(description="Episodes in the batch of one update (n in the paper).")
    horizon: Count = Field(description="Steps after which an episode is cut off (H in the paper).")
    discount: float = Field(default=0.99, ge=0.0, le=1.0, description="Discount of the rewards, gamma.")
    baseline: Literal["none", "mean", "optimal"] = Field(
        default="optimal", description="What GPOMDP subtracts from rewards."
    )
    damping: float = Field(default=1e-3, gt=0.0, lt=1.0, description="Fisher damping, a share of its mean diagonal.")
    cg_iterations: Count = Field(
        default=200, description="Most conjugate-gradient steps to the natural gradient of a network policy."
    )
    block_size: Count = Field(
        default=64, description="Learners simulated together; part of what makes a result repeatable."
    )


class MetaSection(_Section):
    """The meta-MDP: what is seen, what is chosen."""

    num_updates: Count = Field(
        description="Updates of a learner (T) in the trajectories of the training data; the generative method makes one."
    )
    meta_discount: float = Field(default=1.0, ge=0.0, le=1.0, description="Discount of the improvements, gamma~.")
    stepsize_low: float = Field(default=0.0, ge=0.0, description="Smallest step size.")
    stepsize_high: float = Field(gt=0.0, le=1e9, description="Largest step size.")
    stepsize_scale: Literal["linear", "log"] = Field(
        default="linear", description="How step sizes are sampled and gridded."
    )
    observation: tuple[ObservationPart, ...] = Field(
        default=("theta", "gradient", "context"),
        min_length=1,
        description="Parts of the meta-observation, in this order.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.stepsize_low >= self.stepsize_high:
            raise ValueError(f"stepsize_low: {self.stepsize_low} must lie below stepsize_high = {self.stepsize_high}")
        if self.stepsize_scale == "log" and self.stepsize_low == 0.0:
            raise ValueError("stepsize_low: 0.0 must be positive on a log scale")
        if len(set(self.observation)) != len(self.observation):
            raise ValueError(f"observation: {shown(self.observation)} must name each part once")
        return self


class CollectSection(_Section):
    """The training data (Algorithm 1 of the paper)."""

    method: Literal["trajectory", "generative"] = Field(
        default="trajectory", description="Whole meta-episodes, or every tuple sampled afresh."
    )
    num_meta_episodes: Count = Field(description="Meta-episodes, or tuples of the generative method (K in the paper).")
    block_size: Count | None = Field(
        default=None, description="Learners simulated together while collecting; by default rollout.block_size."
    )


class FQISection(_Section):
    """Fitted Q-Iteration."""

    iterations: int = Field(default=5, ge=1, le=1000, description="Iterations N, each of which is validated.")
    trees: int = Field(ge=1, le=100_000, description="Trees of a forest.")
    min_samples_split: float = Field(gt=0.0, le=1.0, description="Smallest share of the data that is split further.")
    double: bool = Field(default=True, description="Clipped double Q: two forests instead of one.")
    lam: float = Field(default=1.0, gt=0.5, le=1.0, description="Weight of the smaller of the two forests' values.")
    forest: Literal["sklearn", "native"] = Field(default="native", description="Which implementation grows the trees.")
    num_stepsizes: int = Field(default=101, ge=2, le=10_000, description="Step sizes on the grid of the maximum.")
    maximum: Literal["grid", "continuous"] = Field(
        default="grid", description="Maximum over the grid or over the interval."
    )


class SelectionSection(_Section):
    """The choice of the iteration."""

    num_tasks: Count = Field(description="Validation tasks, none of them in training, tuning or test.")


class GridsSection(_Section):
    """What each baseline is tuned over."""

    fixed: tuple[Positive, ...] = Field(default=(), description="Step sizes of NGA.")
    decay: tuple[Positive, ...] = Field(default=(), description="Initial step sizes alpha of the decay alpha/t.")
    rmsprop: tuple[Positive, ...] = Field(default=(), description="Learning rates of RMSprop.")
    adam: tuple[Positive, ...] = Field(default=(), description="Learning rates of Adam.")
    hoof: tuple[Positive, ...] = Field(default=(1e-4, 1e-3, 1e-2, 2e-2, 5e-2), description="KL bounds of HOOF.")
    metagrad_stepsize: tuple[Positive, ...] = Field(default=(), description="Initial step sizes h_0 of metagrad.")
    metagrad_beta: tuple[Positive, ...] = Field(default=(), description="Meta step sizes beta of metagrad.")
    geometric_decay_stepsize: tuple[Positive, ...] = Field(
        default=(), description="First step sizes of the geometric decay."
    )
    geometric_decay_alpha: tuple[Positive, ...] = Field(
        default=(0.5, 0.7, 0.8, 0.9, 0.95, 0.99), description="Factors alpha of the geometric decay."
    )


class CompareSection(_Section):
    """The comparison on test tasks."""

    methods: tuple[MethodName, ...] = Field(
        default=DEFAULT_METHODS, min_length=1, description="Methods to compare, in the order of the tables."
    )
    num_tasks: Several = Field(default=100, description="Test tasks, the same for every method.")
    num_updates: Count = Field(description="Updates of a learner in the comparison, in tuning and in validation.")
    num_tuning_tasks: Several = Field(default=20, description="Tasks on which the baselines are tuned.")
    num_resamples: Count = Field(default=10_000, description="Bootstrap resamples of the intervals.")
    grids: GridsSection = Field(default=GridsSection(), description="What each baseline is tuned over.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.methods)) != len(self.methods):
            raise ValueError(f"methods: {shown(self.methods)} must name each method once")
        for method in self.methods:
            for name in GRIDS_OF.get(method, ()):
                if not getattr(self.grids, name):
                    raise ValueError(f"grids.{name}: [] must hold at least one number, {method} is compared")
        return self


class Experiment(_Section):
    """A complete experiment, every setting resolved."""

    seed: int = Field(default=0, ge=0, le=2**32 - 1, description="Seed of everything random.")
    env: EnvSection = Field(description="The family of tasks.")
    policy: PolicySection = Field(description="The policy that learns.")
    initial: InitialSection = Field(description="The distribution of the first policy.")
    rollout: RolloutSection = Field(description="How a policy is tried out and its gradient estimated.")
    meta: MetaSection = Field(description="What the meta-MDP shows and what is chosen.")
    collect: CollectSection = Field(description="The training data.")
    fqi: FQISection = Field(description="Fitted Q-Iteration.")
    selection: SelectionSection = Field(description="The choice of the iteration.")
    compare: CompareSection = Field(description="The comparison on test tasks.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        low, high, num = self.meta.stepsize_low, self.meta.stepsize_high, self.fqi.num_stepsizes
        if (np.diff(np.linspace(low, high, num).astype(np.float32)) <= 0.0).any():
            raise ValueError(
                f"fqi.num_stepsizes: {num} must be fewer, float32 cannot tell so many apart between {low:g} and {high:g}"
            )
        return self

    def to_dict(self) -> dict[str, Any]:
        """Every setting as JSON can hold it; `parse` turns it back into an equal experiment."""
        return self.model_dump(mode="json")
