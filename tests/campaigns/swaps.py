"""Files of other runs, exchanged files and deleted ones, met by every verb: it refuses them, or gives what it gives without them.

Two runs differ in their seed, and so do two trainings of a policy that were stopped. One to three files of the first are replaced
by those of the second, exchanged with one another or deleted; then one verb works on the folder. If it succeeds, what it prints
and writes must be as for the untouched folder. `check` must name every file that was replaced, or a single one that was deleted.
"""

import random
import shutil
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from typer.testing import CliRunner

from metastep.cli import app
from metastep.experiments import learn
from metastep.experiments.run import run
from metastep.pretrained import load
from tests.campaigns import SETTINGS, Tally, digests, main, restore

VERBS = ("fit", "compare", "report", "publish", "learn", "resume", "evaluate", "load", "check")
UNSEALED = ("times.json", "command.txt")  # replaced ones are not noticed, deleted ones are


class Stopped(Exception):
    pass


def prepare(sandbox: Path) -> dict[str, Path]:
    """Make two runs, two stopped trainings and two published pairs; return the first of each by name."""
    for seed in (0, 1):
        place = sandbox / f"{seed}"
        run("nav2d", place / "run", overrides=[*SETTINGS, f"seed={seed}"])
        write = learn.Checkpoints.write

        def stop(checkpoints: Any, block: int, checkpoint: Any, write: Any = write) -> None:
            write(checkpoints, block, checkpoint)
            if checkpoint.updates == 3:
                raise Stopped

        at_once = patch.object(learn, "_SECONDS_BETWEEN_CHECKPOINTS", 0.0)
        stopping = patch.object(learn.Checkpoints, "write", stop)
        with suppress(Stopped), at_once, stopping:
            learn.learn(load(sandbox / "0" / "run"), "", place / "policy", seed=seed, num_updates=5)
        learn.learn(load(sandbox / "0" / "run"), "", place / "learned", seed=seed, num_updates=5)
        assert CliRunner().invoke(app, publishing(place / "run", place / "models")).exit_code == 0
    return {name: sandbox / "0" / name for name in ("run", "policy", "learned", "models")}


def publishing(folder: Path, out: Path) -> list[str]:
    return ["publish", str(folder), "--name", "m", "--out", str(out), "--device", "cpu"]


def words(verb: str, work: Path) -> tuple[str, list[str]]:
    """Return which folder a verb works on, and its command line."""
    training = ["--out", str(work / "policy"), "--updates", "5", "--device", "cpu"]
    return {
        "publish": ("run", publishing(work / "run", work / "new")),
        "learn": ("run", ["learn", str(work / "run"), "--out", str(work / "new"), "--updates", "2", "--device", "cpu"]),
        "resume": ("policy", ["learn", str(work.parent / "0" / "run"), *training]),
        "evaluate": ("learned", ["evaluate", str(work / "learned"), "--episodes", "4", "--device", "cpu"]),
        "load": ("models", ["inspect", str(work / "models" / "m.safetensors")]),
    }.get(verb, ("run", [verb, str(work / "run")]))


def swapped(folder: Path, other: Path, generator: random.Random) -> dict[str, str]:
    """Replace, exchange or delete some files; return what was done to which of them."""
    names, done = sorted(digests(folder)) + ["times.json"] * (folder / "times.json").exists(), dict[str, str]()
    for name in generator.sample(names, min(len(names), generator.randint(1, 3))):
        same = [each for each in names if Path(each).suffix == Path(name).suffix and each != name]
        kind = generator.choice(["replace", "replace", "exchange", "delete"])
        if kind == "replace" and (other / name).exists():
            shutil.copy(other / name, folder / name)
        elif kind == "exchange" and same and (folder / (partner := generator.choice(same))).exists():
            shutil.copy(folder / partner, folder / name)
        else:
            kind = "delete"
            (folder / name).unlink()
        done[name] = kind
    return done


def campaign(number: int, seed: int, sandbox: Path) -> dict[str, Any]:
    generator, tally = random.Random(seed), Tally()
    first, work = prepare(sandbox), sandbox / "work"
    expected: dict[str, tuple[str, dict[str, str]]] = {}
    for index in range(number + len(VERBS)):
        verb, is_reference = VERBS[index % len(VERBS)], index < len(VERBS)
        place, command = words(verb, work)
        shutil.rmtree(work, ignore_errors=True)
        restore(first[place], work / place)
        done = {} if is_reference else swapped(work / place, sandbox / "1" / place, generator)
        if {"m.md", "m.safetensors"} <= set(done) or {"learning.json", "policy.safetensors"} <= set(done):
            continue  # nothing is left that could tell
        before = digests(work)
        result = CliRunner().invoke(app, command)
        found, output = digests(work), result.stdout
        if is_reference:
            assert result.exit_code == 0, (verb, result.output)
            expected[verb] = output, found
            continue
        outcome, problem = {0: "same", 1: "named", 2: "refused"}.get(result.exit_code, "traceback"), ""
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            outcome, problem = "traceback", "".join(traceback.format_exception(result.exception))[-600:]
        whole, changed = expected[verb][1], {f"{place}/{name}" for name in done}
        if verb == "check":
            sealed = {name for name, kind in done.items() if kind != "delete" and name not in UNSEALED}
            sealed = {name for name in sealed if before.get(f"{place}/{name}") != whole.get(f"{place}/{name}")}
            named = {line.partition(": ")[0] for line in output.splitlines() if not line.endswith(": ok")}
            is_missed = not sealed <= named and "config.json" not in done
            if is_missed or (list(done.values()) == ["delete"] and not named):
                problem = f"names {sorted(named)}"
        elif outcome == "same":
            wrong = {name for name in found.keys() | whole.keys() if found.get(name) != whole.get(name)}
            wrong -= {name for name in changed if found.get(name) == before.get(name)}  # not read, not written
            if wrong or (output != expected[verb][0] and not changed & wrong):
                problem = f"other bytes in {sorted(wrong)}, printed {output[-300:]}"
        elif outcome == "refused" and len(result.stderr.strip().splitlines()) > 3:
            problem = result.stderr
        if problem:
            tally.failures.append(f"{verb} {done}: {problem}")
        tally.add(f"{verb}: {outcome}")
    return tally.found()


if __name__ == "__main__":
    main(campaign)
