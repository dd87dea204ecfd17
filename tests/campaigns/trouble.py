"""A full disk, a folder that becomes read-only, pauses, Ctrl-C twice and a second writer, in any stage of a command.

Each comes at a random moment, or at a random call that changes the disk. The command ends with one sentence or goes on, and the
same command completes the work with the bytes of an undisturbed one.

`python -m tests.campaigns.trouble WORK NUMBER SEED FOLDER` prints the outcomes as JSON; WORK is one of `kills.WORKS`.
"""

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from typing import Any

from tests.campaigns.kills import FAULTS, SAID, WORKS, Stage, digests, restore, run, undisturbed

# Exit codes; a command may also end before the trouble begins. A fault of a call that is not essential changes nothing.
EXPECTED = {"pause": {0}, "interrupt": {0, 130}, "second writer": {0, 2}} | {fault: {0, 2} for fault in FAULTS}
SIGNALS = {"pause": (signal.SIGSTOP, signal.SIGCONT), "interrupt": (signal.SIGINT, signal.SIGINT)}


def meet(work: str, folder: Path, kind: str, stage: Stage, generator: random.Random) -> set[int | None]:
    """Run a command that meets trouble in a stage; return the exit codes."""
    if kind in FAULTS:
        return {run(work, folder, aimed=(stage.name, generator.randint(1, max(1, stage.calls)), kind))[0]}
    codes, threads, moment = set[int | None](), list[Thread](), generator.uniform(0.0, stage.seconds)
    pause = generator.uniform(0.0, 0.3)

    def send(process: BaseProcess) -> None:
        for number, seconds in zip(SIGNALS[kind], (moment, pause), strict=True):
            time.sleep(seconds)
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, number)

    def began(name: str, _: int, process: BaseProcess) -> None:
        if name != stage.name or threads or codes:
            return
        if kind == "second writer":  # while the first one waits
            codes.add(run(work, folder)[0])
        else:
            threads.append(Thread(target=send, args=(process,)))
            threads[0].start()

    codes.add(run(work, folder, began)[0])
    for thread in threads:
        thread.join()
    return codes


def campaign(which: str, number: int, seed: int, sandbox: Path) -> dict[str, Any]:
    generator, work, folder = random.Random(seed), WORKS[which], sandbox / "work"
    work.inputs(folder)
    stages = undisturbed(which, folder, sandbox / "copies")
    reference, said = digests(folder), folder.with_name(SAID)
    counts, failures = Counter[str](), list[str]()
    for index in range(number):
        kind, stage = [*EXPECTED][index % len(EXPECTED)], generator.choice(stages)
        restore(stage.folder, folder)
        said.unlink(missing_ok=True)
        codes = meet(which, folder, kind, stage, generator)
        words = said.read_text(errors="replace")
        errors = [line for line in words.splitlines() if line.startswith("error: ")]
        # Python ignores a Ctrl-C that arrives in JAX's callback for garbage collection, and says so.
        is_traceback = "Traceback" in words and "in: <function _xla_gc_callback" not in words
        if not codes <= EXPECTED[kind] or is_traceback or len(errors) != (2 in codes):
            failures.append(f"{kind} in {stage.name}: codes {codes}, {words[-600:]}")
        is_complete = work.refuses_twice and digests(folder, hidden=False) == reference
        code, _ = run(which, folder)
        if code != (2 if is_complete else 0) or digests(folder, hidden=not is_complete) != reference:
            failures.append(f"{kind} in {stage.name}: then code {code}, other bytes: {said.read_text()[-300:]}")
        if problems := work.problems(folder):
            failures.append(f"{kind} in {stage.name}: check finds {problems}")
        counts[f"{kind}: {', '.join(map(str, sorted(codes, key=str)))}"] += 1
        print(dict(counts), failures[-1:], file=sys.stderr, flush=True)
    return {"outcomes": dict(sorted(counts.items())), "failures": failures[:20]}


if __name__ == "__main__":
    os.umask(0o022)
    print(json.dumps(campaign(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))))
