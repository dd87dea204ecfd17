"""Faults and mismatches: a small PPO loop with a guarded model, beside the same loop with its own schedule and the same seeds.

A *failure* is a return that is worse than that of the loop's own schedule beyond noise, a warning that comes twice or is not one
sentence, none where there must be one, or one where nothing is unusual.
"""

import random
import re
import warnings
from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from metastep import pretrained
from metastep._core.errors import InputError
from metastep.rules.spaces import HyperparameterSpace
from metastep.search import Network, Weights
from tests.campaigns import Tally, main
from tests.controllers.problems import make_training_mdp
from tests.steppers import random_weights

USUAL = {"num_envs": 16, "batch_steps": 2048, "minibatch_size": 256, "epochs": 4, "discount": 0.98, "num_updates": 25}
MISMATCHES: dict[str, dict[str, Any]] = {
    "num_envs": {"num_envs": 1},
    "batch_steps": {"batch_steps": 256},
    "minibatch_size": {"minibatch_size": 32},
    "epochs": {"epochs": 32},
    "discount": {"discount": 0.5},
    "num_updates": {"num_updates": 3},
    "actions": {},
    "near": {"num_updates": 60},
    "network": {"hidden": 64},
    "restarted": {},
    "healthy": {},
}
FAULTS = ("nan", "inf", "zero", "huge", "flipped", "missing", "stale", "constant", "units", "magnitude", "other loop")
KNOWN = {"num_envs": 16, "num_steps": 128, "discount": 0.98, "env": "bandit", "policy": {"num_choices": 2}}
KNOWN["rule"] = {"name": "ppo", "epochs": 4, "minibatch_size": 256}


@cache
def models() -> dict[str, Any]:
    """Return the models of PPO that come with the library, and one of each level with weights that suit the loop below."""
    found: dict[str, Any] = {name: pretrained.load(name) for name in pretrained.names() if "ppo" in name}
    names, low, high = (
        ("stepsize", "gradient_steps", "clip_range", "critic_rate"),
        (1e-4, 4.0, 0.1, 0.5),
        (0.1, 64.0, 0.4, 8.0),
    )
    base = make_training_mdp()
    mdp = base.with_rule(base.rule, HyperparameterSpace(low, high, ("log", "linear", "linear", "log"), names))
    observed = ("budget", "last_divergence", "entropy_change", "change_in_errors")
    for level, num, knots, units in (("constant", 0, 1, 0), ("schedule", 1, 3, 0), ("feedback", 4, 3, 4)):
        ends = (0.0, -6.0, -3.0, -900.0)[:num], (0.98, 1.0, 3.0, 900.0)[:num]
        mean, spread = (0.5, -2.0, 0.0, 0.0)[:num], (0.3, 1.0, 1.0, 9.0)[:num]
        model = random_weights(mdp, Network(observed[:num], mean, spread, (0.65, 0.5, 0.5, 0.4), knots, units), 1.0)
        curves = np.zeros_like(model.weights.curves)
        curves[:, 0] = np.linspace(0.5, -1.0, knots)
        weights = Weights(curves, model.weights.hidden, 0.3 * model.weights.output)
        known = {"experiment": {"meta": {"num_updates": 25}}}
        record = replace(model.record, setting=KNOWN, configuration=known, feature_low=ends[0], feature_high=ends[1])
        found[level] = replace(model, record=record, weights=weights)
    return found


def usual(model: Any) -> dict[str, Any]:
    """Return a loop like those that a model was trained on: actions, discount, and returns of a usual size."""
    record = model.record
    ends = dict(zip(record.feature_names, zip(record.feature_low, record.feature_high, strict=True), strict=True))
    discount = next(each["discount"] for each in reversed(record.trained_on) if "discount" in each)
    choices = {0.7: 2, 1.1: 3, 1.4: 0}[round(ends.get("first_entropy", (0.7,))[0], 1)]
    return USUAL | {"discount": discount, "choices": choices, "paid": ends.get("return", (0.0, 100.0)), "hidden": 8}


def train(loop: dict[str, Any], rate: Any, seed: int, noise: int = 0, choose: Any = None) -> float:
    """Return the mean reward over all updates of PPO with Adam: in every state, guess its class, or a number.

    `rate` is a function of the share of the updates made; `choose` maps diagnostics to other hyperparameters.
    """
    draw, hidden, num = np.random.default_rng(seed), loop["hidden"], max(1, loop["choices"])
    weights, goal, draw = (
        draw.normal(size=(4, hidden)),
        draw.normal(size=(4, num)),
        np.random.default_rng([seed, noise]),
    )
    size, part, (low, high) = loop["batch_steps"], loop["minibatch_size"], loop["paid"]
    theta = np.zeros(
        hidden * (num + 1) + 1
    )  # of the policy, of the critic, and the logarithm of the standard deviation
    moments, made, last, curve = np.zeros((2, len(theta))), 0, {}, []
    own = {"gradient_steps": loop["epochs"] * max(1, size // part), "clip_range": 0.2, "critic_rate": 1.0}

    def policy(inputs: Any, action: Any) -> tuple[Any, ...]:
        """Return outputs, values, log probabilities of actions, and their slopes by the outputs and the deviation."""
        outputs, width = inputs @ theta[:-1].reshape(num + 1, hidden).T, np.exp(theta[-1])
        if not loop["choices"]:
            off = (action - outputs[:, 0]) / width
            return (
                outputs[:, :1],
                outputs[:, 1],
                -0.5 * off**2 - theta[-1],
                np.column_stack([off / width, off**2 - 1.0]),
            )
        logs = outputs[:, :num] - np.logaddexp.reduce(outputs[:, :num], axis=1, keepdims=True)
        chosen = action[:, None] == np.arange(num)
        return logs, outputs[:, num], logs[chosen], np.column_stack([chosen - np.exp(logs), np.zeros(len(action))])

    for update in range(loop["num_updates"]):
        states, luck, order = (
            draw.normal(size=(size, 4)),
            draw.gumbel(size=(size, num)),
            draw.integers(size, size=(256, part)),
        )
        inputs, wanted, action = np.tanh(states @ weights), states @ goal, np.zeros(size)
        outputs, values, *_ = policy(inputs, action)
        if loop["choices"]:
            action, entropy = np.argmax(outputs + luck, axis=1), -np.mean(np.sum(outputs * np.exp(outputs), axis=1))
            paid = 1.0 * (action == wanted.argmax(1))
        else:
            action, entropy = outputs[:, 0] + np.exp(theta[-1]) * (luck[:, 0] - 0.577) / 1.283, theta[-1] + 1.4189
            paid = np.exp(-0.25 * (action - wanted[:, 0]) ** 2)
        before, gain = policy(inputs, action)[2], (paid - values - np.mean(paid - values)) / np.std(paid - values)
        seen = {"returns": low + (high - low) * (0.1 + 0.8 * paid[-loop["num_envs"] :]), "entropy": entropy}
        seen |= {"values": values, "targets": paid, "parameters": theta.copy(), **last}
        chosen = own | {"stepsize": rate(update / loop["num_updates"])} | (choose(seen) if choose else {})
        rates = np.full(len(theta), chosen["stepsize"])
        rates[hidden * num : -1] *= chosen["critic_rate"]
        clip, logged = chosen["clip_range"], []
        for rows in order[: chosen["gradient_steps"]]:
            _, value, now, slopes = policy(inputs[rows], action[rows])
            ratio = np.exp(np.clip(now - before[rows], -20.0, 20.0))
            logged.append((np.mean(ratio - 1.0 - np.log(ratio)), np.mean(np.abs(ratio - 1.0) > clip)))
            counts = np.where(gain[rows] > 0, ratio < 1.0 + clip, ratio > 1.0 - clip)
            slopes = np.column_stack([slopes[:, :num], paid[rows] - value, slopes[:, num:]])
            slopes[:, np.arange(num + 2) != num] *= (gain[rows] * ratio * counts)[:, None]
            slope = np.append(slopes[:, : num + 1].T @ inputs[rows], slopes[:, num + 1].sum()) / part
            moments = moments * [[0.9], [0.999]] + [0.1 * slope, 0.001 * slope**2]
            made += 1
            theta = theta + rates * moments[0] / (1.0 - 0.9**made) / (np.sqrt(moments[1] / (1.0 - 0.999**made)) + 1e-5)
        last = dict(zip(("approx_kl", "clip_fraction"), np.mean(logged[-(size // part) :], axis=0), strict=True))
        curve.append(paid.mean())
    return float(np.mean(curve))


def spoilt(kind: str, seen: dict[str, Any], keys: list[str], before: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what a loop with a fault reports; `before` has what it reported earlier."""
    factors = {
        "zero": 0.0,
        "flipped": -1.0,
        "magnitude": 1e6,
        "units": 1.4427,
        "nan": np.nan,
        "inf": np.inf,
        "huge": 1e30,
    }
    if kind == "missing":
        return {name: value for name, value in seen.items() if name not in keys}
    if kind in ("stale", "constant") and len(before) > 2:
        return before[-1 if kind == "stale" else 2]
    if kind == "other loop":
        other = {"entropy": 0.3, "approx_kl": 0.002 * len(before), "clip_fraction": 0.01, "returns": np.arange(9.0)}
        return seen | {name: other[name] for name in keys if name in other and name in seen}
    keys = ["returns"] if kind == "magnitude" else keys
    return seen | {name: seen[name] * factors.get(kind, 1.0) for name in keys if name in seen}


def one(draw: random.Random, name: str, kind: str) -> tuple[float, float, list[str]]:
    """Return the mean reward minus that of the own schedule, the same for other noise and that schedule, and all messages."""
    model, start, slope = models()[name], draw.choice([3e-4, 1e-3]), draw.choice([0.0, 1.0])
    loop, seed, often, before = usual(model), draw.randrange(10**6), draw.choice([0.3, 1.0]), list[dict[str, Any]]()
    rate, changes = lambda made: start * (1.0 - slope * made), dict(MISMATCHES.get(kind, {}))
    changes |= {"choices": 0 if loop["choices"] else 2} if kind == "actions" else {}
    changes |= {"discount": loop["discount"] + 0.0033} if kind == "near" else {}  # 0.9833 against 0.98
    loop, luck, said = loop | changes, random.Random(seed), list[str]()
    keys = luck.sample(["returns", "entropy", "approx_kl", "clip_fraction", "values"], luck.choice([1, 2, 5]))
    keys += ["approx_kl"] if kind == "missing" else []  # there is no guard without it
    known = {key: loop[key] for key in USUAL if key not in ("num_updates", "batch_steps")}
    known["actions"] = "discrete" if loop["choices"] else "continuous"
    own = {"gradient_steps": loop["epochs"] * max(1, loop["batch_steps"] // loop["minibatch_size"])}
    own |= {"stepsize": rate, "clip_range": 0.2, "critic_rate": 1.0}
    own = {key: own[key] for key in model.record.hyperparameters}
    make = partial(model.stepper, loop["num_updates"], fallback=own, loop=known)
    steppers = [make()]

    def choose(seen: dict[str, Any]) -> dict[str, float]:
        if kind in FAULTS and (luck.random() < often or kind == "constant"):
            seen = spoilt(kind, seen, keys, before)
        before.append(seen)
        if kind == "restarted" and len(before) == 12:
            steppers.append(make())
        try:
            return dict(steppers[-1](seen).values)
        except InputError as error:
            said.append(str(error))
            return {}

    with np.errstate(all="ignore"), warnings.catch_warnings(record=True, action="always") as warned:
        got, wanted = train(loop, rate, seed, choose=choose), train(loop, rate, seed)
    return got - wanted, train(loop, rate, seed, 1) - wanted, [str(each.message) for each in warned] + [*{*said}]


def wrong(kind: str, name: str, said: list[str]) -> str:
    """Return what is wrong with the messages of a training run, if anything is."""
    causes = Counter(cause for text in said for cause in re.findall(r"(\w+) is \S+, (\w+)", text))
    if any("\n" in text or not text.endswith(".") or ("is" not in text and "missing" not in text) for text in said):
        return "is not one sentence"
    if max(causes.values(), default=0) > (2 if kind == "restarted" else 1):
        return "comes twice"
    if kind in ("healthy", "near", "network") and any("more than" not in text for text in said):
        return "is not due"
    must = {"nan": "nan", "inf": "inf|nan", "stale": "approx_kl is", "constant": "approx_kl is", "missing": "missing"}
    must |= {each: f"{each} is" for each in ("num_envs", "batch_steps", "minibatch_size", "discount", "num_updates")}
    must |= {} if name in ("constant", "schedule", "feedback") else {"epochs": "epochs is"}
    must |= {} if name == "ppo-classic" else {"actions": "actions is"}
    return "is due" if kind in must and not any(re.search(must[kind], text) for text in said) else ""


def campaign(number: int, seed: int, sandbox: Path) -> dict[str, Any]:
    draw, tally, kinds = random.Random(seed), Tally(), [*FAULTS, *MISMATCHES]
    gains, noise = defaultdict[str, list[tuple[str, float]]](list), defaultdict[str, list[float]](list)
    for index in range(number):
        kind, name = kinds[index % len(kinds)], draw.choice([*models()])
        gain, other, said = one(draw, name, kind)
        gains[kind].append((name, gain))
        noise[name].append(other)
        if fault := wrong(kind, name, said):
            tally.failures.append(f"{kind} {name}: a message {fault}: {said!r:.500}")
        tally.add(f"{kind} {'equal' if gain == 0.0 else 'better' if gain > 0.0 else 'lower'}")
    spread = {name: float(np.sqrt(np.mean(np.square(each)))) for name, each in noise.items()}
    worst = {kind: min(gain / spread[name] for name, gain in each) for kind, each in gains.items()}
    tally.failures += [
        f"{kind}: {least:.1f} standard deviations below" for kind, least in worst.items() if least < -4.0
    ]
    means = {kind: float(np.mean([gain for _, gain in each])) for kind, each in gains.items()}
    return tally.found(noise=spread, worst=worst, means=means)


if __name__ == "__main__":
    main(campaign)
