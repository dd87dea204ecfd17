"""Calibration of intervals over tasks: how often they cover, on which side they miss, how wide they are. Markdown tables.

    python benchmarks/calibration.py                        # everything: about four minutes on one core
    python benchmarks/calibration.py --part mean held-out   # some tables
    python benchmarks/calibration.py --replications 4000    # faster, coarser

Parts: `mean` (the nulls with a target), `held-out` (nulls that no constant was fitted to), `few` (mostly equal tasks by how many
differ, and the most that any interval could cover), `wins` (false wins of paired tests and of families of five), `others`
(other intervals for the same samples), `aggregates` (interquartile mean, probability of improvement).
docs/calibration.md has the result.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from math import gamma
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from metastep.evaluation.aggregates import improvement_probability, interquartile_mean
from metastep.evaluation.resampling import holm, mean_interval, paired_test, verdict

Array = NDArray[np.float64]
Ends = tuple[Array, Array]
NUMS = (20, 32, 100)


class Null(NamedTuple):
    """A distribution over tasks with its mean."""

    draw: Callable[[np.random.Generator, tuple[int, int]], Array]
    mean: float


def rarely(share: float, draw: Callable[[np.random.Generator, tuple[int, int]], Array]) -> Callable[..., Array]:
    return lambda rng, shape: np.where(rng.random(shape) < share, draw(rng, shape), 0.0)


def exponential(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    return rng.exponential(size=shape)


def log_normal(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    return rng.lognormal(size=shape)


NULLS = {
    "normal": Null(lambda rng, shape: rng.normal(size=shape), 0.0),
    "Student's t, 3 degrees": Null(lambda rng, shape: rng.standard_t(3, size=shape), 0.0),
    "Laplace": Null(lambda rng, shape: rng.laplace(size=shape), 0.0),
    "exponential": Null(exponential, 1.0),
    "beta(5, 0.5), below a bound": Null(lambda rng, shape: rng.beta(5.0, 0.5, size=shape), 5.0 / 5.5),
    "beta(10, 0.3), closer to it": Null(lambda rng, shape: rng.beta(10.0, 0.3, size=shape), 10.0 / 10.3),
    "log-normal": Null(log_normal, float(np.exp(0.5))),
    "90 % zeros, rest normal": Null(rarely(0.1, lambda rng, shape: rng.normal(size=shape)), 0.0),
    "90 % zeros, rest exponential": Null(rarely(0.1, exponential), 0.1),
}
HELD_OUT = {
    "uniform": Null(lambda rng, shape: rng.random(shape), 0.5),
    "normal, one in ten 5 times as wide": Null(
        lambda rng, shape: rng.normal(size=shape) * np.where(rng.random(shape) < 0.1, 5.0, 1.0), 0.0
    ),
    "log-normal minus log-normal": Null(lambda rng, shape: log_normal(rng, shape) - log_normal(rng, shape), 0.0),
    "gamma(2)": Null(lambda rng, shape: rng.gamma(2.0, size=shape), 2.0),
    "gamma(0.5)": Null(lambda rng, shape: rng.gamma(0.5, size=shape), 0.5),
    "gamma(0.25)": Null(lambda rng, shape: rng.gamma(0.25, size=shape), 0.25),
    "Weibull(0.7)": Null(lambda rng, shape: rng.weibull(0.7, size=shape), gamma(1.0 + 1.0 / 0.7)),
    "Pareto(3)": Null(lambda rng, shape: rng.pareto(3.0, size=shape), 0.5),
    "Poisson(1)": Null(lambda rng, shape: rng.poisson(1.0, size=shape).astype(np.float64), 1.0),
    "normal, 69 % at a bound": Null(
        lambda rng, shape: np.minimum(rng.normal(size=shape), -0.5),
        float(-stats.norm.pdf(-0.5) - 0.5 * stats.norm.sf(-0.5)),
    ),
    "50 % zeros, rest exponential": Null(rarely(0.5, exponential), 0.5),
    "80 % zeros, rest exponential": Null(rarely(0.2, exponential), 0.2),
}


class Coverage(NamedTuple):
    """Shares of intervals of the mean, and widths over those of Student's interval."""

    covered: float
    left: float  # wholly left of the mean
    right: float
    width: float
    wide: float  # the 95th percentile of widths

    @classmethod
    def of(cls, values: Array, mean: float, ends: Ends) -> Coverage:
        low, high = ends
        # Rounding must not decide where an interval ends at a number that the mean equals.
        left, right = np.mean(high < mean - 1e-12), np.mean(low > mean + 1e-12)
        student = np.subtract(*reversed(t_interval(values)))
        ratio = ((high - low) / np.where(student > 0.0, student, 1.0))[student > 0.0]
        return cls(1.0 - left - right, left, right, ratio.mean(), float(np.quantile(ratio, 0.95)))


def samples(null: Null, num: int, replications: int, seed: int = 0) -> Array:
    return null.draw(np.random.default_rng((seed, num)), (replications, num))


def t_interval(values: Array) -> Ends:
    num = values.shape[1]
    half = stats.t.ppf(0.975, num - 1) * values.std(axis=1, ddof=1) / np.sqrt(num)
    return values.mean(axis=1) - half, values.mean(axis=1) + half


def table(header: str, rows: Iterator[str]) -> None:
    names = header.split(" | ")
    print(f"\n| {header} |\n|{'---|' * len(names)}")
    for row in rows:
        print(f"| {row} |", flush=True)


def percent(*shares: float) -> str:
    return " | ".join(f"{100.0 * share:.1f}" for share in shares)


def mean_rows(nulls: dict[str, Null], replications: int) -> Iterator[str]:
    for name, null in nulls.items():
        for num in NUMS:
            values = samples(null, num, replications)
            ours = Coverage.of(values, null.mean, mean_interval(values))
            error = 100.0 * np.sqrt(ours.covered * (1.0 - ours.covered) / replications)
            student = Coverage.of(values, null.mean, t_interval(values))
            shown = f"{percent(ours.covered)} ± {error:.1f} | {percent(ours.left, ours.right)}"
            yield f"{name} | {num} | {shown} | {ours.width:.2f} | {ours.wide:.2f} | {percent(student.covered)}"


def few_rows(replications: int) -> Iterator[str]:
    null = NULLS["90 % zeros, rest exponential"]
    for num in NUMS:
        values = samples(null, num, replications)
        low, high = mean_interval(values)
        covered, differing = (low <= null.mean) & (high >= null.mean), (values > 0.0).sum(axis=1)
        shares = [f"{percent(covered[differing >= least].mean())}" for least in (0, 1, 2, 4, 6)]
        yield f"{num} | {' | '.join(shares)} | {percent(1.0 - 0.9**num, attainable(num))}"


def attainable(num: int, share: float = 0.1, width: float = 1.5) -> float:
    """The most that intervals of at most `width` times Student's can cover, where a `share` of tasks is exponential, others zero.

    Of all intervals that move and scale with the numbers, even those that know the distribution: the sum S of k exponential
    numbers is independent of their shares of it, and only S decides whether an interval with given shares covers.
    """
    rng, most = np.random.default_rng(0), 2.0 * width * stats.t.ppf(0.975, num - 1)
    total = 0.0  # nothing but a point is left where all are zero
    for count in range(1, num + 1):
        shares = rng.dirichlet(np.ones(count), size=1000 if count > 1 else 1)
        error = np.sqrt(((shares**2).sum(axis=1) - 1.0 / num) / (num * (num - 1)))
        below = np.linspace(-most, most, 400)[:, None]  # standard errors from the mean to the lower end
        low, high = 1.0 / num - below * error, 1.0 / num + (most - below) * error
        largest, smallest = (np.where(end > 0.0, share / np.maximum(end, 1e-300), np.inf) for end in (low, high))
        covered = stats.gamma.cdf(largest, count) - stats.gamma.cdf(smallest, count)
        total += float(stats.binom.pmf(count, num, share) * covered.max(axis=0).mean())
    return total


def wins_rows(replications: int) -> Iterator[str]:
    for name, null in NULLS.items():
        for num in NUMS:
            values = samples(null, num, replications, seed=1) - null.mean
            parts = [paired_test(rows, seed=index) for index, rows in enumerate(np.split(values, replications // 500))]
            low, high, p_value = (np.concatenate([part[column] for part in parts]) for column in (1, 2, 3))
            ends = np.stack([low, high, p_value], axis=1)
            wins = np.mean([verdict(*row, 0.95) != "not distinguishable" for row in ends])
            # Sums of rounded numbers are not quite zero where the mean is.
            excludes = (low > 1e-12) | (high < -1e-12)
            families = np.mean([(holm(family) < 0.05).any() for family in p_value.reshape(-1, 5)])
            yield f"{name} | {num} | {percent(wins, np.mean(excludes != (p_value < 0.05)), families)}"


def resampled(values: Array, seed: int, num_resamples: int = 1000) -> dict[str, Ends]:
    """Ends of bootstrap intervals, in standard errors from the mean."""
    num, (rows, _) = values.shape[1], values.shape
    rng, quantile = np.random.default_rng(seed), stats.t.ppf(0.975, num - 1)
    deviation = values.std(axis=1, ddof=1)
    standard = (values - values.mean(axis=1)[:, None]) / np.where(deviation > 0.0, deviation, 1.0)[:, None]
    counts = rng.multinomial(num, np.full(num, 1.0 / num), size=num_resamples).astype(np.float64)
    shift = counts @ standard.T / np.sqrt(num)
    variance = (counts @ (standard**2).T - shift**2) / (num - 1)
    known = variance > 1e-12
    student = np.where(known, shift / np.sqrt(np.where(known, variance, 1.0)), 1e6 * np.sign(shift))
    symmetric = np.quantile(np.abs(student), 0.95, axis=0)
    capped = np.minimum(symmetric, 1.5 * quantile)
    first, last = np.quantile(student, [0.025, 0.975], axis=0)
    factor = np.minimum(1.0, 3.0 * quantile / np.maximum(last - first, 1e-9))
    level = stats.norm.cdf(-quantile * np.sqrt(num / (num - 1)))
    acceleration = (standard**3).sum(axis=1) / (6.0 * np.maximum((standard**2).sum(axis=1), 1e-12) ** 1.5)
    bias = stats.norm.ppf(np.clip((shift < 0.0).mean(axis=0), 1e-3, 1.0 - 1e-3))
    ordered, bca = np.sort(shift, axis=0), []
    for normal in (stats.norm.ppf(level), -stats.norm.ppf(level)):
        place = stats.norm.cdf(bias + (bias + normal) / (1.0 - acceleration * (bias + normal)))
        bca.append(ordered[np.clip((place * num_resamples).astype(int), 0, num_resamples - 1), np.arange(rows)])
    return {
        "percentile": tuple(np.quantile(shift, [level, 1.0 - level], axis=0)),
        "BCa": (bca[0], bca[1]),
        "symmetric bootstrap-t": (-symmetric, symmetric),
        "the same, at most 1.5": (-capped, capped),
        "bootstrap-t": (-last, -first),
        "the same, at most 1.5 ": (-last * factor, -first * factor),
    }


def willink(values: Array) -> Ends:
    """Willink's interval of the mean of an asymmetric distribution (2005), in standard errors from the mean."""
    num = values.shape[1]
    skewness = np.nan_to_num(stats.skew(values - values.mean(axis=1)[:, None], axis=1)) / (6.0 * np.sqrt(num))
    skewness = np.where(np.abs(skewness) < 1e-6, 1e-6, skewness)
    quantile = stats.t.ppf(0.975, num - 1)
    ends = [(np.cbrt(1.0 + 6.0 * skewness * (q - skewness)) - 1.0) / (2.0 * skewness) for q in (quantile, -quantile)]
    return -ends[0], -ends[1]


def others_rows(replications: int) -> Iterator[str]:
    for name, null in NULLS.items():
        for num in NUMS:
            values = samples(null, num, replications, seed=2)
            parts = [resampled(rows, index) for index, rows in enumerate(np.split(values, replications // 250))]
            ends = {key: tuple(np.concatenate([p[key][side] for p in parts]) for side in (0, 1)) for key in parts[0]}
            ends["Willink"] = willink(values)
            mean, error = values.mean(axis=1), values.std(axis=1, ddof=1) / np.sqrt(num)
            found = [t_interval(values), *((mean + low * error, mean + high * error) for low, high in ends.values())]
            found.append(mean_interval(values))
            measured = [Coverage.of(values, null.mean, pair) for pair in found]
            shown = (f"{percent(one.covered)} ({f'{one.wide:.2f}' if one.wide < 99 else '> 99'})" for one in measured)
            yield f"{name} | {num} | {' | '.join(shown)}"


def interquartile_rows(replications: int) -> Iterator[str]:
    for name, null in NULLS.items():
        if "90 %" in name:
            continue  # its interquartile mean is zero, and so is nearly every interval of it
        truth = float(interquartile_of(null))
        for num in NUMS:
            values = samples(null, num, replications, seed=3)
            parts = [interquartile_mean(r, seed=i, num_resamples=1000) for i, r in enumerate(np.split(values, 20))]
            low, high = (np.concatenate([part[side] for part in parts]) for side in (1, 2))
            left, right = np.mean(high < truth - 1e-12), np.mean(low > truth + 1e-12)
            yield f"{name} | {num} | {percent(1.0 - left - right, left, right)}"


def interquartile_of(null: Null, num: int = 4_000_000) -> float:
    return float(np.sort(samples(null, num, 1)[0])[num // 4 : num - num // 4].mean())


def improvement_rows() -> Iterator[str]:
    for num in NUMS:
        wins, losses = (one.ravel() for one in np.mgrid[: num + 1, : num + 1])
        wins, losses = wins[wins + losses <= num], losses[wins + losses <= num]
        place = np.arange(num)
        signs = (place < wins[:, None]).astype(float) - (place >= num - losses[:, None])
        found = improvement_probability(signs)
        for ties in (0.0, 0.1, 0.5, 0.9):
            covered = []
            for win in np.linspace(0.5, 0.98, 25) * (1.0 - ties):
                chances = [win, 1.0 - ties - win, ties]
                weight = stats.multinomial.pmf(np.stack([wins, losses, num - wins - losses], axis=1), num, chances)
                truth = win + ties / 2.0
                covered.append(weight @ ((found.low <= truth + 1e-12) & (found.high >= truth - 1e-12)))
            yield f"{num} | {100 * ties:.0f} % | {percent(float(np.mean(covered)), min(covered), max(covered))}"


def main() -> None:
    header = "tasks are | n | coverage % | left % | right % | mean width | 95th percentile | Student's coverage %"
    names = "Student's t | percentile | BCa | symmetric bootstrap-t | at most 1.5 | bootstrap-t | at most 1.5 | Willink | ours"
    least = " | ".join(f"at least {least} differ" for least in (1, 2, 4, 6))
    parts: dict[str, list[tuple[str, Callable[[int], Iterator[str]]]]] = {
        "mean": [(header, partial(mean_rows, NULLS))],
        "held-out": [(header, partial(mean_rows, HELD_OUT))],
        "few": [(f"n | coverage % | {least} | most at any width | most at 1.5", few_rows)],
        "wins": [
            (
                "tasks are | n | false wins % | interval and p-value disagree % | families of five %",
                lambda number: wins_rows(min(number, 10_000)),
            )
        ],
        "others": [(f"tasks are | n | {names}", lambda number: others_rows(min(number, 10_000)))],
        "aggregates": [
            ("tasks are | n | coverage % | left % | right %", lambda number: interquartile_rows(min(number, 2000))),
            ("n | ties | coverage, mean % | least | most", lambda number: improvement_rows()),
        ],
    }
    parser = argparse.ArgumentParser(description="Calibration of intervals over tasks.")
    parser.add_argument("--part", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--replications", type=int, default=100_000, help="a multiple of 500; some parts draw fewer")
    chosen = parser.parse_args()
    for part in chosen.part:
        print(f"\n`{part}`")
        for title, rows in parts[part]:
            table(title, rows(chosen.replications))


if __name__ == "__main__":
    main()
