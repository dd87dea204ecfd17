"""How time and memory grow: with cores and workers, with K, T, n, H and the number of tuples; and what a task costs.

    python benchmarks/scaling.py                                # all parts
    python benchmarks/scaling.py --part cores --cores 1 2 16    # collection and comparison, each against the fewest cores
    python benchmarks/scaling.py --part ways --cores 16         # threads, processes, host devices, XLA's own threads
    python benchmarks/scaling.py --part sizes                   # time against K, T, n, H and tuples, memory against K
    python benchmarks/scaling.py --part export                  # memory of an export
    python benchmarks/scaling.py --part tasks                   # overhead and bytes of a task (needs the extra dask)

Figures of different numbers of cores are taken in turns, so that other load on the machine hits them alike, each in a process of
its own, because XLA's threads are started once. What was collected or compared must be the same to the byte.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from shared import number_of, peak_memory, save

PARTS = ("cores", "ways", "sizes", "export", "tasks")
WAYS = ("XLA's own threads", "threads", "host devices", "processes")
BASE = {"K": 256, "T": 8, "n": 50, "H": 50}


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    found = work()
    return time.perf_counter() - started, found


def helpers_memory() -> int:
    """The sum of the largest resident sizes of the processes that this one has started and that are there still, in bytes."""
    me, total = os.getpid(), 0
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, StopIteration):  # it ended, or has no memory any more
            if number_of(entry, "PPid") == me:
                total += number_of(entry, "VmHWM") * 1024
    return total


def digest(folder: Path) -> str:
    """Of all files of a run but its command and what it took."""
    total = hashlib.sha256()
    for path in sorted(
        path for path in folder.rglob("*") if path.is_file() and path.name not in ("command.txt", "times.json")
    ):
        total.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return total.hexdigest()


def prepare() -> None:
    from metastep._core.device import prepare_jax

    prepare_jax("cpu")


def no_learned_methods(preset: str, scale: str, settings: list[str]) -> Any:
    """The preset with the methods that follow no model."""
    from metastep.experiments.build import method_specs, some_controller
    from metastep.experiments.config import load

    config = load(preset, scale, settings)
    specs = method_specs(config).values()
    learned = {spec.name for spec in specs if some_controller(spec).needs_model or spec.controller == "single-action"}
    methods = tuple(method for method in config.compare.methods if method.own_name not in learned and not method.model)
    kept = tuple(method for method in methods if method.own_name not in ("menu-oracle", "metastep"))
    return config.model_copy(update={"compare": config.compare.model_copy(update={"methods": kept})})


@contextlib.contextmanager
def doing(kind: str, number: int) -> Iterator[None]:
    """So many cores of this process, or so many workers."""
    if kind == "cores":
        yield
        return
    from metastep.integrations.dask import workers

    with workers(number):
        time.sleep(10.0)  # they import everything
        yield


def stages_once(asked: dict[str, Any]) -> dict[str, Any]:
    """Seconds and digest of each stage: for the first time, as a command has it, and once all processes are there."""
    from metastep._core.parallel import use_cores

    if asked["kind"] == "cores":
        use_cores(asked["number"])
    prepare()
    from metastep.experiments.run import Run
    from metastep.experiments.stages import collect, compare_methods

    stages: dict[str, Callable[[Any], Any]] = {"collect": collect, "compare": compare_methods}
    config, found = no_learned_methods(asked["preset"], asked["scale"], asked["set"]), {}
    with tempfile.TemporaryDirectory() as place, doing(asked["kind"], asked["number"]):
        for name in asked["stage"]:
            took = {}
            # In between all who help start and compile, where the first time was over before they could.
            for attempt in ("first", "again") if asked["number"] == 1 else ("first", "between", "again"):
                folder = Run.create(Path(place) / f"{name}-{attempt}", config)
                took[attempt], _ = timed(lambda name=name, folder=folder: stages[name](folder))
                os.environ["METASTEP_PATIENCE"] = "0"
            found[name] = {**took, "digest": digest(folder.path)}
            del os.environ["METASTEP_PATIENCE"]
    return found


def part_cores(arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds of a collection and of a comparison, for each number of cores."""
    kind = "workers" if arguments.workers else "cores"
    asked = {name: getattr(arguments, name) for name in ("preset", "scale", "set", "stage")} | {"kind": kind}
    found: dict[int, list[dict[str, Any]]] = {number: [] for number in arguments.cores}
    for _ in range(arguments.rounds):
        for number, records in found.items():
            records.append(child("stages", json.dumps(asked | {"number": number})))
    rows = []
    for name in arguments.stage:
        for number, records in found.items():
            row = {"stage": name, kind: number}
            for key, shown in (("again", "seconds"), ("first", "the first time")):
                alone, took = ([record[name][key] for record in some] for some in (found[min(found)], records))
                row[shown] = median(took)
                row[f"{shown}, times as fast"] = median(one / many for one, many in zip(alone, took, strict=True))
            rows.append(row)
        digests = {record[name]["digest"] for records in found.values() for record in records}
        rows[-1]["the same bytes"] = len(digests) == 1
    return {"rows": rows}


def simulate_blocks(
    preset: str, blocks: list[int], run_one: Callable[[Callable[[int], float], list[int]], Any]
) -> float:
    """Environment steps a second of collecting blocks, without the disk."""
    from metastep.experiments.build import build_mdp
    from metastep.experiments.config import load
    from metastep.mdp.blocks import Stream
    from metastep.mdp.controller import Exploration
    from metastep.mdp.loop import run

    config = load(preset, "full", [])
    mdp, updates = build_mdp(config), 10

    def one(block: int) -> float:
        history, _ = run(mdp, Exploration(), mdp.tasks(0, Stream.TRAIN, block), updates, ("theta",))
        return float(history.mean_return[-1].sum())

    run_one(one, blocks[: max(1, len(blocks) // 4)])  # compiles
    took, _ = timed(lambda: run_one(one, blocks))
    steps = mdp.block_size * config.rollout.num_episodes * config.rollout.horizon * (updates + 1)
    return len(blocks) * steps / took


def one_way(way: str, cores: int, preset: str, num_blocks: int) -> float:
    """Steps a second of one way to use the cores; called in a process of its own."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_enable_async_dispatch", way == WAYS[0])
    if way == "host devices":
        jax.config.update("jax_num_cpu_devices", cores)
    threads = 1 if way in ("XLA's own threads", "processes") else cores

    def run_all(one: Callable[[int], float], blocks: list[int]) -> None:
        def placed(item: tuple[int, int]) -> float:
            devices = jax.devices()
            with jax.default_device(devices[item[0] % len(devices)]):
                return one(item[1])

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(placed, enumerate(blocks)))

    return simulate_blocks(preset, list(range(num_blocks)), run_all)


def part_ways(arguments: argparse.Namespace) -> dict[str, Any]:
    """Steps a second of every way to use all cores, in turns."""
    cores = arguments.cores[-1]
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(arguments.rounds):
        for way in WAYS:
            copies = cores if way == "processes" else 1
            blocks = arguments.blocks * (1 if copies > 1 else cores)
            environment = {**os.environ, "PJRT_NPROC": "1" if way == "processes" else str(cores)}
            words = [sys.executable, __file__, "--way", way, "--cores", str(cores), "--blocks", str(blocks)]
            words += ["--preset", arguments.preset]
            children = [
                subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(copies)
            ]
            outputs = [child.communicate()[0] for child in children]
            rates[way].append(sum(float(output.split()[-1]) for output in outputs))
    return {"rows": [{"way": way, "cores": cores, "Msteps/s": median(found) / 1e6} for way, found in rates.items()]}


def child(code: str, *words: str) -> dict[str, Any]:
    """What a part of this file prints in a process of its own, whose peak memory is its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", code, *words], stdout=subprocess.PIPE, text=True, check=True
    )
    record: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return record


def collect_once(sizes: dict[str, int]) -> dict[str, Any]:
    """Seconds and memory of collecting CartPole with these sizes, after some blocks that start processes and compile."""
    os.environ["METASTEP_PATIENCE"] = "0"
    prepare()
    from metastep.experiments.build import build_mdp
    from metastep.experiments.config import load
    from metastep.mdp.collection import collect

    settings = [f"rollout.num_episodes={sizes['n']}", f"rollout.horizon={sizes['H']}"]
    mdp = build_mdp(load("cartpole", "full", settings))
    with tempfile.TemporaryDirectory() as place:
        given = {"num_updates": sizes["T"], "seed": 0, "config": {}}
        collect(mdp, Path(place) / "first", num_episodes=256, **given)
        took, _ = timed(lambda: collect(mdp, Path(place) / "all", num_episodes=sizes["K"], **given))
    return {"seconds": took, "memory": peak_memory(), "helpers": helpers_memory()}


def fit_once(tuples: int) -> dict[str, Any]:
    """Seconds and memory of one iteration of FQI on so many tuples of CartPole's shape."""
    import numpy as np

    from metastep.fqi import MetaFQI
    from metastep.mdp.history import Transitions

    draw = np.random.default_rng(0)
    before, after = (draw.normal(size=(tuples, 12)).astype(np.float32) for _ in range(2))
    steps, reward = (draw.random(tuples).astype(np.float32) for _ in range(2))
    estimator = MetaFQI(iterations=1, stepsize_low=0.0, stepsize_high=1.0, random_state=0)
    estimator.fit(Transitions(before[:500], steps[:500], reward[:500], after[:500]))  # compiles
    took, _ = timed(lambda: estimator.fit(Transitions(before, steps, reward, after)))
    return {"seconds": took, "memory": peak_memory()}


def part_sizes(arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds against each size, all else equal; memory with it."""
    rows = []
    for name in BASE:
        for factor in arguments.factors:
            sizes = BASE | {name: BASE[name] * factor}
            found = [child("collect", json.dumps(sizes)) for _ in range(arguments.rounds)]
            rows.append({"size": name, "of": sizes[name], **_middle(found)})
    for factor in arguments.factors:
        found = [child("fit", str(10_000 * factor)) for _ in range(arguments.rounds)]
        rows.append({"size": "tuples", "of": 10_000 * factor, **_middle(found)})
    return {"rows": rows}


def _middle(found: list[dict[str, Any]]) -> dict[str, float]:
    return {
        "seconds": median(one["seconds"] for one in found),
        "memory, MB": median(one["memory"] for one in found) / 1e6,
        "of those who help, MB": median(one.get("helpers", 0) for one in found) / 1e6,
    }


def export_once(folder: str) -> dict[str, Any]:
    from metastep.mdp.parquet import to_parquet

    before = peak_memory()
    target = Path(folder).parent / "out.parquet"
    took, _ = timed(lambda: to_parquet(Path(folder), target, force=True))
    return {"seconds": took, "memory": peak_memory(), "before": before, "bytes": target.stat().st_size}


def part_export(arguments: argparse.Namespace) -> dict[str, Any]:
    """Memory of exporting data of HalfCheetah's shape, in one block and in several."""
    import numpy as np

    from metastep.mdp.dataset import DatasetWriter, Layout
    from metastep.mdp.history import History

    rows, draw = [], np.random.default_rng(0)
    for block_size in (20, 200):
        layout = Layout(("goal",), {"theta": 108, "natural_gradient": 108}, arguments.updates, 200, block_size)
        with tempfile.TemporaryDirectory() as place:
            writer = DatasetWriter(Path(place) / "data", layout, {}, seed=0, device="cpu")
            for block in layout.blocks:
                arrays = {name: draw.random(shape, np.float32) for name, shape in layout.shapes(block).items()}
                features = {name: arrays[f"feature/{name}"] for name in layout.features}
                rest = {name: array for name, array in arrays.items() if not name.startswith("feature/")}
                writer.add(block, History(**(rest | {"flagged": rest["flagged"] > 2.0}), features=features))
            writer.finish()
            size = sum(path.stat().st_size for path in (Path(place) / "data").iterdir())
            found = child("export", json.dumps(str(Path(place) / "data")))
        grown = (found["memory"] - found["before"]) / 1e6
        rows.append(
            {"blocks": len(layout.blocks), "data, MB": size / 1e6, "memory it took, MB": grown} | _middle([found])
        )
    return {"rows": rows}


def part_tasks(arguments: argparse.Namespace) -> dict[str, Any]:
    """What a task costs besides its work: time and bytes to and fro."""
    prepare()
    import cloudpickle

    from metastep._core.parallel import completed
    from metastep.controllers import Fixed, MetaFQIController
    from metastep.experiments.run import Run
    from metastep.experiments.stages import collect, fit_model
    from metastep.integrations.dask import workers
    from metastep.mdp.blocks import Stream
    from metastep.mdp.runs import BlockRun, run_blocks, start_of

    config = no_learned_methods(arguments.preset, arguments.scale, arguments.set)
    from metastep.experiments.build import build_mdp

    mdp = build_mdp(config)
    start = start_of(mdp, 0, Stream.TEST, 0)
    plain = BlockRun(mdp, Fixed(0.5), start, config.compare.num_updates)
    with tempfile.TemporaryDirectory() as place:
        folder = Run.create(Path(place) / "run", config)
        dataset = collect(folder)
        model = fit_model(folder, dataset)
        blocks = sorted(dataset.folder.glob("block-*"))
        size = blocks[0].stat().st_size
    learned = plain._replace(controller=MetaFQIController(model, 1))
    ran = run_blocks([plain], 0)

    def task(block: BlockRun) -> int:
        return len(cloudpickle.dumps((run_blocks, ([block], 0))))

    rows: list[dict[str, Any]] = [
        {"what": "bytes of a task of a baseline", "figure": task(plain)},
        {"what": "bytes of a task of metaFQI, its model included", "figure": task(learned)},
        {"what": "bytes of the result of a block of the comparison", "figure": len(cloudpickle.dumps(ran))},
        {"what": "bytes of a block of data, where there is no shared folder", "figure": size},
    ]
    with workers(2) as pool:
        number, payload = 1000, cloudpickle.dumps(([plain], 0))
        pool.submit(len, b"").result()  # the workers are there
        calls = ((index, len, payload) for index in range(number))
        before = time.process_time()
        took, _ = timed(lambda: list(completed(pool, lambda _: next(calls, None))))
        busy = time.process_time() - before
    rows.append({"what": "milliseconds of a task that does nothing, two workers", "figure": 1000.0 * took / number})
    rows.append({"what": "of these, of this processor with its scheduler", "figure": 1000.0 * busy / number})
    return {"rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, action="append", help="repeat for several; default: all")
    parser.add_argument("--cores", type=int, nargs="+", help="numbers of cores; default: 1, 2, 4, ... and all")
    parser.add_argument("--workers", action="store_true", help="start so many Dask workers in place of threads")
    parser.add_argument("--stage", choices=("collect", "compare"), nargs="+", default=("collect", "compare"))
    parser.add_argument("--preset", default="cartpole")
    parser.add_argument("--scale", choices=("quick", "full"), default="full")
    parser.add_argument("--set", action="append", default=[], help="override a setting of the preset")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=4, help="blocks for each core, of part ways")
    parser.add_argument("--factors", type=int, nargs="+", default=(1, 4, 16), help="of part sizes")
    parser.add_argument("--updates", type=int, default=500, help="T of the data that is exported")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        once = {"stages": stages_once, "collect": collect_once, "fit": fit_once, "export": export_once}
        print(json.dumps(once[arguments.child](json.loads(arguments.words[0]))))
        return
    if arguments.way:
        print(one_way(arguments.way, arguments.cores[-1], arguments.preset, arguments.blocks))
        return
    there = len(os.sched_getaffinity(0))
    arguments.cores = arguments.cores or sorted({1, there, *(2**power for power in range(10) if 2**power < there)})

    from rich.console import Console
    from rich.table import Table

    console = Console()
    for part in arguments.part or PARTS:
        measure = globals()[f"part_{part}"]
        figures = measure(arguments)
        names = list(dict.fromkeys(name for row in figures["rows"] for name in row))
        table = Table(title=f"{part}: {measure.__doc__.splitlines()[0]}", title_justify="left")
        for name in names:
            table.add_column(name)
        for row in figures["rows"]:
            table.add_row(*(_shown(row.get(name, "")) for name in names))
        console.print(table)
        save(console, f"scaling-{part}", figures)


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
