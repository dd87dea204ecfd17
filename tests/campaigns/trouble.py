"""A full disk, a folder that becomes read-only, pauses, Ctrl-C twice and a second writer, in any stage of a command.

Each comes at a random moment, or at a random call that changes the disk. The command ends with one sentence or goes on, and the
same command completes the work with the bytes of an undisturbed one. The works are those of `kills`.
"""

import os
import random
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from typing import Any

from tests.campaigns import main, restore
from tests.campaigns.kills import FAULTS, Rehearsed, Stage, run
from tests.processes import Done

# Exit codes; a command may also end before the trouble begins. A fault of a call that is not essential changes nothing.
EXPECTED = {"pause": {0}, "interrupt": {0, 130}, "second writer": {0, 2}} | {fault: {0, 2} for fault in FAULTS}
SIGNALS = {"pause": (signal.SIGSTOP, signal.SIGCONT), "interrupt": (signal.SIGINT, signal.SIGINT)}


def meet(work: str, folder: Path, kind: str, stage: Stage, generator: random.Random) -> list[Done]:
    """Run a command that meets trouble in a stage, and perhaps a second one; return what came out."""
    if kind in FAULTS:
        return [run(work, folder, aimed=(stage.name, generator.randint(1, max(1, stage.calls)), kind))[0]]
    done, threads = list[Done](), list[Thread]()
    moments = generator.uniform(0.0, stage.seconds), generator.uniform(0.0, 0.3)

    def send(process: BaseProcess) -> None:
        for number, seconds in zip(SIGNALS[kind], moments, strict=True):
            time.sleep(seconds)
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, number)

    def began(name: str, _: int, process: BaseProcess) -> None:
        if name != stage.name or threads or done:
            return
        if kind == "second writer":  # while the first one waits
            done.append(run(work, folder)[0])
        else:
            threads.append(Thread(target=send, args=(process,)))
            threads[0].start()

    done.append(run(work, folder, began)[0])
    for thread in threads:
        thread.join()
    return done


def campaign(which: str, number: int, seed: int, sandbox: Path) -> dict[str, Any]:
    generator, rehearsed = random.Random(seed), Rehearsed(which, sandbox)
    tally = rehearsed.tally
    for index in range(number):
        kind, stage = [*EXPECTED][index % len(EXPECTED)], generator.choice(rehearsed.stages)
        restore(stage.folder, rehearsed.folder)
        met = meet(which, rehearsed.folder, kind, stage, generator)
        codes, words = {done.returncode for done in met}, "".join(done.stderr for done in met)
        errors = [line for line in words.splitlines() if line.startswith("error: ")]
        # Python ignores a Ctrl-C that arrives in JAX's callback for garbage collection, and says so.
        is_traceback = "Traceback" in words and "in: <function _xla_gc_callback" not in words
        if not codes <= EXPECTED[kind] or is_traceback or len(errors) != (2 in codes):
            tally.failures.append(f"{kind} in {stage.name}: codes {codes}, {words[-600:]}")
        rehearsed.finish(f"{kind} in {stage.name}")
        tally.add(f"{kind}: {', '.join(map(str, sorted(codes, key=str)))}")
    return tally.found()


if __name__ == "__main__":
    main(campaign)
