"""Collection of the paper's datasets: seconds, steps per second, memory, disk, and what the disk costs.

    python benchmarks/collect.py                                   # all four, at the paper's scale
    python benchmarks/collect.py --block-size 3200 --device gpu    # on a GPU, with larger blocks

Each dataset is collected in a process of its own, so that its peak memory is its own. After a first block, which compiles, the
same blocks are simulated with and without the disk, in turns, so that other load on the machine hits both alike.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from shared import peak_memory

PRESETS = ("nav2d", "minigolf", "cartpole", "swingup")


def measure(preset: str, block_size: int | None, rounds: int) -> dict[str, Any]:
    """Collect one dataset, and simulate it without the disk, `rounds` times each."""
    from metastep.experiments.build import build_mdp, updates_collected
    from metastep.experiments.config import load
    from metastep.mdp.blocks import Blocks, Stream
    from metastep.mdp.collection import collect
    from metastep.mdp.controller import Exploration
    from metastep.mdp.loop import run

    overrides = [] if block_size is None else [f"rollout.block_size={block_size}"]
    config = load(preset, "full", overrides)
    mdp, num_updates = build_mdp(config), updates_collected(config)
    num_episodes = config.collect.num_meta_episodes
    started = time.perf_counter()
    run(mdp, Exploration(), mdp.tasks(1, Stream.TRAIN, 0), num_updates)
    first = time.perf_counter() - started
    with_disk, without = [], []
    folder = Path(tempfile.mkdtemp())
    size = 0
    for number in range(rounds):
        started = time.perf_counter()
        target = folder / str(number)
        collect(mdp, target, num_episodes=num_episodes, num_updates=num_updates, seed=0, config=config.to_dict())
        with_disk.append(time.perf_counter() - started)
        size = sum(path.stat().st_size for path in target.iterdir())
        started = time.perf_counter()
        for block in Blocks(num_episodes, mdp.block_size):
            run(mdp, Exploration(), mdp.tasks(0, Stream.TRAIN, block), num_updates)
        without.append(time.perf_counter() - started)
    shutil.rmtree(folder)
    steps = num_episodes * (num_updates + 1) * config.rollout.num_episodes * config.rollout.horizon
    return {
        "preset": preset,
        "tuples": num_episodes * num_updates,
        "steps": steps,
        "first_block": first,
        "seconds": median(with_disk),
        "overhead": median(a / b for a, b in zip(with_disk, without, strict=True)) - 1.0,
        "memory": peak_memory(),
        "disk": size,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, action="append", help="one dataset; repeat for several")
    parser.add_argument("--block-size", type=int, help="learners simulated together")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    presets = arguments.preset or PRESETS
    if arguments.worker:
        import jax

        jax.config.update("jax_platforms", "cpu" if arguments.device == "cpu" else "cuda")
        print(json.dumps(measure(presets[0], arguments.block_size, arguments.rounds)))
        return

    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"The paper's datasets, {arguments.device}; median of {arguments.rounds} rounds")
    for heading in (
        "dataset",
        "tuples",
        "steps",
        "first block",
        "seconds",
        "steps/s",
        "disk overhead",
        "peak memory",
        "disk",
    ):
        table.add_column(heading, justify="left" if heading == "dataset" else "right")
    total = 0.0
    for preset in presets:
        words = [sys.executable, __file__, "--worker", "--preset", preset, "--device", arguments.device]
        words += ["--rounds", str(arguments.rounds)]
        words += ["--block-size", str(arguments.block_size)] if arguments.block_size else []
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            table.add_row(preset, "failed: " + done.stderr.strip().splitlines()[-1])
            continue
        row = json.loads(done.stdout.strip().splitlines()[-1])
        total += row["seconds"]
        table.add_row(
            preset,
            f"{row['tuples']:,}",
            f"{row['steps'] / 1e6:.0f} M",
            f"{row['first_block']:.1f} s",
            f"{row['seconds']:.2f}",
            f"{row['steps'] / row['seconds'] / 1e6:.1f} M",
            f"{100 * row['overhead']:.1f} %",
            f"{row['memory'] / 1e6:.0f} MB",
            f"{row['disk'] / 1e6:.1f} MB",
        )
    console = Console()
    console.print(table)
    console.print(f"together {total:.1f} s after compilation (target on an H200: 10 s; disk overhead under 5 %)")


if __name__ == "__main__":
    main()
