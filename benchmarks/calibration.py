"""Measure how often intervals over tasks cover the true mean, how wide they are, and how often a test errs. Markdown tables.

    python benchmarks/calibration.py                        # every table: about ten minutes on one core
    python benchmarks/calibration.py --part wins --size 500 # one table, coarse

docs/lab/calibration.md has the result.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from math import gamma
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from metastep.evaluation.intervals import (
    holm,
    improvement_probability,
    interquartile_mean,
    mean_interval,
    paired_test,
    verdict,
)

sys.path.append(str(Path(__file__).resolve().parent.parent))
from paper.seeds import hierarchical_interval

Array = NDArray[np.float64]
Ends = tuple[Array, Array]
NUMS = (20, 32, 100)
CHUNK = 250  # samples that share their resamples


class Null(NamedTuple):
    """A distribution over tasks with its mean."""

    draw: Callable[[np.random.Generator, tuple[int, int]], Array]
    mean: float


def rarely(share: float, draw: Callable[[np.random.Generator, tuple[int, int]], Array]) -> Callable[..., Array]:
    return lambda rng, shape: np.where(rng.random(shape) < share, draw(rng, shape), 0.0)


def exponential(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    return rng.exponential(size=shape)


def normal(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    return rng.normal(size=shape)


NULLS = {
    "normal": Null(normal, 0.0),
    "uniform": Null(lambda rng, shape: rng.random(shape), 0.5),
    "Student's t, 3 degrees": Null(lambda rng, shape: rng.standard_t(3, size=shape), 0.0),
    "Laplace": Null(lambda rng, shape: rng.laplace(size=shape), 0.0),
    "normal, one in ten 5 times as wide": Null(
        lambda rng, shape: rng.normal(size=shape) * np.where(rng.random(shape) < 0.1, 5.0, 1.0), 0.0
    ),
    "log-normal minus log-normal": Null(lambda rng, shape: rng.lognormal(size=shape) - rng.lognormal(size=shape), 0.0),
    "gamma(2)": Null(lambda rng, shape: rng.gamma(2.0, size=shape), 2.0),
    "exponential": Null(exponential, 1.0),
    "gamma(0.25)": Null(lambda rng, shape: rng.gamma(0.25, size=shape), 0.25),
    "Weibull(0.7)": Null(lambda rng, shape: rng.weibull(0.7, size=shape), gamma(1.0 + 1.0 / 0.7)),
    "log-normal": Null(lambda rng, shape: rng.lognormal(size=shape), float(np.exp(0.5))),
    "Pareto(3)": Null(lambda rng, shape: rng.pareto(3.0, size=shape), 0.5),
    "Poisson(1)": Null(lambda rng, shape: rng.poisson(1.0, size=shape).astype(np.float64), 1.0),
    "beta(5, 0.5), below a bound": Null(lambda rng, shape: rng.beta(5.0, 0.5, size=shape), 5.0 / 5.5),
    "beta(10, 0.3), closer to it": Null(lambda rng, shape: rng.beta(10.0, 0.3, size=shape), 10.0 / 10.3),
    "50 % zeros, rest exponential": Null(rarely(0.5, exponential), 0.5),
    "80 % zeros, rest exponential": Null(rarely(0.2, exponential), 0.2),
    "90 % zeros, rest exponential": Null(rarely(0.1, exponential), 0.1),
    "90 % zeros, rest normal": Null(rarely(0.1, normal), 0.0),
}


def samples(null: Null, num: int, size: int, seed: int = 0) -> Array:
    return null.draw(np.random.default_rng((seed, num)), (size, num))


def t_interval(values: Array) -> Ends:
    mean, error = values.mean(axis=1), values.std(axis=1, ddof=1) / np.sqrt(values.shape[1])
    half = stats.t.ppf(0.975, values.shape[1] - 1) * error
    return mean - half, mean + half


def johnson(values: Array) -> Ends:
    """Johnson's own interval: Student's, its centre moved by mu_3 / (6 s^2 n)."""
    num, mean = values.shape[1], values.mean(axis=1)
    third = ((values - mean[:, None]) ** 3).sum(axis=1) * num / ((num - 1) * (num - 2))
    variance = values.var(axis=1, ddof=1)
    shift = third / (6.0 * np.where(variance > 0.0, variance, 1.0) * num)
    low, high = t_interval(values)
    return low + shift, high + shift


def bootstrap(values: Array, method: str, *, is_widened: bool = False) -> Ends:
    """SciPy's interval; where it is widened, by Hesterberg's rule for small samples."""
    num = values.shape[1]
    widened = 1.0 - 2.0 * stats.norm.cdf(stats.t.ppf(0.025, num - 1) * np.sqrt(num / (num - 1)))
    ends = []
    for index in range(0, len(values), CHUNK):
        rows = values[index : index + CHUNK]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # samples of equal numbers have no BCa interval
            found = stats.bootstrap(
                (rows,),
                np.mean,
                n_resamples=1000,
                batch=40,
                axis=-1,
                confidence_level=widened if is_widened else 0.95,
                method=method,
                rng=np.random.default_rng(index),
            ).confidence_interval
        mean = rows.mean(axis=1)
        ends.append([np.where(np.isnan(end), mean, end) for end in found])
    low, high = np.concatenate(ends, axis=1)
    return low, high


INTERVALS: dict[str, Callable[[Array], Ends]] = {
    "Student's t": t_interval,
    "percentile": partial(bootstrap, method="percentile"),
    "BCa": partial(bootstrap, method="BCa"),
    "BCa, widened": partial(bootstrap, method="BCa", is_widened=True),
    "Johnson": johnson,
    "adjusted t": mean_interval,
}


def percent(*shares: float) -> str:
    return " | ".join(f"{100.0 * share:.1f}" for share in shares)


def covers(ends: Ends, truth: float) -> NDArray[np.bool_]:
    """Whether intervals hold the truth; rounding must not decide where one ends at a number that the mean equals."""
    return (ends[0] <= truth + 1e-12) & (ends[1] >= truth - 1e-12)


def coverage_rows(size: int) -> Iterator[str]:
    """Coverage in percent and mean width over that of Student's interval; last the mean distance from 95 %, and the least."""
    found = []
    for name, null in NULLS.items():
        for num in NUMS:
            values = samples(null, num, size)
            student = np.subtract(*reversed(t_interval(values)))
            cells = []
            for make in INTERVALS.values():
                low, high = make(values)
                width = ((high - low)[student > 0.0] / student[student > 0.0]).mean()
                cells.append((covers((low, high), null.mean).mean(), width))
            found.append([share for share, _ in cells])
            yield f"{name} | {num} | " + " | ".join(f"{percent(share)} ({width:.2f})" for share, width in cells)
    shares = np.array(found)
    yield f"**mean distance from 95 %** | all | {percent(*np.abs(shares - 0.95).mean(axis=0))}"
    yield f"**least** | all | {percent(*shares.min(axis=0))}"


def few_rows(size: int) -> Iterator[str]:
    """Coverage where few tasks differ, by how many do."""
    null = NULLS["90 % zeros, rest exponential"]
    for num in NUMS:
        values = samples(null, num, size)
        covered, differing = covers(mean_interval(values), null.mean), (values > 0.0).sum(axis=1)
        shares = (covered[differing >= least] for least in (0, 1, 2, 4, 6))
        yield f"{num} | " + " | ".join(percent(share.mean()) if share.size else "" for share in shares)


def wins_rows(size: int) -> Iterator[str]:
    """False wins of paired tests, and of families of five with Holm's correction, where there is no difference."""
    for name, null in NULLS.items():
        for num in NUMS:
            values = samples(null, num, size, seed=1) - null.mean
            parts = [paired_test(values[index : index + CHUNK], seed=index) for index in range(0, size, CHUNK)]
            _, low, high, p_value = map(np.concatenate, zip(*parts, strict=True))
            ends = zip(low, high, p_value, strict=True)
            wins = np.mean([verdict(*row, 0.95) != "not distinguishable" for row in ends])
            families = np.mean([(holm(family) < 0.05).any() for family in p_value.reshape(-1, 5)])
            yield f"{name} | {num} | {percent(float(wins), float(families))}"


def interquartile_of(null: Null, num: int = 1_000_000) -> float:
    return float(np.sort(samples(null, num, 1)[0])[num // 4 : num - num // 4].mean())


def interquartile_rows(size: int) -> Iterator[str]:
    for name, null in NULLS.items():
        if "zeros" in name:
            continue  # the interquartile mean is zero or nearly so
        truth = interquartile_of(null)
        for num in NUMS:
            values = samples(null, num, size, seed=3)
            parts = [
                interquartile_mean(values[index : index + CHUNK], seed=index, num_resamples=1000)[1:]
                for index in range(0, size, CHUNK)
            ]
            low, high = np.concatenate(parts, axis=1)
            yield f"{name} | {num} | {percent(covers((low, high), truth).mean())}"


def improvement_rows(_: int) -> Iterator[str]:
    """Exact coverage of the probability of improvement, over 25 shares of wins among the tasks that do not tie."""
    for num in NUMS:
        wins, losses = (one.ravel() for one in np.mgrid[: num + 1, : num + 1])
        wins, losses = wins[wins + losses <= num], losses[wins + losses <= num]
        place = np.arange(num)
        found = improvement_probability((place < wins[:, None]).astype(float) - (place >= num - losses[:, None]))
        for ties in (0.0, 0.1, 0.5, 0.9):
            covered = []
            for win in np.linspace(0.5, 0.98, 25) * (1.0 - ties):
                counts = np.stack([wins, losses, num - wins - losses], axis=1)
                weight = stats.multinomial.pmf(counts, num, [win, 1.0 - ties - win, ties])
                covered.append(float(weight @ covers((found.low, found.high), win + ties / 2.0)))
            yield f"{num} | {100 * ties:.0f} % | {percent(float(np.mean(covered)), min(covered), max(covered))}"


def resampled_twice(values: Array, rng: np.random.Generator, num_resamples: int = 500) -> Ends:
    """The plain hierarchical bootstrap: seeds with replacement, then tasks within each; percentiles."""
    seeds, num = values.shape
    chosen = rng.integers(0, seeds, (num_resamples, seeds, 1))
    means = values[chosen, rng.integers(0, num, (num_resamples, seeds, num))].mean(axis=(1, 2))
    low, high = np.quantile(means, [0.025, 0.975])
    return low, high


def seeds_rows(size: int) -> Iterator[str]:
    """Coverage over seeds and tasks in percent, and mean width over that of an interval over tasks only.

    The seeds' variance is given as a multiple of the error that tasks leave in a seed's mean.
    """
    names = ("normal", "exponential", "90 % zeros, rest exponential")
    for name, num_seeds, num, ratio in product(names, (3, 5), (40, 100), (0.0, 1.0, 4.0, 25.0)):
        rng, null = np.random.default_rng((num_seeds, num)), NULLS[name]
        spread = float(null.draw(rng, (1, 1_000_000)).std())
        found = []
        for index in range(size):
            tasks = null.draw(rng, (num_seeds, num)) - null.mean
            values = tasks + rng.normal(size=(num_seeds, 1)) * spread * np.sqrt(ratio / num)
            over_tasks, over_seeds = values.reshape(1, -1), values.mean(axis=1)[None]
            _, *ours = hierarchical_interval(values, seed=index, num_resamples=500)
            found.append([mean_interval(over_tasks), resampled_twice(values, rng), t_interval(over_seeds), ours])
        ends = np.array([[[float(np.squeeze(end)) for end in pair] for pair in row] for row in found])  # (size, 4, 2)
        covered, width = (
            covers((ends[..., 0], ends[..., 1]), 0.0).mean(axis=0),
            (ends[..., 1] - ends[..., 0]).mean(axis=0),
        )
        cells = (f"{percent(one)} ({wide / width[0]:.2f})" for one, wide in zip(covered, width, strict=True))
        yield f"{name} | {num_seeds} | {num} | {ratio:g} | " + " | ".join(cells)


PARTS: dict[str, tuple[str, int, Callable[[int], Iterator[str]]]] = {
    "coverage": (f"tasks are | n | {' | '.join(INTERVALS)}", 10_000, coverage_rows),
    "few": ("n | coverage % | at least 1 differs | 2 differ | 4 differ | 6 differ", 100_000, few_rows),
    "wins": ("tasks are | n | false wins % | families of five %", 10_000, wins_rows),
    "interquartile": ("tasks are | n | coverage %", 2_000, interquartile_rows),
    "seeds": (
        "tasks are | seeds | n | variance of seeds | tasks only | both resampled | t over seeds | in use",
        1_000,
        seeds_rows,
    ),
    "improvement": ("n | ties | mean coverage % | least | most", 0, improvement_rows),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--size", type=int, help="samples for each row, a multiple of 5; by default as in the docs")
    chosen = parser.parse_args()
    for part in chosen.part:
        header, size, rows = PARTS[part]
        print(f"\n`{part}`\n\n| {header} |\n|{'---|' * (1 + header.count(' | '))}")
        for row in rows(chosen.size or size):
            print(f"| {row} |", flush=True)


if __name__ == "__main__":
    main()
