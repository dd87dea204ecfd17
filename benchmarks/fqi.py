"""Fitted Q-Iteration: one iteration of this library beside scikit-learn and MushroomRL, in one run.

    python benchmarks/fqi.py                       # four sizes and the growth: about 15 minutes
    python benchmarks/fqi.py --size nav2d minigolf # some sizes
    python benchmarks/fqi.py --no-growth

An iteration has two stages: the *target*, `l + max_h Q(x', h)` over 101 step sizes for every tuple, and the *fit* of one forest
to it. The second iteration is measured, in a process of its own for every contender, on the same tuples: those of `metastep
collect` at full scale, synthetic ones for HalfCheetah and the growth (`peers/fqi_data.py`). Trees and minimum splits are the
presets'. Single Q; the double one takes twice as long for all.

| contender | fit | target |
|---|---|---|
| metastep | the Numba forest | the interval walk |
| scikit-learn, naive | ExtraTreesRegressor on float32 rows | `predict` on states x 101 rows, a million rows per call |
| scikit-learn, tuned | the same, columns first, which it reads faster | `predict` on as many states per call as fit the cache |
| MushroomRL | its FQI: one forest per step size, 101 in all | its own |

Times are CPU seconds of all threads; `--threads` sets their number, 1 by default. `memory` is the peak above what the data
take. `mean max Q` is the mean of the target stage's maxima; it must agree, except for MushroomRL, whose Q function differs.
This library is measured before and after the others, and the mean counts. At the largest size the others grow a tenth of the
trees, and their seconds are multiplied by ten: both stages are linear in the trees.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np

import shared
from common import timed
from fqi_data import NUM_STEPSIZES, SIZES, Data, Size, forget_peak, load_data, record_of, synthesize
from shared import PeerError, Record

ROWS_PER_CALL = 1_000_000
TUNED_BYTES = 8_000_000
GROWTH = (10_000, 30_000, 100_000, 300_000, 1_000_000)
WHOLE_TARGETS = {"nav2d": 10.0, "minigolf": 8.0, "cartpole": 10.0, "halfcheetah": 20.0}
STAGE_TARGET = 30.0
SMOKE = SIZES["nav2d"]._replace(tuples=320, trees=2)
SMOKE_SETTINGS = ("collect.num_meta_episodes=16", "rollout.num_episodes=2", "rollout.block_size=16")


def measure_metastep(size: Size, data: Data, threads: int) -> Record:
    """Measure the second iteration of `MetaFQI`, stage by stage."""
    from metastep import __version__
    from metastep.fqi import ExtraTrees
    from metastep.fqi.iteration import QFunction, Stepsizes

    inputs = np.column_stack([data.observation, data.stepsize])
    regressor, stepsizes = ExtraTrees(size.trees, size.min_split), {"": Stepsizes(0.0, size.high, num=NUM_STEPSIZES)}

    def fit(rows: Any, targets: Any, seed: int) -> QFunction:
        return QFunction((regressor.fit(rows, targets, seed=seed, threads=threads),), stepsizes)

    fit(inputs[:200], data.reward[:200], 0).maximum(data.next_observation[:2])  # compiles
    first = fit(inputs, data.reward, 0)
    before = forget_peak()
    best, target = timed(lambda: first.maximum(data.next_observation, threads).value)
    _, fitted = timed(lambda: fit(inputs, data.reward + best, 1))
    return record_of(__version__, fitted, target, before, best)


def measure_sklearn(size: Size, data: Data, threads: int, *, tuned: bool) -> Record:
    """Measure the same with scikit-learn and prediction at every step size."""
    import sklearn
    from sklearn.ensemble import ExtraTreesRegressor

    inputs = np.column_stack([data.observation, data.stepsize])
    inputs = np.asfortranarray(inputs) if tuned else inputs
    grid = np.linspace(0, size.high, NUM_STEPSIZES, dtype=np.float32)
    states = (TUNED_BYTES // (4 * (size.features + 1)) if tuned else ROWS_PER_CALL) // NUM_STEPSIZES

    def fit(targets: Any, seed: int) -> Any:
        options = {"min_samples_split": size.min_split, "random_state": seed, "n_jobs": threads}
        return ExtraTreesRegressor(size.trees, **options).fit(inputs, targets)

    def maximum(forest: Any) -> Any:
        best = []
        for start in range(0, len(data.reward), states):
            block = data.next_observation[start : start + states]
            rows = np.empty((len(block), NUM_STEPSIZES, size.features + 1), dtype=np.float32)
            rows[:, :, :-1] = block[:, None, :]
            rows[:, :, -1] = grid
            best.append(forest.predict(rows.reshape(-1, size.features + 1)).reshape(len(block), -1).max(axis=1))
        return np.concatenate(best)

    first = fit(data.reward, 0)
    before = forget_peak()
    best, target = timed(lambda: maximum(first))
    _, fitted = timed(lambda: fit(data.reward + best, 1))
    return record_of(sklearn.__version__, fitted, target, before, best)


def write_data(size: Size, path: Path) -> None:
    """Collect or synthesize the tuples of a size."""
    if size.simulated:
        from metastep.mdp.dataset import Dataset

        words = [word for setting in (SMOKE_SETTINGS if size == SMOKE else ()) for word in ("--set", setting)]
        collect = [sys.executable, "-m", "metastep", "collect", size.name, "--scale", "full", *words]
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([*collect, "--out", f"{folder}/run"], check=True, stdout=subprocess.DEVNULL)
            transitions = Dataset.open(Path(folder, "run", "data")).transitions()
        data = Data(*(getattr(transitions, name) for name in Data._fields))
    else:
        data = synthesize(size)
    unfinished = path.with_suffix(".tmp.npz")
    np.savez(unfinished, **data._asdict())
    unfinished.replace(path)


def child(who: str, size: Size, asked: Namespace) -> Record:
    """Measure one contender in a process of its own, on tuples that the first one writes."""
    path, threads = asked.out / "fqi-data" / f"{size.name}-{size.tuples}.npz", asked.threads
    if not path.exists() and who != "data":
        path.parent.mkdir(parents=True, exist_ok=True)
        child("data", size, asked)
    if who == "MushroomRL":
        options = {"size": size.name, "trees": size.trees, "threads": threads, "data": path}
        return shared.run_peer(who, "mushroom", "mushroom_fqi.py", options, smoke=asked.smoke)
    return measured(who, size, str(path), asked)


def measured(who: str, size: Size, given: Any, asked: Namespace) -> Any:
    """Run a measurement in a process of its own; at the smallest size, one of them is enough."""
    if asked.smoke and who != "scikit-learn, naive":
        return measure(who, size, given, asked.threads)
    words = [sys.executable, __file__, "--child", json.dumps([who, size, given, asked.threads])]
    return shared.run_child(who, words, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")


def measure(who: str, size: Size, given: Any, threads: int) -> Any:
    """Measure a contender on the tuples of a file, or the growth with numbers of tuples, or write the tuples."""
    if who == "data":
        return write_data(size, Path(given))
    if who == "growth":
        return [measure_metastep(each, synthesize(each), threads) for each in (size._replace(tuples=n) for n in given)]
    if who == "metastep":
        return measure_metastep(size, load_data(given), threads)
    return measure_sklearn(size, load_data(given), threads, tuned=who == "scikit-learn, tuned")


def compare(size: Size, asked: Namespace) -> dict[str, Record]:
    """Measure all contenders at one size; a record with `failure` explains a missing result."""
    fewer = 10 if size.tuples * size.features > 10_000_000 else 1  # trees of the others
    found = {"metastep": child("metastep", size, asked)}
    for who in ("scikit-learn, naive", "scikit-learn, tuned", "MushroomRL"):
        try:
            record = child(who, size._replace(trees=size.trees // fewer), asked)
            found[who] = record | {stage: [fewer * took for took in record[stage]] for stage in ("fit", "target")}
        except PeerError as error:
            found[who] = {"failure": str(error)}
    again = child("metastep", size, asked)
    for stage in ("fit", "target"):
        found["metastep"][stage] = np.mean([found["metastep"][stage], again[stage]], axis=0).tolist()
    return found


def print_comparison(size: Size, found: dict[str, Record]) -> None:
    """Print the table of one size."""
    title = f"{size.name}: {size.tuples:,} tuples x {size.features} features and the step size, {size.trees} trees"
    headings = ["contender", "version", "fit CPU s", "target CPU s", "both", "wall s", "fit ratio", "target ratio"]
    headings += ["both ratio", "memory MB", "mean max Q"]
    own, rows, notes = found["metastep"], [], []
    for who, record in found.items():
        if "failure" in record:
            rows.append([who, *["-"] * 10])
            notes.append(record["failure"])
            continue
        (fit, fit_wall), (target, target_wall) = record["fit"], record["target"]
        ratios = (fit / own["fit"][0], target / own["target"][0], (fit + target) / (own["fit"][0] + own["target"][0]))
        seconds = (fit, target, fit + target, fit_wall + target_wall)
        cells = [*(f"{value:,.3g}" for value in seconds), *(f"{ratio:,.1f}" for ratio in ratios)]
        rows.append([who, record["version"], *cells, f"{record['peak_mb']:,.0f}", f"{record['mean_max_q']:.4f}"])
        if who == "scikit-learn, naive":
            goals = {"both stages": (ratios[2], WHOLE_TARGETS[size.name]), "target stage": (ratios[1], STAGE_TARGET)}
            for what, (ratio, goal) in goals.items():
                met = "met" if ratio >= goal else "NOT met"
                notes.append(f"{what}: {ratio:,.1f} times scikit-learn, naive; the goal of {goal:.0f} is {met}.")
    if size.tuples * size.features > 10_000_000:
        notes.append("The others grew a tenth of the trees; their seconds are multiplied by 10.")
    shared.show(title, headings, rows, notes)


def growth(size: Size, sizes: tuple[int, ...], asked: Namespace) -> list[Record]:
    """Measure how this library's seconds and memory grow with the tuples."""
    records = measured("growth", size, sizes, asked)
    totals = [record["fit"][0] + record["target"][0] for record in records]
    rows = [
        [f"{tuples:,}", *(f"{record[stage][0]:.3g}" for stage in ("fit", "target")), f"{total:.3g}",
         f"{1e6 * total / tuples:.2f}", f"{record['peak_mb']:,.0f}"]
        for tuples, record, total in zip(sizes, records, totals, strict=True)
    ]  # fmt: skip
    exponent = np.polyfit(np.log(sizes), np.log(totals), 1)[0]
    headings = ("tuples", "fit CPU s", "target CPU s", "both", "microseconds per tuple", "memory MB")
    note = f"Seconds grow as tuples to the power {exponent:.2f}."
    shared.show(f"growth: {size.features} features and the step size, {size.trees} trees", headings, rows, [note])
    return list(records)


def main() -> None:
    parser = shared.parser_of(__doc__)
    parser.add_argument("--size", nargs="+", choices=SIZES, default=list(SIZES), help="sizes to measure")
    parser.add_argument("--threads", type=int, default=1, help="threads of every contender")
    parser.add_argument("--no-growth", action="store_true", help="skip the growth with the tuples")
    asked = parser.parse_args()
    if asked.child:
        who, fields, given, threads = json.loads(asked.child)
        print(json.dumps(measure(who, Size(*fields), given, threads)))
        return
    asked.out = asked.out.resolve()
    saved: Record = {"sizes": {}, "threads": asked.threads}
    for size in [SMOKE] if asked.smoke else [SIZES[name] for name in asked.size]:
        saved["sizes"][size.name] = compare(size, asked)
        print_comparison(size, saved["sizes"][size.name])
    if not asked.no_growth:
        base, tuples = (SMOKE, (100, 200)) if asked.smoke else (SIZES["nav2d"], GROWTH)
        saved["growth"] = growth(base, tuples, asked)
    shared.save(asked.out, "fqi", saved)


if __name__ == "__main__":
    main()
