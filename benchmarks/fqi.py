"""Fitted Q-Iteration: one iteration of this package beside scikit-learn and MushroomRL, in one run.

    python benchmarks/fqi.py                       # the four sizes of the paper and the growth: about 15 minutes
    python benchmarks/fqi.py --size nav2d minigolf # some sizes
    python benchmarks/fqi.py --no-growth

An iteration has two stages: the *target*, `l + max_h Q(x', h)` over 101 step sizes for every tuple, and the *fit* of one
forest on it. The second iteration is measured, in a process of its own for every contender, on the same tuples: those of
`metastep collect` with the paper's settings, made up for HalfCheetah and the growth (`peers/fqi_data.py`). Trees and minimum
splits are the paper's. Single Q; the double one takes twice as long for everybody.

| contender | fit | target |
|---|---|---|
| metastep | the Numba forest | the interval walk |
| scikit-learn, naive | ExtraTreesRegressor on float32 rows | `predict` on states x 101 rows, a million rows a call |
| scikit-learn, tuned | the same, columns first, which it reads faster | `predict` on as many states a call as stay in the cache |
| MushroomRL | its FQI: one forest per step size, 101 in all | its own |

Times are CPU seconds, all threads together, of one thread unless `--threads` says otherwise; a busy machine stretches wall
time, much less these. `memory` is the peak above what the tuples take. `mean max Q` is the mean of what the target stage
found, which must agree but for MushroomRL, whose Q function is another. This package is measured before and after the others
and the mean counts. At the largest size the others grow a tenth of the trees, and their seconds are multiplied by ten: both
stages are linear in the trees.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from shared import save

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
from fqi_data import NUM_STEPSIZES, SIZES, Data, Size, forget_peak, load_data, make_up, peak_since, print_result, timed
from venvs import InstallError, interpreter

HERE = Path(__file__).resolve().parent
DATA = HERE / "results" / "fqi-data"

Record = dict[str, Any]
ROWS_A_CALL = 1_000_000
TUNED_BYTES = 8_000_000
FEWER_TREES = 10  # of the largest size, for the others
GROWTH = (10_000, 30_000, 100_000, 300_000, 1_000_000)
WHOLE_TARGETS = {"nav2d": 10.0, "minigolf": 8.0, "cartpole": 10.0, "halfcheetah": 20.0}
STAGE_TARGET = 30.0


class Row(NamedTuple):
    """A contender's result at one size, or why there is none."""

    label: str
    record: Record | None
    failure: str = ""


def measure_metastep(size: Size, data: Data, threads: int) -> None:
    """The second iteration of `MetaFQI`, stage by stage."""
    from metastep import __version__
    from metastep.fqi import ExtraTrees
    from metastep.fqi.qfunction import QFunction, Stepsizes

    inputs = np.column_stack([data.observation, data.stepsize])
    regressor, stepsizes = ExtraTrees(size.trees, size.min_split), Stepsizes(0.0, size.high, NUM_STEPSIZES)

    def fit(rows: Any, targets: Any, seed: int) -> QFunction:
        return QFunction((regressor.fit(rows, targets, seed=seed, threads=threads),), stepsizes)

    fit(inputs[:200], data.reward[:200], 0).maximum(data.next_observation[:2])  # compiles
    first = fit(inputs, data.reward, 0)
    before = forget_peak()
    best, target = timed(lambda: first.maximum(data.next_observation, threads).value)
    _, fitted = timed(lambda: fit(inputs, data.reward + best, 1))
    print_result(__version__, fitted, target, peak_since(before), best)


def measure_sklearn(size: Size, data: Data, threads: int, trees: int, tuned: bool) -> None:
    """The same with scikit-learn and prediction on every step size."""
    import sklearn
    from sklearn.ensemble import ExtraTreesRegressor

    inputs = np.column_stack([data.observation, data.stepsize])
    inputs = np.asfortranarray(inputs) if tuned else inputs
    grid = np.linspace(0, size.high, NUM_STEPSIZES, dtype=np.float32)
    rows_a_call = TUNED_BYTES // (4 * (size.features + 1)) if tuned else ROWS_A_CALL
    states = rows_a_call // NUM_STEPSIZES

    def fit(targets: Any, seed: int) -> Any:
        return ExtraTreesRegressor(trees, min_samples_split=size.min_split, random_state=seed, n_jobs=threads).fit(
            inputs, targets
        )

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
    print_result(sklearn.__version__, fitted, target, peak_since(before), best)


def data_file(size: Size) -> Path:
    """The tuples of a size, made on first use; the process that makes them leaves nothing in this one's memory."""
    path = DATA / f"{size.name}-{size.tuples}.npz"
    if not path.exists():
        DATA.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", "data", "--size", size.name]
        subprocess.run([*command, "--tuples", str(size.tuples), "--data", str(path)], check=True)
    return path


def make_data(size: Size, path: Path) -> None:
    """Collect or make up the tuples and write them."""
    if size.simulated and size.tuples == SIZES[size.name].tuples:
        from metastep.mdp.dataset import Dataset

        folder = DATA / size.name
        command = [
            str(Path(sys.executable).parent / "metastep"),
            "collect",
            size.name,
            "--scale",
            "paper",
            "--seed",
            "0",
        ]
        subprocess.run([*command, "--out", str(folder)], check=True, stdout=subprocess.DEVNULL)
        transitions = Dataset.open(folder / "data").transitions()
        arrays = {name: getattr(transitions, name) for name in Data._fields}
    else:
        arrays = make_up(size)._asdict()
    unfinished = path.with_suffix(".tmp.npz")
    np.savez(unfinished, **arrays)
    unfinished.replace(path)


def run(command: list[str], scale: float = 1.0) -> Record:
    """Run a contender in a process of its own; RuntimeError says why it gave no result."""
    environment = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(command, capture_output=True, text=True, env=kept | environment, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RuntimeError(lines[-1])
    record: Record = json.loads(done.stdout.strip().splitlines()[-1])
    for stage in ("fit", "target"):
        record[stage] = [scale * seconds for seconds in record[stage]]
    return record


def worker(name: str, size: Size, threads: int, trees: int) -> list[str]:
    """The command that measures a contender which this file can measure itself."""
    return [
        sys.executable, str(Path(__file__).resolve()), "--worker", name, "--size", size.name,
        "--tuples", str(size.tuples),
        "--data", str(data_file(size)), "--trees", str(trees), "--threads", str(threads),
    ]  # fmt: skip


def compare(size: Size, threads: int) -> list[Row]:
    """All contenders at one size; this package first, as the mean of a run before and a run after the others."""
    fewer = FEWER_TREES if size.tuples * size.features > 10_000_000 else 1
    trees = size.trees // fewer
    own = [run(worker("metastep", size, threads, size.trees))]
    rows = []
    for name, label in (("naive", "scikit-learn, naive"), ("tuned", "scikit-learn, tuned"), ("", "MushroomRL")):
        try:
            if name:
                command = worker(name, size, threads, trees)
            else:
                script = str(HERE / "peers" / "mushroom_fqi.py")
                command = [str(interpreter("mushroom")), script, "--size", size.name, "--trees", str(trees)]
                command += ["--threads", str(threads), "--data", str(data_file(size))]
            rows.append(Row(label, run(command, fewer)))
        except (InstallError, RuntimeError) as error:
            rows.append(Row(label, None, str(error)))
    own.append(run(worker("metastep", size, threads, size.trees)))
    mean = own[0] | {
        stage: [float(value) for value in np.mean([record[stage] for record in own], axis=0)]
        for stage in ("fit", "target")
    }
    return [Row("metastep", mean), *rows]


def print_comparison(console: Console, size: Size, rows: list[Row]) -> None:
    """The table of one size."""
    table = Table(
        title=f"{size.name}: {size.tuples:,} tuples x {size.features} features and the step size, "
        f"{size.trees} trees, minimum split {size.min_split}",
        title_justify="left",
    )
    table.add_column("contender")
    table.add_column("version")
    for heading in (
        "fit CPU s",
        "target CPU s",
        "both",
        "wall s",
        "fit x",
        "target x",
        "both x",
        "memory MB",
        "mean max Q",
    ):
        table.add_column(heading, justify="right")
    own = rows[0].record
    assert own is not None
    notes = []
    for row in rows:
        if row.record is None:
            table.add_row(row.label, "-", *["-"] * 9)
            notes.append(f"{row.label}: {row.failure}")
            continue
        (fit, fit_wall), (target, target_wall) = row.record["fit"], row.record["target"]
        ratios = (fit / own["fit"][0], target / own["target"][0], (fit + target) / (own["fit"][0] + own["target"][0]))
        table.add_row(
            row.label,
            row.record["version"],
            f"{fit:,.3g}",
            f"{target:,.3g}",
            f"{fit + target:,.3g}",
            f"{fit_wall + target_wall:,.3g}",
            *(f"{ratio:,.1f}" for ratio in ratios),
            f"{row.record['peak_mb']:,.0f}",
            f"{row.record['mean_max_q']:.4f}",
        )
        if row.label == "scikit-learn, naive":
            goals = (
                (ratios[2], WHOLE_TARGETS[size.name], "both stages"),
                (ratios[1], STAGE_TARGET, "the target stage"),
            )
            for ratio, goal, what in goals:
                met = "met" if ratio >= goal else "NOT met"
                notes.append(f"{what}: {ratio:,.1f} times scikit-learn, naive; the goal of {goal:.0f} is {met}.")
    if size.tuples * size.features > 10_000_000:
        notes.append(
            f"the others grew {size.trees // FEWER_TREES} trees; their seconds are multiplied by {FEWER_TREES}."
        )
    console.print(table)
    for note in notes:
        console.print(f"  {note}", markup=False, highlight=False)
    console.print()


def print_growth(console: Console, threads: int) -> list[Record]:
    """How this package's seconds and memory grow with the tuples, at the first size's features and forest."""
    size = SIZES["nav2d"]
    table = Table(
        title=f"growth: {size.features} features and the step size, {size.trees} trees, minimum split {size.min_split}",
        title_justify="left",
    )
    for heading in ("tuples", "fit CPU s", "target CPU s", "both", "microseconds a tuple", "memory MB"):
        table.add_column(heading, justify="right")
    records = []
    for tuples in GROWTH:
        record = run(worker("metastep", size._replace(tuples=tuples), threads, size.trees))
        fit, target = record["fit"][0], record["target"][0]
        table.add_row(
            f"{tuples:,}",
            f"{fit:,.3g}",
            f"{target:,.3g}",
            f"{fit + target:,.3g}",
            f"{1e6 * (fit + target) / tuples:.2f}",
            f"{record['peak_mb']:,.0f}",
        )
        records.append({"tuples": tuples, **record})
    console.print(table)
    total = [sum(record[stage][0] for stage in ("fit", "target")) for record in records]
    exponent = np.polyfit(np.log(GROWTH), np.log(total), 1)[0]
    console.print(f"  seconds grow as tuples to the power {exponent:.2f}\n", highlight=False)
    return records


def main() -> None:
    """Print the tables, or one contender's line when run as a worker."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", nargs="+", choices=SIZES, default=list(SIZES), help="sizes to measure")
    parser.add_argument("--threads", type=int, default=1, help="threads of every contender")
    parser.add_argument("--no-growth", action="store_true", help="leave the growth with the tuples out")
    for hidden in ("--tuples", "--trees"):
        parser.add_argument(hidden, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--worker", choices=("data", "metastep", "naive", "tuned"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        size = SIZES[arguments.size[0]]._replace(tuples=arguments.tuples)
        if arguments.worker == "data":
            make_data(size, arguments.data)
        elif arguments.worker == "metastep":
            measure_metastep(size, load_data(arguments.data), arguments.threads)
        else:
            measure_sklearn(
                size, load_data(arguments.data), arguments.threads, arguments.trees, arguments.worker == "tuned"
            )
        return
    console = Console(width=170)
    saved: Record = {"sizes": {}, "threads": arguments.threads}
    for name in arguments.size:
        rows = compare(SIZES[name], arguments.threads)
        print_comparison(console, SIZES[name], rows)
        saved["sizes"][name] = [row._asdict() for row in rows]
    if not arguments.no_growth:
        saved["growth"] = print_growth(console, arguments.threads)
    save(console, "fqi", saved)


if __name__ == "__main__":
    main()
