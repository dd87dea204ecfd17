"""What the peers of `ppo.py` share: the command line, the clock and the line of JSON. Needs the standard library alone."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple, get_type_hints


class Training(NamedTuple):
    """What the command line asks for: PPO on CartPole-v1."""

    learners: int
    envs: int
    steps: int
    epochs: int
    minibatch: int
    hidden: int
    seconds: float

    @property
    def batch(self) -> int:
        """Environment steps of a learner for one update."""
        return self.envs * self.steps


def training_from_arguments(description: str, arguments: list[str] | None = None) -> Training:
    """The settings of a peer, by default those of the command line."""
    parser = argparse.ArgumentParser(description=description)
    for name, kind in get_type_hints(Training).items():
        parser.add_argument(f"--{name}", type=kind, required=True)
    return Training(**vars(parser.parse_args(arguments)))


def measured(job: Training, update: Callable[[int], Any], name: str, version: str) -> dict[str, Any]:
    """Environment steps a second with learning: `update(n)` makes n updates of every learner and waits for them.

    What is compiled is compiled before; then as many updates as fit into the time.
    """
    update(1)
    start = time.perf_counter()
    update(1)
    num = max(1, int(job.seconds / max(time.perf_counter() - start, 1e-6)))
    update(num)  # the program for so many at once, where there is one
    wall, cpu = time.perf_counter(), time.process_time()
    update(num)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "name": name,
        "version": version,
        **job._asdict(),
        "updates": num,
        "steps_per_second": num * job.learners * job.batch / wall,
        "cores_used": cpu / wall,
    }


def print_record(record: dict[str, Any]) -> None:
    """The last line of a peer."""
    print(json.dumps(record))
