"""Guards: they keep a model from doing harm in a training loop that is unlike those it was trained on, or that goes well.

Where the loop or a feature is unlike the training data, or a diagnostic is impossible, the loop's own values replace the model's;
without any, those of the last update stay. Everywhere else, proposals are bounded (`Limits.guarded`). Simulated learners have no
guards, and loops have none with `outside="trust"`.
"""

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metastep._core.errors import InputError, not_registered, shown
from metastep._core.settings import Positive
from metastep.features.diagnostics import ANY, OF_LOOP, SMALLEST, Memory, Observed
from metastep.simulation.rollouts import mean_and_error

Outside = Literal["fallback", "refuse", "trust"]
"""Where a loop or a feature is unlike the training data: use the loop's own values, raise an error, or follow the model."""
Values = Mapping[str, Any]  # by name: of hyperparameters, or what is known of a training loop (`LOOP`)
Fallback = float | Values | Callable[[Any], Any] | None
"""A loop's own rate or, by name, its own hyperparameters; each may be a function of the share of the updates that were made."""

SIZES = ("num_envs", "batch_steps", "minibatch_size", "epochs", "gradient_steps", "discount", "num_updates")
LOOP: Any = {"algorithm": (str, ""), "actions": (str, "")} | dict.fromkeys(SIZES, (Positive, 0.0))
RULES = ("ppo", "a2c", "trpo")  # whose proposals are guarded
HELD = ("stepsize", "gradient_steps", "clip_range", "critic_rate")  # these make steps larger
ACTED = ("fallback", "rise", "divergence", "best")  # the guards, in the order of the bits of `Guard.acted`
RISE = 3.0  # largest factor between one of these and that of the last update
FIRST_RISE = 10.0  # largest factor between the first of them and the loop's own
BELOW = 3.0  # standard errors by which the return may lie below its best and still count as that
TREND = 0.5  # standard errors of a batch that the return rises by per update, smoothed, where it has not arrived yet
WINDOW = 10  # returns that guards look at, at least; where a call has fewer, those of the last calls count as well
RECOVERY = 1.25  # factor by which the ceiling of the rate rises per update after a divergence that halved it
DIVERGENCE = 0.5  # an `approx_kl` above is too large for any model; that of usual updates is about 0.01
MARGIN = 0.25  # features may leave the range of the training data by this share of it
FACTOR = 4.0  # numbers of a loop may leave the range of the loops in the training data by this factor


class Guard(NamedTuple):
    """What guards remember of one learner between updates."""

    ceiling: Any = ANY  # of the rate
    stepsize: Any = 0.0  # this and the next three were used when they could last increase
    gradient_steps: Any = 0.0
    clip_range: Any = 0.0
    critic_rate: Any = 0.0
    acted: Any = 0.0  # which guards changed the last proposal, as a sum of bits
    wary: Any = 0.0  # for so many updates after a fault, the rate stays at or above the loop's own
    approx_kl: Any = 0.0  # of the update before the last one
    best: Any = 0.0  # mean of recent returns, where calls have few
    returns: Any = np.zeros(WINDOW, np.float32)  # the recent ones

    @property
    def names(self) -> str:
        """The guards that changed the last proposal."""
        return " ".join(name for bit, name in enumerate(ACTED) if int(self.acted) >> bit & 1)

    def after(self, found: Observed, before: Memory, xp: Any) -> tuple["Guard", Any, Any]:
        """Return what to remember of the diagnostics, whether the return stays at its best, and whether it is constant."""
        seen = found.diagnostics
        mean, error = (seen.get(name, np.float32(np.nan)) for name in ("mean_return", "return_error"))
        given = seen.get("returns", xp.zeros(WINDOW))  # of other loops the mean and its error are known
        every, kept = [(mean, error, before.best_return, before.sound, given.size)], {}
        if given.size < WINDOW:
            given = xp.asarray(given, xp.float32)
            earlier = xp.where(before.sound > 0, self.returns, xp.resize(given, WINDOW))
            returns = xp.concatenate([earlier, given])[-WINDOW:]
            mean, error = mean_and_error(returns, xp)
            every.append((mean, error, self.best, before.sound, xp.minimum(given.size * (before.sound + 1), WINDOW)))
            best = xp.where(before.sound >= WINDOW, xp.maximum(self.best, mean), mean)  # few may be so by chance
            both = {"best": (best, self.best), "returns": (returns, self.returns)}
            kept = {name: xp.where(xp.isfinite(mean), *each) for name, each in both.items()}
        divergence, holds = seen.get("approx_kl", self.approx_kl), xp.asarray(False)
        noise = xp.fmax(every[-1][1] * np.sqrt(max(1.0, WINDOW / given.size)), 0.0)  # of the mean return of a batch
        rises = found.memory.smoothed_change > TREND * noise
        for mean, error, best, known, num in every:
            least, change = SMALLEST * xp.abs(mean), mean - best  # the best of several is an overestimate
            stays = (-BELOW * xp.fmax(error, least) <= change) & (change <= xp.fmax(error, least)) & ~rises
            is_constant = (error <= least) & (num > 1)
            holds |= (known > 0) & stays | is_constant
        kept["approx_kl"] = xp.where(xp.isfinite(divergence), divergence, self.approx_kl)
        guard = self._replace(**{name: xp.asarray(each, xp.float32) for name, each in kept.items()})
        return guard, holds, is_constant & (num >= WINDOW // 2)  # of those of the last calls


class Limits(NamedTuple):
    """What guards know of a model."""

    record: Any  # the model's
    low: NDArray[np.float32]  # (features,): smaller ones are unlike the training data
    high: NDArray[np.float32]
    ends: dict[str, NDArray[np.float32]]  # (2,): of hyperparameters; where branches have others, the largest ones
    held: tuple[str, ...]  # hyperparameters that are not to increase
    divergence: float  # an `approx_kl` above is too large

    def beyond(self, row: Any, xp: Any) -> Any:
        """Return which features of a row are unlike the training data; one that is not finite is another matter."""
        return xp.isfinite(row) & ((row < self.low) | (row > self.high))

    def far(self, row: NDArray[np.float32]) -> dict[str, str]:
        """Return a clause on each feature that is unlike the training data, by name."""
        ends, is_far = (self.record.feature_low, self.record.feature_high), self.beyond(row, np)
        text = "{} is {:g}, outside of the {:g} to {:g} of the training data".format
        every = zip(is_far, self.record.feature_names, row, *ends, strict=True)
        return {each[0]: text(*each) for is_beyond, *each in every if is_beyond}

    def guarded(
        self, values: Values, last: Values, own: Values, fallen: Any, found: Observed, state: Any, xp: Any
    ) -> tuple[dict[str, Any], Guard]:
        """Return what to use of the values that a model proposes, and what to remember of it.

        What makes steps larger grows by a bounded factor. The rate is halved where the last update diverged; then its ceiling
        rises slowly. Nothing that makes steps larger increases there, or where the return stays at its best, within its
        standard error; where it is constant, as once a task is solved or before it is rewarded, none of that exceeds the loop's
        `own` values, where these are known. None of this goes below these, which replace all others, with those of the `last`
        update where there are none, if it has `fallen` back. In the first update, and for some time after a fault, the rate is
        no lower than the loop's own.
        """

        def number(values: Values, name: str, other: Any = 0.0) -> Any:
            return xp.asarray(values.get(name, other), xp.float32)

        guard, holds, is_constant = state.guard.after(found, state.memory, xp)
        seen, begun, (low, high) = found.diagnostics, xp.asarray(state.memory.updates > 0), self.ends["stepsize"]
        used = xp.clip(number({}, "", xp.where(found.faults["rate"], state.memory.rate, seen["rate"])), low, high)
        has_diverged = number(seen, "approx_kl") > self.divergence
        holds |= has_diverged
        ceiling = xp.clip(xp.where(has_diverged, 0.5 * used, RECOVERY * xp.minimum(guard.ceiling, high)), low, high)
        wary = xp.where(found.sound, xp.maximum(guard.wary - 1.0, 0.0), np.float32(WINDOW))
        known, acts, bounds = {}, [False, number(values, "stepsize") > ceiling, False], {}
        for name in self.held:
            (least, most), before = self.ends[name], used if name == "stepsize" else number(last, name)
            proposed, first = number(values, name), number(own, name, most)
            is_kept = begun & (getattr(guard, name) > 0.0) & ~(is_constant & (name in own))
            known[name] = xp.where(is_kept, getattr(guard, name), first)
            rise, held = xp.where(begun, RISE * before, FIRST_RISE * first), xp.where(holds, known[name], most)
            acts[0], acts[2] = acts[0] | (proposed > rise), acts[2] | (proposed > held)
            cap = xp.minimum(xp.minimum(rise, held), ceiling if name == "stepsize" else most)
            bounds[name] = xp.minimum(proposed, xp.maximum(xp.maximum(cap, number(own, name)), least))
        # A model that knows nothing yet, or whose memory may be wrong, does not slow the loop down.
        is_new = ((wary > 0) | ~begun) & ~has_diverged
        least = xp.where(is_new, xp.minimum(number(own, "stepsize"), high), 0.0)
        bounds["stepsize"] = xp.maximum(bounds["stepsize"], least)
        own, after = {**last, **own}, {**values, **bounds}
        both = {name: (xp.asarray(own[name], float), xp.asarray(after[name], float)) for name in after}  # not rounded
        after = {name: xp.where(fallen, *either) for name, either in both.items()}
        stays = begun & (holds | ~found.sound)  # what replaces a fault is no measure of later ones
        kept = {name: xp.where(stays, known[name], number(after, name)) for name in self.held}
        bits = sum(xp.where(act, np.float32(2 << bit), np.float32(0.0)) for bit, act in enumerate(acts))
        return after, guard._replace(ceiling=ceiling, acted=xp.where(fallen, np.float32(1.0), bits), wary=wary, **kept)


def limits_of(record: Any) -> Limits:
    """Return the limits of a model's record."""
    low, high = (np.asarray(reach, np.float64) for reach in (record.feature_low, record.feature_high))
    # Also where the range is a point: logarithms differ in the last bits between frameworks.
    margin = 1e-5 * np.maximum(np.abs(low), np.abs(high)) + MARGIN * (high - low)
    margin[[name in OF_LOOP for name in record.feature_names]] = np.inf  # `unlike` compares loops
    least, most = (np.clip(each, -ANY, ANY).astype(np.float32) for each in (low - margin, high + margin))
    every = [record.bounds(direction) for direction in record.directions or ("",)]
    both = {name: np.array([each[name] for each in every], np.float32) for name in every[0]}  # (branches, 2)
    ends = {name: each.max(axis=0) for name, each in both.items()}
    # A menu's categories fix the clip range.
    held = tuple(name for name in HELD if name in ends and (name == "stepsize" or not record.directions))
    largest = dict(zip(record.feature_names, record.feature_high, strict=True)).get("last_divergence", 0.0)
    divergence = float(np.clip(2.0 * 10.0 ** min(largest, 0.0), 0.1 * DIVERGENCE, DIVERGENCE))
    return Limits(record, least, most, ends, held, divergence)


def table(content: Any, name: str) -> dict[str, Any]:
    """Return what a record has under a name if it is a table, else an empty one: files may hold anything."""
    return found if isinstance(content, dict) and isinstance(found := content.get(name), dict) else {}


def loop_of(setting: Any) -> dict[str, float | str]:
    """Return what a meta-MDP's `setting`, or another table of a model's record, says of a training loop."""
    rule, policy = table(setting, "rule"), table(setting, "policy")
    known = {**rule, **(setting if isinstance(setting, dict) else {}), "algorithm": rule.get("name")}
    if "num_choices" in policy:
        known["actions"] = "discrete" if policy["num_choices"] else "continuous"
    found: Any = {name: float(x) for name, x in known.items() if isinstance(x, int | float) and 0 < x <= ANY}
    found["batch_steps"] = found.get("num_envs", 0.0) * found.get("num_steps", 0.0)
    found["gradient_steps"] = found.get("epochs", 0.0) * found["batch_steps"] // found.get("minibatch_size", 1.0)
    found |= {name: known[name] for name in ("algorithm", "actions") if isinstance(known.get(name), str)}
    return {name: found[name] for name in LOOP if found.get(name)}


def own_steps(loop: Values) -> float:
    """Return how many gradient steps a loop makes without a model, 0 if that is not known."""
    steps, size, epochs = (float(loop.get(name, 0.0)) for name in ("batch_steps", "minibatch_size", "epochs"))
    return float(loop.get("gradient_steps") or (epochs * -(-steps // size) if size else 0.0))


def unlike(trained: Sequence[Values], own: Values) -> dict[str, str]:
    """Return in what a loop is unlike all those that a model was trained on, one clause by name."""
    found = {}
    for name, value in own.items():
        known: list[Any] = [each[name] for each in trained if isinstance(each.get(name), type(value))]
        if isinstance(value, str):
            is_near, reach = value in known, " and ".join(dict.fromkeys(known))
        elif known:  # discounts by how many steps they look ahead
            ends = min(known), max(known)
            low, high, number = (1.0 / max(1.0 - x, SMALLEST) if name == "discount" else x for x in (*ends, value))
            is_near, reach = low / FACTOR <= number <= high * FACTOR, " to ".join(dict.fromkeys(f"{x:g}" for x in ends))
        if known and not is_near:
            found[name] = f"{name} is {value if isinstance(value, str) else f'{value:g}'}, trained on {reach}"
    return found


def own_values(fallback: Fallback, progress: Any, names: Sequence[str], xp: Any) -> dict[str, Any]:
    """Return a loop's own values by name, as far as they are given, where this share of the updates was made."""
    given = fallback(progress) if callable(fallback) else fallback
    given = given if isinstance(given, Mapping) else {} if given is None else {"stepsize": given}
    found = {}
    for name, each in given.items():
        if name not in names:
            raise not_registered("fallback", str(name), names, "is not what the model chooses")
        found[name] = value = each(progress) if callable(each) else each
        if xp is np:
            with suppress(Exception):  # what is not one number of some framework is refused below
                found[name] = value = value.item()
            if not isinstance(value, int | float) or not 0 <= value <= ANY:
                raise InputError(f"fallback: {name} is {shown(value)}, allowed is a finite number, 0 or more.")
    return found


def warn(text: str) -> None:
    """Warn at the line that called the library."""
    level, frame = 1, sys._getframe()
    while frame.f_back and str(frame.f_globals.get("__name__")).startswith("metastep."):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)
