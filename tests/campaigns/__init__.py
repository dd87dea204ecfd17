"""Long campaigns against files, commands and records: what they share.

`python -m tests.campaigns.NAME [WORK] NUMBER SEED FOLDER` prints the outcomes as JSON; FOLDER is empty.
"""

import copy
import json
import os
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from metastep._core.storage import sha256_of

_TINY = """collect.num_meta_episodes=32 rollout.num_episodes=4 rollout.block_size=8 meta.num_updates=2 fqi.iterations=2
    fqi.regressor.trees=3 fqi.num_stepsizes=11 selection.num_tasks=4 compare.num_tasks=6 compare.num_updates=2
    compare.num_tuning_tasks=2 compare.num_resamples=100 compare.methods=["metafqi","fixed","adam"]"""
SETTINGS = _TINY.split()


class Tally:
    """Count outcomes, and keep the first failures."""

    def __init__(self) -> None:
        self.counts, self.failures = Counter[str](), list[str]()

    def add(self, outcome: str) -> None:
        self.counts[outcome] += 1
        print(dict(self.counts), self.failures[-1:], file=sys.stderr, flush=True)

    def found(self, **more: Any) -> dict[str, Any]:
        return {"outcomes": dict(sorted(self.counts.items())), "failures": self.failures[:20], **more}


def main(campaign: Callable[..., dict[str, Any]]) -> None:
    """Run a campaign with the words of the command line."""
    os.umask(0o022)
    words = [int(word) if word.isdecimal() else word for word in sys.argv[1:-1]]
    print(json.dumps(campaign(*words, Path(sys.argv[-1])), indent=1))


def damaged(draw: random.Random, record: Any, junk: Callable[[], Any]) -> Any:
    """Return a copy of plain data with something in it replaced, removed or added, once to three times."""
    found = copy.deepcopy(record)
    for _ in range(draw.choice([1, 1, 2, 3])):
        place = found
        while isinstance(place, dict | list) and place:
            last = draw.choice([*place] if isinstance(place, dict) else range(len(place)))
            if not isinstance(place[last], dict | list) or draw.random() < 0.3:
                break
            place = place[last]
        if not isinstance(place, dict | list) or not place or draw.random() < 0.05:
            found = junk()
        elif draw.random() < 0.2:
            del place[last]
        elif isinstance(place, dict) and draw.random() < 0.1:
            place["more"] = junk()
        else:
            place[last] = junk()
    return found


def digests(folder: Path, *, hidden: bool = True) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "times.json")
    return {str(path.relative_to(folder)): sha256_of(path) for path in files if hidden or path.name[0] != "."}


def restore(source: Path, target: Path) -> None:
    """Make a folder a copy of another, which need not exist."""
    shutil.rmtree(target, ignore_errors=True)
    if source.exists():
        shutil.copytree(source, target)
