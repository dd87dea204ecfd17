"""Figure 1 as a meta-MDP: a low hill on the way, where planning one update ahead ends, and a high one behind it.

    j(theta) = exp(-|theta - (2.5, 2.5)|^2 / 3) + 0.5 exp(-|theta|^2)

The learner follows the normalised gradient from `(-1, 0)`. The best single step has length 1 and ends on the low hill
(`j = 0.5`), where the gradient only leads back to its top. A step of 3.5 across it ends at `(2.5, 0)` with less than it
began with, but from there the gradient points at the high hill (`j = 1`): one step planned ahead is too few, two are
enough. Everything is deterministic and exact: no policy, no sampling.

Two choices make the claim robust. A learner that stops just before the top of the low hill would be pointed at the high hill by
luck; on the coarse grid of step sizes the best single step is 1.08, clearly past the top. And the discount is below 1, because
without it standing still now and leaving later is worth as much as leaving now.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from metastep.fqi import ExtraTrees, MetaFQI
from metastep.mdp.history import Transitions
from metastep.report.figures import CONTRAST, MAIN, Line, Panel, curves, picture
from paper.columns import family_shade
from paper.outcome import Outcome, Product, Verdict
from paper.workbench import Workbench

START = (-1.0, 0.0)
LOCAL_OPTIMUM = (0.0, 0.0)  # top of the low hill, to two digits
GLOBAL_OPTIMUM = (2.5, 2.5)  # top of the high hill
STEPSIZE_LOW, STEPSIZE_HIGH = 0.0, 3.6  # enough to cross the low hill
NUM_STEPSIZES = 11  # that a greedy learner chooses from: 0, 0.36, ..., 3.6
META_DISCOUNT = 0.9
_ITERATIONS, _UPDATES = 5, 5
_NEAR = 0.5  # distance from a hill's top that counts as having reached it; the tops are 3.5 apart


class Rollout(NamedTuple):
    """The course of one learner."""

    theta: NDArray[np.float64]  # (updates + 1, 2)
    stepsize: NDArray[np.float64]  # (updates,)
    returns: NDArray[np.float64]  # (updates + 1,)


def landscape(theta: ArrayLike) -> NDArray[np.float64]:
    """Return `j` of parameters `(..., 2)`."""
    high, low, _ = _hills(theta)
    return np.asarray((high + low)[..., 0])


def gradient(theta: ArrayLike) -> NDArray[np.float64]:
    """Return the gradient of `j` at parameters `(..., 2)`."""
    high, low, point = _hills(theta)
    return np.asarray(-2 / 3 * (point - GLOBAL_OPTIMUM) * high - 2 * point * low)


def _hills(theta: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    point = np.asarray(theta, dtype=np.float64)
    high = np.exp(-((point - GLOBAL_OPTIMUM) ** 2).sum(-1, keepdims=True) / 3)
    return high, 0.5 * np.exp(-(point**2).sum(-1, keepdims=True)), point


def update(theta: ArrayLike, stepsize: ArrayLike) -> NDArray[np.float64]:
    """Parameters after a step along the normalised gradient; a zero gradient leaves them where they are."""
    slope = gradient(theta)
    length = np.linalg.norm(slope, axis=-1, keepdims=True)
    direction = np.divide(slope, length, out=np.zeros_like(slope), where=length > 0)
    return np.asarray(theta, dtype=np.float64) + np.asarray(stepsize)[..., None] * direction


def observe(theta: ArrayLike) -> NDArray[np.float32]:
    """Observation `(..., 4)`: parameters and gradient."""
    return np.concatenate([np.asarray(theta), gradient(theta)], axis=-1).astype(np.float32)


def sample_transitions(episodes: int, updates: int, seed: int) -> Transitions:
    """Tuples of episodes with uniform step sizes.

    Half of the episodes begin near `START`, half anywhere in the figure's square, so that the high hill is known from
    all sides.
    """
    draw = np.random.default_rng(seed)
    near = np.array(START) + draw.normal(scale=0.1, size=(episodes, 2))
    anywhere = draw.uniform(-2, 5, size=(episodes, 2))
    theta = np.where(np.arange(episodes)[:, None] % 2 == 0, near, anywhere)
    observations, stepsizes, rewards = [observe(theta)], [], []
    for _ in range(updates):
        stepsize = draw.uniform(STEPSIZE_LOW, STEPSIZE_HIGH, size=episodes)
        following = update(theta, stepsize)
        observations.append(observe(following))
        stepsizes.append(stepsize)
        rewards.append(landscape(following) - landscape(theta))
        theta = following
    return Transitions(
        observation=np.concatenate(observations[:-1]),
        stepsize=np.concatenate(stepsizes).astype(np.float32),
        reward=np.concatenate(rewards).astype(np.float32),
        next_observation=np.concatenate(observations[1:]),
    )


def roll_out(act: Callable[[NDArray[np.float32]], ArrayLike], updates: int, start: ArrayLike = START) -> Rollout:
    """Follow a policy `act(observation (1, 4)) -> (1,)`, such as a fitted model's, from a starting point."""
    thetas, stepsizes = [np.asarray(start, dtype=np.float64)], []
    for _ in range(updates):
        stepsizes.append(float(np.asarray(act(observe(thetas[-1])[None, :]))[0]))
        thetas.append(update(thetas[-1], stepsizes[-1]))
    theta = np.stack(thetas)
    return Rollout(theta, np.array(stepsizes), landscape(theta))


def fig1(bench: Workbench) -> Product:
    """Fit on the two hills with several seeds and follow every iteration from the start."""
    num_seeds, episodes, trees = (2, 400, 10) if bench.scale == "tiny" else (5, 2000, 25)
    runs = []  # [seed][iteration - 1]
    with bench.stage("fig1: fit", num_seeds, "seeds") as advance:
        for seed in range(bench.seed, bench.seed + num_seeds):
            runs.append(_followed(seed, episodes, trees))
            advance(1)
    rows = [
        {
            "seed": bench.seed + seed,
            "iteration": iteration,
            "update": update,
            "theta_0": float(rollout.theta[update, 0]),
            "theta_1": float(rollout.theta[update, 1]),
            "stepsize": float(rollout.stepsize[update - 1]) if update else "",
            "height": float(rollout.returns[update]),
        }
        for seed, run in enumerate(runs)
        for iteration, rollout in enumerate(run, start=1)
        for update in range(_UPDATES + 1)
    ]
    heights = np.array([[rollout.returns for rollout in run] for run in runs])  # (seeds, iterations, updates + 1)
    shades = [CONTRAST, *(family_shade("cool", index / (_ITERATIONS - 1)) for index in range(1, _ITERATIONS))]
    lines = [Line(f"N = {index + 1}", heights[:, index], shade) for index, shade in enumerate(shades)]
    caption = (
        "Two hills. Left: from the start, the greedy model (N = 1) climbs the low hill; one that plans ahead (N = 2) steps "
        "across it and then up the high one. Right: height by update, 95 % intervals over seeds."
    )
    panels = [_map(runs[0]), curves("Height", lines, ylabel="height")]
    ends = np.array([[rollout.theta[-1] for rollout in run] for run in runs])  # (seeds, iterations, 2)
    return Product([_outcome(ends, heights[:, :, -1])], [picture("fig1", caption, [panels])], {"paths": rows})


def _outcome(ends: NDArray[np.float64], heights: NDArray[np.float64]) -> Outcome:
    """Judge where (seeds, iterations) ended."""
    num_seeds = len(ends)
    low_hill = np.linalg.norm(ends - LOCAL_OPTIMUM, axis=2)[:, 0] < _NEAR
    high_hill = np.linalg.norm(ends - GLOBAL_OPTIMUM, axis=2)[:, 1:] < _NEAR
    differences = heights[:, 1:].mean(axis=1) - heights[:, 0]
    half = float(stats.t.ppf(0.975, num_seeds - 1) * differences.std(ddof=1) / np.sqrt(num_seeds))
    mean, is_shown = float(differences.mean()), low_hill.all() and high_hill.all()
    verdict: Verdict = "holds" if is_shown else "not distinguishable" if high_hill.any() else "does not hold"
    claim = "Planning one update ahead ends on the low hill, planning two or more on the high one"
    quantity = "final height, N >= 2 minus N = 1"
    detail = (
        f"N = 1 ends on the low hill in {low_hill.sum()} of {num_seeds} seeds, N = 2 to {_ITERATIONS} on the high one in "
        f"{high_hill.sum()} of {high_hill.size} runs"
    )
    return Outcome("two hills", claim, quantity, mean, mean - half, mean + half, num_seeds, "seeds", verdict, detail)


def _followed(seed: int, episodes: int, trees: int) -> list[Rollout]:
    """Fit a model and follow each of its iterations from the start."""
    model = MetaFQI(
        iterations=_ITERATIONS,
        regressor=ExtraTrees(trees=trees, min_samples_split=0.005),
        meta_discount=META_DISCOUNT,
        stepsize_high=STEPSIZE_HIGH,
        num_stepsizes=NUM_STEPSIZES,
        random_state=seed,
    ).fit(sample_transitions(episodes, 3, seed))
    return [roll_out(partial(model.act, iteration=number), _UPDATES) for number in range(1, _ITERATIONS + 1)]


def _map(run: list[Rollout]) -> Panel:
    def draw(axes: Axes) -> None:
        x, y = np.meshgrid(np.linspace(-1.8, 4.6, 160), np.linspace(-1.3, 4.2, 160))
        axes.contour(x, y, landscape(np.stack([x, y], axis=-1)), levels=12, cmap="Greys", linewidths=0.7)
        for rollout, name, shade in ((run[1], "N = 2", MAIN), (run[0], "N = 1", CONTRAST)):
            axes.plot(*rollout.theta.T, "o-", color=shade, markersize=4.0, label=name)
        axes.annotate("start", START, xytext=(0, -14), textcoords="offset points", fontsize=9.0, ha="center")
        axes.set(xlabel="first parameter", ylabel="second parameter", aspect="equal")
        axes.grid(visible=False)
        axes.legend(frameon=False, fontsize=9.0, loc="upper left")

    return Panel("Two hills", draw)
