"""Runs of Stable-Baselines3's PPO: their curves, a rate that follows the KL divergence, and a file of those that are finished."""

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from stable_baselines3.common.callbacks import BaseCallback

from metastep.pretrained import rate_model

TARGET, FACTOR, FIRST, SMALLEST, LARGEST = 0.01, 1.5, 1e-3, 1e-5, 1e-2  # rsl_rl's adaptive schedule
Record = dict[str, Any]


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


def workers(num: int) -> Executor:
    """Return so many processes; one run at a time does without another process that imports everything."""
    return ThreadPoolExecutor(1) if num == 1 else ProcessPoolExecutor(num, mp_context=get_context("spawn"))


def finished(kept: Path, kind: Any) -> dict[Any, Record]:
    """Return the records of the file `kept` by their job, a named tuple of the class `kind`; cut off a line that is not whole."""
    if not kept.exists():
        return {}
    *lines, last = kept.read_text().split("\n")
    if last:  # of a run that was stopped while its line was written
        kept.write_text("".join(f"{line}\n" for line in lines))
    return {kind(*(record.get(name) for name in kind._fields)): record for record in map(json.loads, lines)}


def run_all(
    jobs: Sequence[Any],
    kept: Path,
    pool: Executor,
    work: Callable[[Any], Record],
    seconds: float = np.inf,
    console: Console | None = None,
) -> list[Record]:
    """Return the records of all jobs in their order; those that the file `kept` holds are not run again.

    After some seconds no further job is begun, and TimeoutError says how many are left. Where a job raises, those that run are
    awaited and kept before its error is raised.
    """
    since, found = time.monotonic(), finished(kept, type(jobs[0]))
    missing = [job for job in dict.fromkeys(jobs) if job not in found]
    kept.parent.mkdir(parents=True, exist_ok=True)
    failure: BaseException | None = None
    with kept.open("a") as file:
        futures = {pool.submit(work, job): job for job in missing} if seconds > 0.0 else {}
        for future in track(as_completed(futures), f"{len(missing)} runs", total=len(missing), console=console):
            if future.cancelled():
                continue
            failure = future.exception() or failure
            if future.exception() is None:
                found[futures[future]] = future.result()
                print(json.dumps(found[futures[future]]), file=file, flush=True)
            if failure is not None or time.monotonic() - since > seconds:
                for waiting in futures:
                    waiting.cancel()  # those that run are awaited
    if failure is not None:
        raise failure
    if left := sum(job not in found for job in missing):
        raise TimeoutError(f"{left} runs are left; call again with the same options to go on.")
    return [found[job] for job in jobs]
