"""All of PPO's hyperparameters, searched at three levels, on one family of tasks and one seed of the search.

    python benchmarks/update_study.py pendulum-update --seed 0 --out study                     # all parts
    python benchmarks/update_study.py pendulum-update --seed 0 --out study --parts levels      # one of them
    python benchmarks/update_study.py --join --out study                                       # tables and figure of all seeds

Parts, each a file FAMILY-SEED-PART.json in `--out`:
- levels: constant, schedule and feedback from the same search, beside tuned rates and a bandit, as the preset compares them;
- ablations: one hyperparameter held at its usual value (the rate at the best constant one), and only one chosen, beside that
  constant rate; short searches;
- loops: half the batch, a quarter of the gradient steps, rewards a hundred times smaller and larger; the controllers of the
  preset's own loop, and controllers searched on all of these loops together, on each of them, beside rates tuned there.

A lead is the difference of two areas under the learning curve over the gain of the best tuned rate, its area minus the return
before the first update. The best rate is the best of all tuned ones on the test tasks themselves, which favours it; on a loop
it is constant or falls to 0. Everything is kept in `--out` and goes on where it was stopped, at most one generation of a search
is lost; families and seeds can run side by side. Intervals are over tasks, and with several seeds over seeds and tasks.
"""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

import shared
from metastep.envs.base import Step, Wrapper
from metastep.mdp.controller import Controller
from shared import Record, console

PARTS = ("levels", "ablations", "loops")
LEVELS = ("constant", "schedule", "feedback")
RATES = ("fixed", "linear-annealing", "cosine-annealing", "kl-adaptive")
LOOP_RATES = {"fixed": "fixed", "linear": "linear-annealing"}  # names on a loop, and of the preset's methods
MODEL = "update"
LOOPS: dict[str, dict[str, float]] = {
    "the preset's": {},
    "half the batch": {"batch": 0.5},
    "a quarter of the epochs": {"epochs": 0.25},
    "rewards / 100": {"rewards": 0.01},
    "rewards x 100": {"rewards": 100.0},
}
PINNED = 1e-3  # relative half width of the range of a hyperparameter that is held
SMALL = ("rollout.num_envs=2", "rollout.num_steps=8", "rollout.horizon=8", "rollout.block_size=4", "policy.hidden=[4]")
SMALL += (
    "meta.rule.minibatch_size=4",
    "meta.rule.epochs=16",
    "meta.num_updates=2",
    "search.generations=1",
    "search.pairs=4",
)
SMALL += ("search.block_size=4", "selection.num_tasks=4", "compare.num_updates=2", "compare.num_tasks=4")
SMALL += ("compare.num_tuning_tasks=2", "search.levels=['constant', 'schedule', 'feedback']")
# The smallest comparison of methods that share one compiled program.
SMOKE_METHODS = (*LEVELS, "bandit")


@dataclass(frozen=True)
class Scaled(Wrapper):
    """The same tasks with other units of the reward."""

    factor: float = 1.0

    def step(self, context: Any, state: Any, action: Any, noise: Any) -> Step:
        """Step, and scale the reward."""
        made = self.env.step(context, state, action, noise)
        return Step(made.state, self.factor * made.reward, made.terminated)


@dataclass(frozen=True, eq=False)
class Usual(Controller):
    """The rule's own hyperparameters with a constant or linearly falling rate, as points of a larger space.

    So that a rate runs in the program of all hyperparameters: nothing is compiled for it.
    """

    stepsize: float
    falls: bool = False
    budget: int = 1

    name: ClassVar[str] = "usual"

    def init(self, mdp: Any, learners: Any) -> Any:
        assert mdp.space.names[0] == "stepsize"
        return jnp.asarray([usual(mdp, name, self.stepsize) for name in mdp.space.names], jnp.float32)

    def propose(self, state: Any, learners: Any) -> Any:
        left = 1.0 - jnp.minimum(learners.update / self.budget, (self.budget - 1) / self.budget) if self.falls else 1.0
        return jnp.tile(state.at[0].multiply(left), (len(learners.theta), 1))


def usual(mdp: Any, name: str, rate: float) -> float:
    """Return the value of a hyperparameter that is not chosen."""
    value = rate if name == "stepsize" else getattr(mdp.rule, name)
    bounds = mdp.space.ranges[mdp.space.names.index(name)]
    return float(bounds.high if value is None else np.ravel(value)[0])


def scores_of(comparison: Any, factor: float = 1.0) -> Record:
    """Return areas, first and last returns of every method and task; a task that diverged has the worst of all areas."""
    returns = comparison.returns.astype(np.float64) / factor
    lost = ~np.isfinite(returns).all(axis=2)
    worst = np.min(np.where(lost[..., None], np.inf, returns), axis=(0, 2), keepdims=True)[0, :, 0]
    returns = np.where(lost[..., None], worst[None, :, None], returns)
    tail = max(1, (returns.shape[2] - 1) // 10)
    found = {
        name: {"area": returns[i, :, 1:].mean(axis=1).tolist(), "last": returns[i, :, -tail:].mean(axis=1).tolist(),
               "steps": float(comparison.num_steps[i].mean()), "diverged": int(lost[i].sum())}
        for i, name in enumerate(comparison.names)
    }  # fmt: skip
    return {"first": returns[0, :, 0].tolist(), "methods": found}


def start(asked: Namespace) -> Any:
    """Create or resume the run of the preset."""
    from metastep.experiments.config import load
    from metastep.experiments.run import Run, start_run

    overrides, folder = list(asked.overrides), asked.out / f"{asked.family}-{asked.seed}"
    if not asked.smoke:
        return start_run(asked.preset, asked.scale, folder, seed=asked.seed, overrides=overrides, anyway=True)
    config = load(asked.preset, asked.scale, [*SMALL, *overrides, f"seed={asked.seed}"]).to_dict()
    methods = [each for each in config["compare"]["methods"] if each["name"] in SMOKE_METHODS]
    config["compare"]["methods"] = [each | {"grid": {k: v[:1] for k, v in each["grid"].items()}} for each in methods]
    return Run.create(folder, parsed(config))


def parsed(config: Record) -> Any:
    """Return a configuration from its settings."""
    from metastep.experiments.config import parse

    return parse({name: value for name, value in config.items() if value is not None})


def levels(asked: Namespace, run: Any, tracker: Any) -> Record:
    """Search the three levels and compare them with the preset's other methods."""
    from metastep.experiments.searching import steps_of_levels
    from metastep.experiments.stages import method_results

    for model in run.models_needed:
        run.learn(model, tracker=tracker)
    for name in run.config.compare.names:  # one at a time, so that each has its own seconds
        method_results(run, [name], tracker=tracker)
    comparison, own = run.compare(tracker=tracker), run.of_model(MODEL)
    found, model = scores_of(comparison), own.model
    steps, total = steps_of_levels(own)
    searched, tested = times(own.path).get("search", 0.0), times(run.path)
    tables = {table.method: {"chosen": table.chosen, "steps": table.num_steps} for table in comparison.tuning}
    for name, each in found["methods"].items():
        # Each level has the share of the seconds that its steps are of all.
        before = total if name == "update" else steps.get(name, tables.get(name, {}).get("steps", 0.0))
        share = before / total if name == "update" or name in steps else 0.0
        each |= {"before_steps": before, "seconds": searched * share + tested.get(f"compare {name}", 0.0)}
    curves = {name: values.tolist() for name, values in model.curves(np.linspace(0.0, 1.0, 21).tolist()).items()}
    cost = {"search_steps": total, "seconds": searched, "stages": times(own.path), "tests": tested}
    return found | {"selected": model.record.level, "curves": curves, "tuning": tables, "cost": cost}


def times(folder: Path) -> Record:
    """Return the seconds of every stage, over all calls."""
    file = folder / "times.json"
    return dict(json.loads(file.read_text())["seconds"]) if file.exists() else {}


def best_constant_rate(asked: Namespace, run: Any) -> float:
    """Return the tuned constant rate of the part `levels`; without that part, compare first."""
    file = asked.out / f"{asked.family}-{asked.seed}-levels.json"
    if file.exists():
        tables = {name: each["chosen"] for name, each in json.loads(file.read_text())["tuning"].items()}
    else:
        tables = {table.method: table.chosen for table in run.comparison.tuning}
    chosen = tables.get("fixed") or tables["bandit"]
    return float(chosen["stepsize"])


def variants(mdp: Any, rate: float) -> dict[str, Record]:
    """Return the settings of `meta` for every search of the ablations: what is held has a range of next to no width."""
    space = mdp.space

    def settings(chosen: set[str]) -> Record:
        found: Record = {"choices": {}}
        for name, bounds in zip(space.names, space.ranges, strict=True):
            low, high = bounds.low, bounds.high
            if name not in chosen:
                value = max(usual(mdp, name, rate), bounds.low)
                low, high = value * (1.0 - PINNED), value * (1.0 + PINNED)
                low, high = (low, min(high, 1.0)) if name == "gae_lambda" else (low, high)
            if name == "stepsize":
                found |= {"stepsize_low": low, "stepsize_high": high}
            else:
                found["choices"][name] = {"low": low, "high": high, "scale": bounds.scale}
        return found

    every = set(space.names)
    found = {"all": settings(every)}
    for name in space.names:
        short = name.replace("_", "-")
        found[f"without-{short}"], found[f"only-{short}"] = settings(every - {name}), settings({name})
    return found


def ablations(asked: Namespace, run: Any, tracker: Any) -> Record:
    """Search with one hyperparameter held, and with one chosen, and test each on the preset's test tasks."""
    from metastep.experiments.run import Run

    rate, config = best_constant_rate(asked, run), run.config.to_dict()
    search = {
        "levels": [asked.level],
        "generations": asked.generations,
        "pairs": asked.pairs,
        "start": {"stepsize": rate},
    }
    found = variants(run.of_model(MODEL).mdp, rate)
    if asked.smoke:
        found = {name: found[name] for name in ("all", "only-clip-range")}
    config["models"] = {name: {"meta": meta, "search": search} for name, meta in found.items()}
    config["compare"]["methods"] = [
        {"name": name, "controller": {"name": "searched"}, "model": name, "label": name} for name in found
    ]
    varied = Run.create(asked.out / f"{asked.family}-{asked.seed}-ablations", parsed(config))
    for name in found:
        varied.learn(name, tracker=tracker)
    comparison = varied.compare(tracker=tracker)
    cost = {"search_steps": sum(varied.of_model(name).model.record.search_steps for name in found)}
    cost["seconds"] = sum(sum(times(varied.of_model(name).path).values()) for name in found)
    return scores_of(comparison) | {"level": asked.level, "held": {"stepsize": rate}, "search": search, "cost": cost}


def changed(mdp: Any, batch: float = 1.0, epochs: float = 1.0, rewards: float = 1.0) -> Any:
    """Return the meta-MDP with another loop; controllers may ask for more gradient steps than it makes."""
    sampler, rule = mdp.sampler, mdp.rule
    envs = max(1, round(batch * sampler.num_envs))
    size = max(2, rule.minibatch_size * envs // sampler.num_envs)
    env = sampler.env if rewards == 1.0 else Scaled(sampler.env, factor=rewards)
    rule = replace(rule, epochs=max(1, round(epochs * rule.epochs)), minibatch_size=size)
    return replace(mdp, sampler=replace(sampler, env=env, num_envs=envs), rule=rule)


def loops(asked: Namespace, run: Any, tracker: Any) -> Record:
    """Search schedule and feedback over all loops together, and compare controllers, and rates tuned there, on each loop."""
    from metastep.evaluation import Method, compare
    from metastep.experiments.searching import read_level
    from metastep.mdp.blocks import Stream
    from metastep.search import Searched

    own = run.of_model(MODEL)
    settings, wanted = run.config.compare, asked.loops[:2] if asked.smoke else asked.loops
    base = own.mdp.with_budget(settings.num_updates)
    families = {name: changed(base, **LOOPS[name]) for name in wanted}
    size = own.config.search.block_size or base.block_size

    def warm(mdp: Any, twins: int) -> None:
        """Compile the program of the search (two twins of each pair) or of the test."""
        mdp = replace(mdp, sampler=replace(mdp.sampler, twins=twins), block_size=twins * size)
        learners = mdp.begin(mdp.tasks(0, Stream.TRAIN, 0))
        middle = base.space.from_unit(jnp.full((1, base.space.num_coordinates), 0.5))
        mdp.advance(learners, jnp.tile(middle, (twins * size, 1)))

    with ThreadPoolExecutor(2 * len(families)) as pool:  # all loops side by side
        list(pool.map(warm, [*families.values()] * 2, [1] * len(families) + [2] * len(families)))
    found = mixed(asked, own, [*families.values()], tracker)
    controllers: dict[str, Any] = {}
    for name in own.config.search.levels:
        model = read_level(own, name)
        controllers[name] = Searched(model.network, np.concatenate([np.ravel(part) for part in model.weights]))
    controllers |= {f"{name} over loops": Searched(form, course.best) for name, (form, course) in found.items()}
    grids = {kind: run.methods[name].grid["stepsize"] for kind, name in LOOP_RATES.items() if name in run.methods}
    grids = grids or {kind: [1e-3, 1e-2] for kind in LOOP_RATES}  # the smallest size compares no rates
    results, rates = {}, {}
    for name, mdp in families.items():
        sized = replace(mdp, block_size=size)
        how = {"seed": run.config.seed, "num_updates": settings.num_updates, "tracker": tracker}
        usual = {kind: tuned(kind, grid, sized, settings.num_tuning_tasks, how) for kind, grid in grids.items()}
        rates[name] = {kind: control.stepsize for kind, control in usual.items()}
        tried = usual | controllers
        methods = [Method(each, mdp.rule, control, space=mdp.space) for each, control in tried.items()]
        comparison = compare(methods, sized, num_tasks=min(256, settings.num_tasks), **how)
        results[name] = scores_of(comparison, LOOPS[name].get("rewards", 1.0))
    return {"loops": results, "rates": rates, "cost": {"search_steps": found["feedback"][1].steps}}


def tuned(kind: str, grid: list[float], mdp: Any, num_tasks: int, how: Record) -> Usual:
    """Return the rate of a grid, constant or falling, with the best area on the tuning tasks of a loop."""
    from metastep.evaluation import Method, compare
    from metastep.mdp.blocks import Stream

    tried = {f"{rate:g}": Usual(rate, kind == "linear", how["num_updates"]) for rate in grid}
    methods = [Method(name, mdp.rule, control, space=mdp.space) for name, control in tried.items()]
    found = scores_of(compare(methods, mdp, num_tasks=num_tasks, stream=Stream.TUNING, **how))["methods"]
    return tried[max(tried, key=lambda name: np.mean(found[name]["area"]))]


def mixed(asked: Namespace, own: Any, families: list[Any], tracker: Any) -> Any:
    """Search schedule and feedback over several loops; every generation is kept in a file to go on from."""
    from metastep.search.course import NUMBERS, Files, course_arrays, course_from
    from metastep.search.evolution import Search, num_blocks, search_levels

    section = own.config.search
    fields = {name: getattr(section, name) for name in type(section).model_fields}
    pairs = max(asked.pairs, len(families))
    both: Any = ("schedule", "feedback")
    search = Search(**fields | {"levels": both, "generations": asked.generations, "pairs": pairs})

    def file_of(level: str) -> Path:
        return Path(asked.out / f"{asked.family}-{asked.seed}-loops-{level}.npz")

    def keep(level: Any, course: Any) -> None:
        numbers = {f"number/{name}": getattr(course, name) for name in NUMBERS}
        new = file_of(level).with_suffix(".new.npz")
        np.savez(new, **course_arrays(course), **numbers)
        new.replace(file_of(level))

    def begun(level: Any, like: Any) -> Any:
        if not file_of(level).exists():
            return None
        with np.load(file_of(level), allow_pickle=False) as kept:
            arrays = dict(kept)
        numbers = {
            name.removeprefix("number/"): arrays.pop(name) for name in list(arrays) if name.startswith("number/")
        }
        return course_from(arrays, numbers, like)

    how = {"seed": own.config.seed, "num_validation": own.config.selection.num_tasks, "files": Files(begun, keep)}
    blocks = sum(num_blocks(search, families, own.config.selection.num_tasks, level) for level in both)
    with tracker.stage("search over loops", blocks, "blocks") as stage:
        return search_levels(families, search, advance=stage.advance, **how)


# What the parts of several families and seeds say together.


def best_rate(part: Record) -> tuple[str, np.ndarray, float]:
    """Return the best tuned rate on the test tasks, its areas, and its gain over the first return."""
    known = {name: np.array(each["area"]) for name, each in part["methods"].items()}
    name = max(
        (name for name in RATES if name in known), key=lambda name: known[name].mean(), default=next(iter(known))
    )
    gain = float(known[name].mean() - np.mean(part["first"]))
    return name, known[name], gain if gain > 0.0 else float("nan")


def lead(rows: list[np.ndarray]) -> Record:
    """Return the mean of differences (seeds, tasks) with its interval over both, or over tasks where there is one seed."""
    from metastep.evaluation.intervals import mean_interval
    from paper.seeds import hierarchical_interval

    values = np.stack(rows)
    if not np.isfinite(values).all():
        return {"mean": None, "low": None, "high": None, "seeds": len(rows)}
    if len(values) > 1:
        mean, low, high = hierarchical_interval(values)
    else:
        (low,), (high,) = mean_interval(values)
        mean = values.mean()
    return {"mean": float(mean), "low": float(low), "high": float(high), "seeds": len(rows)}


def text(found: Record, percent: bool = True) -> str:
    """Return a lead as text."""
    if found["mean"] is None:
        return "no gain"
    scale, unit = (100.0, " %") if percent else (1.0, "")
    return f"{scale * found['mean']:.1f}{unit} [{scale * found['low']:.1f}, {scale * found['high']:.1f}]"


def join(asked: Namespace) -> None:
    """Read all parts there are, print tables, and write study.json and study.png."""
    known: dict[str, dict[int, Record]] = {}
    for file in sorted(asked.out.glob("*-*-*.json")):
        family, seed, part = file.stem.rsplit("-", 2)
        if part in PARTS and seed.isdigit():
            known.setdefault(family, {}).setdefault(int(seed), {})[part] = json.loads(file.read_text())
    known = {family: seeds for family, seeds in known.items() if any("levels" in parts for parts in seeds.values())}
    if not known:
        sys.exit(f"{asked.out}: there is no file FAMILY-SEED-levels.json; run the part `levels` first.")
    study: Record = {}
    for family, seeds in known.items():
        done = {seed: parts for seed, parts in seeds.items() if "levels" in parts}
        study[family] = {"seeds": [*done], **levels_of(done), **ablations_of(done), **loops_of(done)}
    for family, found in study.items():
        rows = []
        for name, each in found["levels"].items():
            costs = f"{each['steps']:,.0f}", f"{each['before_steps']:.3g}", f"{each['seconds']:.0f}"
            rows.append([name, text(each["area"]), text(each["last"], percent=False), *costs])
        note = (
            f"selected: {', '.join(found['selected'])}; best rate: {', '.join(found['best'])}; gain {found['gain']:.4g}"
        )
        headings = (
            "method",
            "lead over the best rate",
            "last return",
            "steps of a run",
            "of search or tuning",
            "seconds in all",
        )
        shared.show(f"{family}, seeds {found['seeds']}", headings, rows, [note])
        alone = "all: minus the best rate; without: minus all; only: minus the tuned constant rate"
        for title, note in (("ablations", alone), ("loops", f"of the gain of {found.get('loops_unit')}")):
            if table := found.get(title):
                rows = [[name, text(each)] for name, each in table.items()]
                shared.show(f"{family}: {title}", (title, "lead"), rows, [note])
    shared.save(asked.out, "study", study)
    draw(study, asked.out / "study.png")


def levels_of(done: dict[int, Record]) -> Record:
    """Return the lead over the best rate and the last return of every method, and further comparisons."""
    best = {seed: best_rate(parts["levels"]) for seed, parts in done.items()}
    found: Record = {}

    def area(seed: int, name: str) -> np.ndarray:
        return np.array(done[seed]["levels"]["methods"][name]["area"])

    first = next(iter(done.values()))["levels"]["methods"]
    for name in first:
        each = [parts["levels"]["methods"][name] for parts in done.values()]
        rows = [(area(seed, name) - best[seed][1]) / best[seed][2] for seed in done]
        found[name] = {"area": lead(rows), "last": lead([np.array(one["last"]) for one in each])}
        for cost in ("steps", "before_steps", "seconds"):
            found[name][cost] = float(np.mean([one.get(cost, 0.0) for one in each]))
    for high, low in (("update", "constant"), ("schedule", "constant"), ("feedback", "schedule")):
        if high in first and low in first:
            rows = [(area(seed, high) - area(seed, low)) / best[seed][2] for seed in done]
            ends = [
                np.subtract(*(done[seed]["levels"]["methods"][name]["last"] for name in (high, low))) for seed in done
            ]
            costs = {cost: found[high][cost] - found[low][cost] for cost in ("steps", "before_steps", "seconds")}
            found[f"{high} minus {low}"] = {"area": lead(rows), "last": lead(ends), **costs}
    cost = [parts["levels"]["cost"] for parts in done.values()]
    mean_cost = {name: float(np.mean([each[name] for each in cost])) for name in ("search_steps", "seconds")}
    chosen = {
        "selected": [parts["levels"]["selected"] for parts in done.values()],
        "best": [name for name, *_ in best.values()],
    }
    curves = [parts["levels"]["curves"] for parts in done.values()]
    return {"levels": found, "cost": mean_cost, "gain": float(np.mean([gain for *_, gain in best.values()])),
            "curves": curves, **chosen}  # fmt: skip


def ablations_of(done: dict[int, Record]) -> Record:
    """Return what every hyperparameter is worth: the loss without it, and the lead of it alone over the tuned constant rate.

    The rate is held at that constant, or searched from it, so that a lead over a better schedule would say little of the others.
    """
    done = {seed: parts for seed, parts in done.items() if "ablations" in parts}
    if not done:
        return {}
    table = {}
    for name in next(iter(done.values()))["ablations"]["methods"]:
        rows = []
        for parts in done.values():
            _, rate, gain = best_rate(parts["levels"])
            known = parts["levels"]["methods"]
            constant = np.array(known["fixed"]["area"]) if "fixed" in known else rate
            own = {key: np.array(each["area"]) for key, each in parts["ablations"]["methods"].items()}
            against = {"without": own["all"], "only": constant}.get(name.partition("-")[0], rate)
            rows.append((own[name] - against) / gain)
        table[name] = lead(rows)
    return {"ablations": table}


def loops_of(done: dict[int, Record]) -> Record:
    """Return feedback minus schedule on every loop and over all, in gains of the better of a constant and a falling rate.

    They are tuned on the loop or, in parts that were measured before that was so, on the preset's.
    """
    done = {seed: parts for seed, parts in done.items() if "loops" in parts}
    table: Record = {}
    pairs = (("feedback", "schedule"), ("feedback over loops", "schedule over loops"), ("schedule over loops", "rate"))
    known = next(iter(next(iter(done.values()))["loops"]["loops"].values()))["methods"] if done else {}
    for high, low in (pair for pair in pairs if {*pair} - {"rate"} <= {*known}):
        everywhere: list[list[np.ndarray]] = [[] for _ in done]
        for loop in next(iter(done.values()))["loops"]["loops"]:
            rows = []
            for index, parts in enumerate(done.values()):
                part = parts["loops"]["loops"][loop]
                own = {name: np.array(each["area"]) for name, each in part["methods"].items()}
                own["rate"] = max((own[name] for name in LOOP_RATES if name in own), key=np.mean)
                gain = own["rate"].mean() - np.mean(part["first"])
                rows.append((own[high] - own[low]) / (gain if gain > 0.0 else np.nan))
                everywhere[index].append(rows[-1])
            table[f"{high} minus {low}, {loop}"] = lead(rows)
        table[f"{high} minus {low}, all loops"] = lead([np.mean(each, axis=0) for each in everywhere])
    is_tuned = all("rates" in parts["loops"] for parts in done.values())
    unit = "the better rate tuned on that loop" if is_tuned else "the preset's tuned rate on that loop"
    return {"loops": table, "loops_unit": unit} if table else {}


def draw(study: Record, path: Path) -> None:
    """Draw the leads of the levels, what each hyperparameter is worth, what feedback adds, and the curves that were found."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    colours = {"constant": "#E69F00", "schedule": "#0072B2", "feedback": "#009E73", "bandit": "#CC79A7"}
    families = [*study]
    figure, ((top, alone), (below, over_time)) = plt.subplots(2, 2, figsize=(13, 9), layout="constrained")

    def bars(
        axes: Any,
        groups: list[str],
        series: dict[str, list[Record | None]],
        palette: dict[str, str],
        unit: str = "the best tuned rate",
    ) -> None:
        width = 0.8 / max(1, len(series))
        for index, (name, values) in enumerate(series.items()):
            for place, value in enumerate(values):
                if value is None or value["mean"] is None:
                    continue
                x = place + (index - (len(series) - 1) / 2) * width
                label = None if name in axes.get_legend_handles_labels()[1] else name
                axes.bar(x, 100 * value["mean"], 0.9 * width, color=palette.get(name, "#999999"), label=label)
                axes.plot([x, x], [100 * value["low"], 100 * value["high"]], color="black", lw=1.2)
        axes.axhline(0.0, color="black", lw=0.8)
        axes.set_xticks(range(len(groups)), groups, rotation=20, ha="right")
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylabel(f"% of the gain of {unit}")
        axes.margins(y=0.22)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(frameon=False, loc="upper left", ncols=3)

    names = [family.removesuffix("-update") for family in families]
    series = {name: [study[f]["levels"].get(name, {}).get("area") for f in families] for name in colours}
    bars(top, names, {name: row for name, row in series.items() if any(row)}, colours)
    top.set_title("Searched levels minus the best tuned rate", loc="left")
    known = [f for f in families if "ablations" in study[f]]
    marks = [name.removeprefix("without-") for name in (study[known[0]]["ablations"] if known else ()) if name != "all"]
    marks = [*dict.fromkeys(name.removeprefix("only-") for name in marks)]
    for kind, colour, shift in (("without", "#D55E00", -0.18), ("only", "#56B4E9", 0.18)):
        for place, mark in enumerate(marks):
            values = [study[f]["ablations"].get(f"{kind}-{mark}", {}).get("mean") for f in known]
            shown = [100 * value for value in values if value is not None]
            label = {"without": "without it, minus all", "only": "it alone, minus the tuned constant rate"}[kind]
            alone.scatter([place + shift] * len(shown), shown, s=18, color=colour, alpha=0.6)
            if shown:
                alone.bar(
                    place + shift, np.mean(shown), 0.32, color=colour, alpha=0.45, label=label if place == 0 else None
                )
    alone.axhline(0.0, color="black", lw=0.8)
    alone.set_ylabel("% of the gain of the best tuned rate")
    alone.set_xticks(range(len(marks)), [mark.replace("-", " ") for mark in marks], rotation=20, ha="right")
    alone.set_title("Each hyperparameter left out, and alone; dots are families", loc="left")
    alone.spines[["top", "right"]].set_visible(False)
    if alone.get_legend_handles_labels()[1]:
        alone.legend(frameon=False)
    alone.set_visible(bool(marks))
    with_loops = [f for f in families if "loops" in study[f]]
    rows = {loop: [study[f]["loops"].get(f"feedback over loops minus schedule over loops, {loop}") for f in with_loops]
            for loop in (*LOOPS, "all loops")}  # fmt: skip
    shades = dict(zip(rows, ("#777777", "#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#D55E00"), strict=True))
    own = {"own loop": [study[f]["levels"].get("feedback minus schedule", {}).get("area") for f in families]}
    rows = {name: row for name, row in rows.items() if any(row)}
    units = sorted({study[f]["loops_unit"] for f in with_loops}) if rows else ["the best tuned rate"]
    groups = [f.removesuffix("-update") for f in (with_loops if rows else families)]
    bars(below, groups, rows or own, shades, " or ".join(units))
    below.set_title(f"Feedback minus schedule, {'searched over all loops' if rows else 'own loop'}", loc="left")
    palette = plt.get_cmap("tab10")
    for index, (family, found) in enumerate(study.items()):
        for curves in found["curves"]:
            share = curves["budget"]
            over_time.plot(
                share, curves["stepsize"], color=palette(index), lw=1.5, label=family.removesuffix("-update")
            )
            over_time.plot(share, np.array(curves["clip_range"]) if "clip_range" in curves else [np.nan] * len(share),
                           color=palette(index), lw=1.0, ls=":")  # fmt: skip
    handles, labels = over_time.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    over_time.legend(unique.values(), unique.keys(), frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    over_time.set_yscale("log")
    over_time.set_xlabel("share of the updates made")
    over_time.set_title("Rate (line) and clip range (dots) of the selected level", loc="left")
    over_time.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    console.print(f"figure saved in {path}")


def main() -> None:
    parser = shared.parser_of(__doc__)
    parser.add_argument("preset", nargs="?", default="pendulum-update")
    parser.add_argument("--scale", choices=("quick", "full"), default="full")
    parser.add_argument("--seed", type=int, default=0, help="of the search and of all tasks")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], help="as of `metastep run`: section.key=value"
    )
    parser.add_argument("--generations", type=int, default=12, help="of the searches of ablations and loops")
    parser.add_argument("--pairs", type=int, default=128, help="likewise")
    parser.add_argument("--level", choices=LEVELS, default="schedule", help="of the ablations")
    parser.add_argument("--loops", nargs="+", choices=[*LOOPS], default=[*LOOPS])
    parser.add_argument("--join", action="store_true", help="tables and figure of all parts in --out")
    asked = parser.parse_args()
    if asked.smoke:
        vars(asked).update(scale="full", generations=1, pairs=4)
    asked.family = Path(asked.preset).stem
    asked.out.mkdir(parents=True, exist_ok=True)
    if not asked.join:
        from metastep._core.progress import Terminal

        run = start(asked)
        tracker = Terminal()
        for part in asked.parts:
            begun = time.perf_counter()
            found = globals()[part](asked, run, tracker)
            facts = {"preset": asked.preset, "seed": asked.seed, "device": jax.devices()[0].device_kind}
            seconds = time.perf_counter() - begun
            shared.save(asked.out, f"{asked.family}-{asked.seed}-{part}", facts | {"call_seconds": seconds} | found)
    if asked.join or asked.smoke:
        join(asked)


if __name__ == "__main__":
    main()
