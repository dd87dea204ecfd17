"""Rates without a model: the best for a family and the best for all, which a model must beat, and shares of their gains."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep import ActorCriticMDP
from metastep.controllers import Controller
from metastep.mdp import Learners, MetaMDP
from metastep.mdp.blocks import Stream
from metastep.mdp.runs import BlockResult, BlockRun
from metastep.search.evolution import draw_tasks, finite, score
from pretraining.work import own_values

Scores = NDArray[np.float64]
LEAST, MOST = -1.0, 3.0  # shares are cut off here, so that no family decides alone where a schedule gains little


class Rate(NamedTuple):
    """A schedule of the rate; all other hyperparameters are the loop's own."""

    rate: float
    falls: bool = False  # linearly, to 0 at the end of the budget

    def __str__(self) -> str:
        return f"{self.rate:g}, {'falling' if self.falls else 'constant'}"


class Scaled(NamedTuple):
    """A rate that depends on the gradient steps that a loop makes by itself; in a schedule, it falls linearly from there."""

    rate: float  # of a loop that makes `own_steps`
    exponent: float
    own_steps: float = 64.0

    def of_loop(self, own_steps: float) -> float:
        """Return the rate of a loop."""
        return self.rate * (self.own_steps / own_steps) ** self.exponent


IDLE = Rate(0.0)
CONSTANT = tuple(map(Rate, (3e-4, 1e-3, 3e-3, 1e-2)))
FALLING = tuple(Rate(rate, True) for rate in (3e-4, 6e-4, 1e-3, 2e-3, 3e-3, 5e-3, 8e-3, 1.3e-2, 2e-2, 3e-2, 6e-2))
GRID = (IDLE, *CONSTANT, *FALLING)  # 16: both halves of a block of twins get as many


@dataclass(frozen=True, eq=False)
class Rates(Controller):
    """A schedule of the rate for every learner."""

    rates: Sequence[Rate]  # one for all learners, or one for each

    name: ClassVar[str] = "rates"

    def init(self, mdp: MetaMDP, learners: Learners) -> tuple[Array, Array, Array]:
        assert isinstance(mdp, ActorCriticMDP)
        at = mdp.space.names.index("stepsize")
        rates, falls = (jnp.asarray(column, jnp.float32) for column in zip(*self.rates, strict=True))
        values = own_values(mdp, len(learners.theta)).at[:, at].set(rates)
        slopes = jnp.zeros_like(values).at[:, at].set(rates * falls / mdp.budget)
        return values, slopes, jnp.float32(0.0)

    def propose(self, state: tuple[Array, Array, Array], learners: Learners) -> Array:
        values, slopes, _ = state
        return values - slopes * learners.update.astype(jnp.float32)


def task_units(mdp: ActorCriticMDP, context: NDArray[np.float32]) -> Scores:
    """Return what counts as 1 in the returns of every task: the scale of its rewards, where that differs between tasks."""
    names = mdp.env.context_space.names
    powers = context[:, names.index("reward_power")] if "reward_power" in names else np.zeros(len(context))
    return 10.0 ** powers.astype(np.float64)


def curve_scores(ran: BlockResult, mdp: ActorCriticMDP) -> Scores:
    """Return the mean return over the updates of every learner, in its task's unit; minus infinity for one that diverged."""
    return score(ran.history.mean_return / task_units(mdp, ran.history.context), "auc")


def _layout(mdp: ActorCriticMDP) -> tuple[int, int, int, int]:
    """Return the twins of a block, the learners of a twin, their schedules, and the tasks of each."""
    twins = mdp.sampler.twins
    rows, each = mdp.block_size // twins, len(GRID) // twins
    return twins, rows, each, rows // each


def num_blocks(mdp: ActorCriticMDP, num_tasks: int) -> int:
    """Return how many blocks try all schedules on so many tasks."""
    return -(-num_tasks // _layout(mdp)[3])


def trying(mdp: ActorCriticMDP, seed: int, num_tasks: int) -> Generator[list[BlockRun], list[BlockResult], Scores]:
    """Plan all schedules of the grid on tuning tasks: (schedules, tasks) scores.

    All share a block, which has as many learners as the blocks of the family's other work, to be the same program.
    """
    twins, rows, each, tasks = _layout(mdp)
    lane, place = np.minimum(np.arange(rows) // tasks, each - 1), np.tile(np.arange(rows) % tasks, twins)
    chosen, asked = Rates([GRID[twin * each + index] for twin in range(twins) for index in lane]), []
    for block in range(num_blocks(mdp, num_tasks)):
        start = draw_tasks(mdp, seed, Stream.TUNING, block)
        start = start._replace(context=start.context[place], theta=start.theta[place])
        asked.append(BlockRun(mdp, chosen, start, mdp.budget))
    ran = yield asked
    by_lane = [curve_scores(one, mdp).reshape(twins, rows)[:, : each * tasks] for one in ran]
    found = np.concatenate([scores.reshape(len(GRID), tasks) for scores in by_lane], axis=1)
    return finite(found[:, :num_tasks])


def share(scores: Scores, low: float, unit: float) -> float:
    """Return the mean of a family's scores, where `low` counts as 0 and a gain of `unit` as 1, cut off to -1 to 3.

    A learner that diverged counts as the worst that did not; a controller all of whose learners did has the lowest share.
    """
    return float(np.clip((finite(scores, -np.inf).mean() - low) / unit, LEAST, MOST))


def _shares(scores: Mapping[str, Scores]) -> Scores:
    """Return shares of each family's own best gain: (families, schedules)."""
    references = {name: reference(own, int(own.mean(axis=1).argmax())) for name, own in scores.items()}
    return np.array([[share(row, *references[name]) for row in own] for name, own in scores.items()])


def universal_rate(scores: Mapping[str, Scores]) -> int:
    """Return which schedule of the grid has the best mean share of each family's own best gain."""
    return int(_shares(scores).mean(axis=0).argmax())


def scaled_rate(scores: Mapping[str, Scores], own_steps: Mapping[str, float]) -> Scaled:
    """Return the same of falling rates that depend on the loop; shares are interpolated along the logarithm of the rate.

    A law that leaves the grid in some loop is not considered.
    """
    logs, shares = np.log([each.rate for each in FALLING]), _shares(scores)[:, -len(FALLING) :]

    def worth(tried: Scaled) -> float:
        asked = [np.log(tried.of_loop(own_steps[name])) for name in scores]
        found = [np.interp(rate, logs, row, -np.inf, -np.inf) for rate, row in zip(asked, shares, strict=True)]
        return float(np.mean(found))

    exponents = 0.0, 0.25, 0.5, 0.75, 1.0
    return max((Scaled(each.rate, exponent) for exponent in exponents for each in FALLING), key=worth)


def reference(scores: Scores, rate: int) -> tuple[float, float]:
    """Return the mean score without learning, the first row, and what the schedule of another row adds to it.

    The latter is at least three standard errors, and a hundredth of the spread over tasks: where a schedule adds nothing,
    dividing by it would let noise decide.
    """
    gain = scores[rate] - scores[0]
    error = float(gain.std(ddof=1) / np.sqrt(len(gain))) if len(gain) > 1 else 0.0
    return float(scores[0].mean()), max(float(gain.mean()), 3.0 * error, 0.01 * float(scores[0].std()), 1e-6)
