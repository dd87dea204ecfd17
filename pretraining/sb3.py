"""Runs of Stable-Baselines3's PPO: their curves, a rate that follows the KL divergence, and a file of those that are finished."""

import json
import tomllib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from stable_baselines3.common.callbacks import BaseCallback

from metastep.pretrained import rate_model
from pretraining.work import Clock

TARGET, FACTOR, FIRST, SMALLEST, LARGEST = 0.01, 1.5, 1e-3, 1e-5, 1e-2  # rsl_rl's adaptive schedule
Record = dict[str, Any]
Pool = tuple[Executor, int]
Work = Callable[[Any], Record]
ZOO: dict[str, Record] = tomllib.loads(Path(__file__).with_name("zoo.toml").read_text("utf-8"))
TUNED = ("learning_rate", "clip_range", "gae_lambda", "ent_coef")  # what a method sets; the rest belongs to the loop


class Curve(BaseCallback):
    """Record at every update the mean of the last episodes of each environment, or of what it has paid so far."""

    def __init__(self, num_envs: int, episodes: int = 1) -> None:
        super().__init__()
        self.curve: list[float] = []
        self.returns = [deque[float](maxlen=episodes) for _ in range(num_envs)]
        self.paid = np.zeros(num_envs)

    def _on_step(self) -> bool:
        scaled: Any = self.model.get_vec_normalize_env()
        self.paid += self.locals["rewards"] if scaled is None else scaled.get_original_reward()
        for lane, info in enumerate(self.locals["infos"]):
            if "episode" in info:
                self.returns[lane].append(float(info["episode"]["r"]))
                self.paid[lane] = 0.0
        return True

    def _on_rollout_end(self) -> None:
        pairs = zip(self.returns, self.paid, strict=True)
        self.curve.append(float(np.mean([np.mean(returns) if returns else paid for returns, paid in pairs])))


class KLAdaptive(BaseCallback):
    """Adapt the rate before every gradient step as rsl_rl does: by a factor of 1.5 up or down, where the divergence of the
    minibatch from the policy that sampled it is below half or above twice its target."""

    def __init__(self, target: float = TARGET, largest: float = LARGEST) -> None:
        super().__init__()
        self.target, self.largest, self.rate = target, largest, FIRST

    def _init_callback(self) -> None:
        algorithm: Any = self.model
        buffer, policy = algorithm.rollout_buffer, algorithm.policy
        get, evaluate = buffer.get, policy.evaluate_actions

        def minibatches(batch_size: int | None = None) -> Iterator[Any]:
            for self.minibatch in get(batch_size):
                yield self.minibatch

        def compared(*given: Any) -> Any:
            found = evaluate(*given)
            log_ratio = found[1].detach() - self.minibatch.old_log_prob
            divergence = float((log_ratio.exp() - 1.0 - log_ratio).mean())
            if divergence > 2.0 * self.target:
                self.rate = max(SMALLEST, self.rate / FACTOR)
            elif 0.0 < divergence < self.target / 2.0:
                self.rate = min(self.largest, self.rate * FACTOR)
            for group in policy.optimizer.param_groups:
                group["lr"] = self.rate
            return found

        buffer.get, policy.evaluate_actions = minibatches, compared

    def _on_step(self) -> bool:
        return True


@cache
def fingerprint_of(model: str) -> str:
    """Return what distinguishes a model from another one of its name; nothing without a model."""
    return rate_model(model).fingerprint if model else ""


@contextmanager
def workers(num: int) -> Iterator[Pool]:
    """Yield so many processes; one run at a time does without another process that imports everything."""
    with ThreadPoolExecutor(1) if num == 1 else ProcessPoolExecutor(num, mp_context=get_context("spawn")) as pool:
        yield pool, num


def finished(kept: Path, kind: Any) -> dict[Any, Record]:
    """Return the records of the file `kept` by their job, a named tuple of the class `kind`; cut off a line that is not whole."""
    if not kept.exists():
        return {}
    *lines, last = kept.read_text().split("\n")
    if last:  # of a run that was stopped while its line was written
        kept.write_text("".join(f"{line}\n" for line in lines))
    return {kind(*(record.get(name) for name in kind._fields)): record for record in map(json.loads, lines)}


def run_all(
    jobs: Sequence[Any], kept: Path, pool: Pool, work: Work, clock: Clock | None = None, console: Console | None = None
) -> list[Record]:
    """Return the records of all jobs in their order; those that the file `kept` holds are not run again.

    A job is begun only if it fits into the time left, as long as those with the same first two fields took; TimeoutError says
    how many are left. Where a job raises, those that run are awaited and kept before its error is raised.
    """
    found, clock, (executor, num) = finished(kept, type(jobs[0])), clock or Clock(), pool
    waiting = missing = [job for job in dict.fromkeys(jobs) if job not in found]
    took = {job[:2]: record.get("seconds", 0.0) for job, record in found.items()}
    running, failure = dict[Future[Record], tuple[Any, float]](), list[BaseException]()

    def completed() -> Iterator[Future[Record]]:
        nonlocal waiting
        while True:
            longest = max(took.values(), default=0.0)
            for job in [job for job in waiting if clock.fits(took.get(job[:2], longest))][: num - len(running)]:
                if not failure:
                    running[executor.submit(work, job)] = job, clock.now()
                    waiting = [other for other in waiting if other != job]
            if not running:
                return
            yield from wait(running, return_when=FIRST_COMPLETED).done

    kept.parent.mkdir(parents=True, exist_ok=True)
    with kept.open("a") as file:
        for future in track(completed(), f"{len(missing)} runs", total=len(missing), console=console):
            job, since = running.pop(future)
            took[job[:2]] = max(took.get(job[:2], 0.0), clock.now() - since)
            if error := future.exception():
                failure.append(error)
            else:
                found[job] = future.result()
                print(json.dumps(found[job]), file=file, flush=True)
    if failure:
        raise failure[0]
    if waiting:
        raise TimeoutError(f"{len(waiting)} runs are left; call again with the same options to go on.")
    return [found[job] for job in jobs]
