"""What a report is made from, which methods it is about, and its tables."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metastep._core.progress import format_si
from metastep.envs.contexts import ContextSpace
from metastep.evaluation import Comparison, Difference, MethodRecord, metric_values, oracle_scores, summary
from metastep.fqi import Model
from metastep.mdp.dataset import Counts
from metastep.report.document import Table
from metastep.search import Level, SearchedModel

LEARNED = ("metafqi", "searched")  # controllers that follow a model
_ORACLES = {"oracle": "oracle score", "menu-oracle": "score by the oracle over the menu"}


class Fitted(NamedTuple):
    """A fitted model and the data to show it with."""

    model: Model  # the selected one
    validation: Comparison  # every FQI iteration on the validation tasks; the method N=i is iteration i
    counts: Counts  # of the training data
    starts: NDArray[np.float32]  # meta-observations of learners before their first update, (learners, columns)
    later: NDArray[np.float32]  # meta-observations of learners after some updates, (learners, columns)
    updates: int  # how many
    config: Mapping[str, Any]  # the resolved experiment of the model
    file: str = "model.safetensors"  # in the folder of the run
    seconds: float = 0.0  # that collecting, fitting and selecting took


class Searched(NamedTuple):
    """A search: the controllers that it found at every level, and what they cost."""

    model: SearchedModel  # the selected one
    validation: Comparison  # the best controller of every level on the validation tasks
    num_steps: Mapping[Level, float]  # environment steps of a level, with those that it began from
    total_steps: float  # of all levels, each step once
    config: Mapping[str, Any]  # the resolved experiment of the model
    file: str = "model.safetensors"  # in the folder of the run
    seconds: float = 0.0  # of all levels together, with the selection


@dataclass(frozen=True, eq=False)
class Findings:
    """Everything a report shows."""

    name: str  # of the experiment
    command: str  # that repeats it; empty where it is unknown
    config: dict[str, Any]  # resolved
    comparison: Comparison  # every method on the test tasks
    context_space: ContextSpace
    fitted: Mapping[str, Fitted] = field(default_factory=dict)  # models by the name of the method that follows them
    searched: Mapping[str, Searched] = field(default_factory=dict)  # searches by the name of their model
    folder: str = ""  # of the run, seen from where it was started
    modules: Sequence[str] = ()  # of the user's own parts

    @property
    def target(self) -> str:
        """The method that the others are compared with."""
        return target_of(self.comparison)

    @property
    def model(self) -> Fitted | None:
        """The model that the report is about: the target's, or the first there is."""
        return self.fitted.get(self.target) or next(iter(self.fitted.values()), None)

    @property
    def resampling(self) -> dict[str, Any]:
        """The seed and the number of resamples of intervals."""
        return {"seed": int(self.config["seed"]), "num_resamples": int(self.config["compare"]["num_resamples"])}

    @property
    def is_family(self) -> bool:
        """Whether tasks differ: a run in one task has no other to hold steps against."""
        return self.config["env"]["fixed_context"] is None

    def labels_of_context(self) -> list[str]:
        """The coordinates of a task with their units."""
        space = self.context_space
        return [f"{name} ({unit})" if unit else name for name, unit in zip(space.names, space.units, strict=True)]


def target_of(comparison: Comparison) -> str:
    """Return the method to compare others with: the learned one that chooses most, else the first that is not a yardstick."""
    contenders = [record for record in comparison.methods if not record.is_yardstick] or list(comparison.methods)

    def rank(record: MethodRecord) -> int:
        return (record.name == "metastep") * 4 + (record.controller in LEARNED) * (2 + bool(record.directions))

    return max(contenders, key=rank).name  # of equals the first


def best_baseline(comparison: Comparison, target: str) -> str | None:
    """Return the contender with the highest mean AUC, learned methods aside; None where the target is alone."""
    means = metric_values(comparison, "auc").mean(axis=1)
    contenders = [record for record in comparison.methods if not record.is_yardstick and record.name != target]
    names = [record.name for record in contenders if record.controller not in LEARNED]
    return max(names, key=lambda name: means[comparison.index(name)], default=None)


def yardstick_of(comparison: Comparison, target: str) -> str | None:
    """Return the yardstick with the target's choice of directions, else the first."""
    same = comparison.record(target).directions
    found = [record for record in comparison.methods if record.is_yardstick]
    return min(found, key=lambda record: record.directions != same).name if found else None


def listed(words: Sequence[str]) -> str:
    """Join words as in "a, b and c"."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def number(value: float) -> str:
    """Format a number with three digits and a true minus sign."""
    size = abs(value)
    text = f"{value:.3g}" if size < 10.0 else f"{value:.1f}" if size < 100.0 else f"{value:.0f}"
    return text.replace("-", "\N{MINUS SIGN}")


def interval(value: float, low: float, high: float) -> str:
    """Format a value with its interval."""
    return f"{number(value)} [{number(low)}, {number(high)}]"


def share(value: float, low: float, high: float) -> str:
    """Format a share in percent with its interval."""
    return f"{value:.0f} % [{low:.0f}, {high:.0f}]".replace("-", "\N{MINUS SIGN}")


def comparison_table(comparison: Comparison, seed: int, num_resamples: int) -> Table:
    """Return a row for each method: both metrics, the oracle scores and, if any did, how many tasks diverged."""
    scores = [
        {row.method: row for row in oracle_scores(comparison, oracle=name, seed=seed, num_resamples=num_resamples)}
        for name in oracles(comparison)
    ]
    diverged, rows = any(comparison.num_diverged().values()), []
    for row in summary(comparison, seed=seed, num_resamples=num_resamples):
        cells = [comparison.label(row.method), *(interval(*each) for each in (row.auc, row.auc_middle, row.final))]
        for _, score, low, high in (by_method[row.method] for by_method in scores):
            cells.append("" if np.isnan(score) else share(score, low, high))
        rows.append([*cells, *([str(row.num_diverged)] if diverged else [])])
    header = ["method", "AUC", "AUC, interquartile mean", "final return"]
    header += [_ORACLES[name] for name in oracles(comparison)] + (["diverged tasks"] if diverged else [])
    return Table(header, rows, numeric=range(1, len(header)), name="comparison")


def oracles(comparison: Comparison) -> list[str]:
    """Return the oracles that methods are scored by, from the tuned fixed step to them."""
    return [name for name in _ORACLES if {"fixed", name} <= set(comparison.names)]


def differences_table(
    comparison: Comparison, target: str, auc: Sequence[Difference], final: Sequence[Difference] = ()
) -> Table:
    """Return the target minus each method that it is tested against; the final return only where it is given."""
    edges = {table.method: ", ".join(table.at_edge) for table in comparison.tuning if table.at_edge}
    name, by_final = comparison.label(target), {row.baseline: row for row in final}

    def noted(row: Difference) -> str:
        return interval(row.mean, row.low, row.high) + (f" ({row.note})" if row.note else "")

    rows = []
    for row in auc:
        better = share(*(100 * each for each in (row.probability, row.probability_low, row.probability_high)))
        cells = [comparison.label(row.baseline), noted(row), row.verdict, better]
        if last := by_final.get(row.baseline):
            cells += [noted(last), last.verdict]
        rows.append([*cells, *([edges.get(row.baseline, "")] if edges else [])])
    header = ["method", f"{name} minus it, AUC", f"{name} is", f"tasks on which {name} is better"]
    header += [f"{name} minus it, final return", f"{name} is"] if final else []
    header += ["tuned at an edge of its grid"] if edges else []
    return Table(header, rows, numeric=(1, 3, 4) if final else (1, 3), name="differences")


def tuning_table(comparison: Comparison) -> Table:
    """Return the tuned values, and how they were found."""
    rows = []
    for table in comparison.tuning:
        chosen = ", ".join(f"{name} {value:g}" for name, value in table.chosen.items())
        edge = f"at the edge of its grid: {', '.join(table.at_edge)}" if table.at_edge else ""
        score = f"{number(table.mean[table.best])} ± {number(table.standard_error[table.best])}"
        rows.append((comparison.label(table.method), chosen, score, str(table.num_tasks), str(len(table.points)), edge))
    header = ("method", "tuned", "AUC ± standard error", "tuning tasks", "grid points", "remark")
    return Table(header, rows, numeric=(2, 3, 4), name="tuning")


def levels_table(search: Searched) -> Table:
    """Return a row for each level that was searched: its score on the validation tasks, and what it cost."""
    record = search.model.record
    scores = {each.level: f"{number(each.score)} ± {number(each.error)}" for each in record.validation}
    rows = [
        (level, scores.get(level, "diverged"), format_si(steps).strip(), "selected" if level == record.level else "")
        for level, steps in search.num_steps.items()
    ]
    return Table(("level", "score ± standard error", "environment steps", ""), rows, numeric=(1, 2), name="levels")


def cost_table(findings: Findings) -> Table:
    """Return the environment steps of each method and each search; where there is a search, also the seconds of learning."""
    comparison = findings.comparison
    tuned = {table.method: table.num_steps for table in comparison.tuning}
    num_updates, costs = comparison.hyperparameters.shape[2], dict[str, tuple[float, ...]]()
    for record, steps in zip(comparison.methods, comparison.num_steps, strict=True):
        learned, selected, seconds = record.training_steps, 0.0, 0.0
        if model := findings.fitted.get(record.name):
            # Every round selects among the iterations of its own model.
            learned, rounds, seconds = model.counts.num_steps, int(model.config["collect"]["rounds"]), model.seconds
            selected = float(model.validation.num_steps.sum()) * rounds
        test = float(steps.sum())
        trials = test * record.trials * num_updates / (num_updates + 1)
        costs[record.label] = (learned, selected, tuned.get(record.name, 0.0), test, trials, seconds)
    for name, search in findings.searched.items():
        selected = float(search.validation.num_steps.sum())
        costs[f"search of {name}"] = (search.total_steps, selected, 0.0, 0.0, 0.0, search.seconds)
    rows: list[Sequence[str]] = [("method", "training", "selection", "tuning", "test", "trials", "seconds")]
    for label, (*steps, seconds) in costs.items():
        shown = f"{seconds:.1f}" if seconds and findings.searched else ""
        rows.append((label, *(format_si(each).strip() if each else "" for each in steps), shown))
    kept = [column for column in zip(*rows, strict=True) if any(column[1:])]
    header, *cells = zip(*kept, strict=True)
    return Table(header, cells, numeric=range(1, len(kept)), name="costs")


def bookkeeping_table(comparison: Comparison, fitted: Mapping[str, Fitted], config: Mapping[str, Any]) -> Table:
    """Return flags, training data, effective sample sizes, versions and seed."""
    rows = []
    for name, one in fitted.items():
        counts, of = one.counts, f", {comparison.label(name)}" if len(fitted) > 1 else ""
        rows += [
            (f"flagged training tuples{of}", f"{counts.flagged} of {counts.transitions}"),
            (f"training tuples excluded as not finite{of}", f"{counts.excluded} of {counts.transitions}"),
            (f"training data{of}", one.model.record.training_data.fingerprint[:16]),
        ]
    for name, count in comparison.num_flagged().items():
        rows.append((f"flagged estimates, {comparison.label(name)}", f"{count} of {comparison.flagged[0].size}"))
    for key, sizes in comparison.diagnostics.items():
        method, _, quantity = key.rpartition("/")
        if quantity != "effective_sample_size":  # of methods that price step sizes by importance sampling
            continue
        finite = sizes[np.isfinite(sizes)]
        median = number(float(np.median(finite))) if finite.size else "unknown"
        missing = f", {sizes.size - finite.size} not finite" if finite.size < sizes.size else ""
        found = f"{median} of {config['rollout']['num_episodes']} episodes, median over tasks and updates{missing}"
        rows.append((f"effective sample size, {comparison.label(method)}", found))
    rows += [(name, str(value)) for name, value in comparison.settings.get("versions", {}).items()]
    return Table(("what", "value"), [*rows, ("seed", str(config["seed"]))], name="bookkeeping")


def about(record: MethodRecord) -> str:
    """Return the paragraph on a method, or its parts where there is none."""
    known = tomllib.loads(resources.files("metastep.report").joinpath("methods.toml").read_text("utf-8"))
    own, paper = record.name.rpartition(":")[2], known.pop("paper")
    controller = {"single-action": "single", "greedy-oracle": "oracle"}.get(record.controller, record.controller)
    # A baseline's rule is part of its name; under another name, only the parts are known.
    if own not in known and controller not in known:
        return f"The controller {record.controller} with the update rule {record.rule}."
    text = known[own] if own in known else f"{known[controller]} Here with the update rule {record.rule}."
    return text.replace("{paper}", paper)


def nothing_learned(comparison: Comparison, trained: Sequence[Counts]) -> str:
    """Return a sentence where every training tuple or every estimate of every method is flagged, else an empty one."""
    remedy = "look at the policy's sigma, the first policies and the step sizes"
    if trained and all(counts.flagged == counts.transitions for counts in trained):
        flagged = f"Every one of the {sum(counts.transitions for counts in trained)} training tuples is flagged"
        return f"{flagged}, its estimate zero or not finite: the model has learned from noise alone; {remedy}."
    if bool(comparison.flagged.all()):
        return f"Every estimate on the test tasks is flagged as zero or not finite: no learner could move; {remedy}."
    return ""
