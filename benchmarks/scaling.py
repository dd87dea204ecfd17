"""How the stages of a run scale with cores or Dask workers, as commands of the command line.

    python benchmarks/scaling.py --cores 1 2 16                  # CartPole at full scale
    python benchmarks/scaling.py --workers 1 2 4 --scale quick   # Dask workers (needs the extra dask)

Every stage is one command, with its start and its compilations or reads from the cache of compiled programs; the first round
fills that cache and is not counted. Numbers of cores take turns, so that other load on the machine affects all. All arrays
that the stages write must be identical. `collect.py --growth` and `fqi.py` measure growth with the sizes of a run.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from statistics import median
from typing import Any

import shared
from common import timed

STAGES = ("collect", "fit", "compare")
SMOKE = ["collect.num_meta_episodes=8", "rollout.num_episodes=2", "rollout.block_size=8", "meta.num_updates=2"]
SMOKE += ["fqi.iterations=1", "fqi.regressor.trees=2", "selection.num_tasks=2", "compare.num_updates=1"]
SMOKE += ['compare.methods=[{name="metafqi"}]']


def seconds_of(stage: str, folder: Path, number: int, asked: Namespace) -> float:
    """Run a stage as a command and return the seconds it took."""
    words = [sys.executable, "-m", "metastep", stage, "--workers" if asked.workers else "--cores", str(number)]
    if stage == "collect":
        words += [asked.preset, "--scale", asked.scale, "--out", str(folder)]
        words += [word for setting in asked.set for word in ("--set", setting)]
    else:
        words.append(str(folder))
    return timed(lambda: subprocess.run(words, check=True, stdout=subprocess.DEVNULL))[1].wall


def digest(folder: Path) -> str:
    """Return the hash of all arrays of a run."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*.safetensors")):
        total.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return total.hexdigest()


def main() -> None:
    available = len(os.sched_getaffinity(0))
    powers = [2**power for power in range(10) if 2**power < available]
    parser = shared.parser_of(__doc__)
    parser.add_argument("--cores", type=int, nargs="+", default=sorted({1, available, *powers}))
    parser.add_argument("--workers", type=int, nargs="+", help="numbers of Dask workers, in place of cores")
    parser.add_argument("--preset", default="cartpole")
    parser.add_argument("--scale", choices=("quick", "full"), default="full")
    parser.add_argument("--set", action="append", default=[], help="override a setting of the preset")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    stages = STAGES[:2] if asked.smoke else STAGES
    if asked.smoke:
        asked.preset, asked.scale, asked.set, asked.rounds, asked.cores = "nav2d", "quick", SMOKE, 0, [2]
    numbers = asked.workers or asked.cores
    took: dict[tuple[str, int], list[float]] = {(stage, number): [] for stage in stages for number in numbers}
    digests: set[str] = set()
    for attempt in range(asked.rounds + 1):
        for number in numbers:
            with tempfile.TemporaryDirectory() as place:
                folder = Path(place, "run")
                for stage in stages:
                    seconds = seconds_of(stage, folder, number, asked)
                    if attempt or not asked.rounds:
                        took[stage, number].append(seconds)
                digests.add(digest(folder))
    rows: list[list[Any]] = []
    for (stage, number), found in took.items():
        alone = took[stage, numbers[0]]
        speedup = median(one / many for one, many in zip(alone, found, strict=True))
        rows.append([stage, str(number), f"{median(found):.3g}", f"{speedup:.2f}"])
    kind = "workers" if asked.workers else "cores"
    same = "identical" if len(digests) == 1 else "NOT identical"
    headings = ("stage", kind, "seconds", f"times as fast as with {numbers[0]}")
    note = f"The arrays of all {(asked.rounds + 1) * len(numbers)} runs are {same}."
    shared.show(f"{asked.preset}, {asked.scale} scale", headings, rows, [note])
    figures = [{"stage": stage, kind: number, "seconds": found} for (stage, number), found in took.items()]
    shared.save(asked.out, f"scaling-{kind}", {"rows": figures, "identical": len(digests) == 1})
    sys.exit(len(digests) > 1)


if __name__ == "__main__":
    main()
