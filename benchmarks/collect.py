"""Collection of the presets' training data: seconds, steps per second, memory, disk, and what writing costs.

    python benchmarks/collect.py                                   # four datasets at full scale
    python benchmarks/collect.py --block-size 3200 --device gpu    # on a GPU, with larger blocks
    python benchmarks/collect.py --growth                          # CartPole with 4 and 16 times K, T, n and H

Each dataset is collected in a process of its own, so that its peak memory is its own. After a first block, which compiles, the
same blocks are simulated with and without the disk, in turns, so that other load on the machine affects both.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import shared
from common import timed
from shared import PeerError, Record

PRESETS = ("nav2d", "minigolf", "cartpole", "swingup")
SMOKE = ["collect.num_meta_episodes=8", "rollout.num_episodes=2", "rollout.block_size=8", "meta.num_updates=2"]
GROWTH = {"collect.num_meta_episodes": 256, "meta.num_updates": 8, "rollout.num_episodes": 50, "rollout.horizon": 50}
HEADINGS = ("dataset", "tuples", "M steps", "first block, s", "seconds", "M steps/s", "disk overhead, %", "memory, MB")
HEADINGS += ("of its workers, MB",)


def measure(preset: str, settings: list[str], rounds: int) -> Record:
    """Collect one dataset, and simulate it without the disk, `rounds` times each."""
    from metastep.experiments.config import build_mdp, load, updates_collected
    from metastep.mdp.blocks import Blocks, Stream
    from metastep.mdp.collection import collect
    from metastep.mdp.controller import Exploration
    from metastep.mdp.loop import run_updates

    config = load(preset, "full", settings)
    mdp, updates, episodes = build_mdp(config), updates_collected(config), config.collect.num_meta_episodes

    def simulate(seed: int, blocks: Any) -> None:
        for block in blocks:
            learners = mdp.begin(mdp.tasks(seed, Stream.TRAIN, block))
            run_updates(mdp, Exploration(), learners, mdp, updates, from_start=True)

    def write(folder: Path) -> None:
        collect(mdp, folder, num_episodes=episodes, num_updates=updates, seed=0, config=config.to_dict())

    _, first = timed(lambda: simulate(1, [0]))
    with_disk, without = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as place:
            target = Path(place, "data")
            with_disk.append(timed(lambda target=target: write(target))[1].wall)
            size = sum(path.stat().st_size for path in target.iterdir())
        without.append(timed(lambda: simulate(0, Blocks(episodes, mdp.block_size)))[1].wall)
    return {
        "tuples": episodes * updates,
        "steps": episodes * (updates + 1) * config.rollout.num_episodes * config.rollout.horizon,
        "first_block": first.wall,
        "seconds": median(with_disk),
        "overhead": median(a / b for a, b in zip(with_disk, without, strict=True)) - 1.0,
        "memory": shared.memory_of(),
        "workers_memory": shared.memory_of_children(),
        "disk": size,
    }


def main() -> None:
    parser = shared.parser_of(__doc__)
    parser.add_argument("--preset", choices=PRESETS, nargs="+", default=PRESETS)
    parser.add_argument("--growth", action="store_true", help="CartPole at small sizes, each 4 and 16 times as large")
    parser.add_argument("--block-size", type=int, help="learners simulated together")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    if asked.child:
        print(json.dumps(measure(**json.loads(asked.child))))
        return
    block = [f"rollout.block_size={asked.block_size}"] if asked.block_size else []
    jobs = {} if asked.growth else {preset: (preset, block) for preset in asked.preset}
    if asked.growth:
        sizes = [GROWTH, *(GROWTH | {name: by * GROWTH[name]} for name in GROWTH for by in (4, 16))]
        described = {", ".join(f"{value}" for value in size.values()): size for size in sizes}
        for name, size in described.items():
            jobs[f"cartpole, {name}"] = "cartpole", [*block, *(f"{key}={value}" for key, value in size.items())]
    if asked.smoke:
        jobs, asked.rounds = {"nav2d": ("nav2d", SMOKE)}, 1
    rows, notes, found = [], [], {}
    for name, (preset, settings) in jobs.items():
        child = json.dumps({"preset": preset, "settings": settings, "rounds": asked.rounds})
        platform = "cpu" if asked.device == "cpu" else "cuda"
        try:
            row = shared.run_child(name, [sys.executable, __file__, "--child", child], JAX_PLATFORMS=platform)
        except PeerError as error:
            notes.append(str(error))
            continue
        found[name] = row
        numbers = (row["steps"] / 1e6, row["first_block"], row["seconds"], row["steps"] / row["seconds"] / 1e6)
        cells = [*numbers, 100 * row["overhead"], row["memory"] / 1e6, row["workers_memory"] / 1e6]
        rows.append([name, f"{row['tuples']:,}", *(f"{value:,.3g}" for value in cells)])
    total = sum(row["seconds"] for row in found.values())
    notes.append(f"Together {total:.1f} s after compilation (targets: 10 s on an H200, disk overhead below 5 %).")
    shared.show(f"Training data, {asked.device}; median of {asked.rounds} rounds", HEADINGS, rows, notes)
    shared.save(asked.out, f"collect-{asked.device}", found)
    sys.exit(len(found) < len(jobs))


if __name__ == "__main__":
    main()
