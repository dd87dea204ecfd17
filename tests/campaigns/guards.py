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
from metastep.search import Network
from tests.campaigns import Tally, main
from tests.controllers.problems import make_training_mdp
from tests.steppers import random_weights

USUAL = {"num_envs": 16, "batch_steps": 2048, "minibatch_size": 256, "epochs": 4, "discount": 0.98, "num_updates": 25}
CHANGES = {"num_envs": 1, "batch_steps": 256, "minibatch_size": 32, "epochs": 32, "discount": 0.5, "num_updates": 3}
MISMATCHES = (*CHANGES, "actions", "near", "network", "restarted", "healthy")
FAULTS = ("nan", "inf", "zero", "huge", "flipped", "missing", "stale", "constant", "units", "magnitude", "other loop")
KNOWN = {"num_envs": 16, "num_steps": 128, "discount": 0.98, "env": "bandit", "policy": {"num_choices": 2}}
KNOWN["rule"] = {"name": "ppo", "epochs": 4, "minibatch_size": 256}


@cache
def models() -> dict[str, Any]:
    """Return the models of PPO that come with the library, and one of each level with weights that suit the loop below."""
    found: dict[str, Any] = {name: pretrained.load(name) for name in pretrained.names() if "ppo" in name}
    names, base = ("stepsize", "gradient_steps", "clip_range", "critic_rate"), make_training_mdp()
    low, high = (1e-4, 4.0, 0.1, 0.5), (0.1, 64.0, 0.4, 8.0)
    mdp = base.with_rule(base.rule, HyperparameterSpace(low, high, ("log", "linear", "linear", "log"), names))
    observed = ("budget", "last_divergence", "entropy_change", "change_in_errors")
    for level, num, knots, units in (("constant", 0, 1, 0), ("schedule", 1, 3, 0), ("feedback", 4, 3, 4)):
        ends = (0.0, -6.0, -3.0, -900.0)[:num], (0.98, 1.0, 3.0, 900.0)[:num]
        mean, spread = (0.5, -2.0, 0.0, 0.0)[:num], (0.3, 1.0, 1.0, 9.0)[:num]
        model = random_weights(mdp, Network(observed[:num], mean, spread, (0.65, 0.5, 0.5, 0.4), knots, units), 1.0)
        curves = np.zeros_like(model.weights.curves)
        curves[:, 0] = np.linspace(0.5, -1.0, knots)
        weights = model.weights._replace(curves=curves, output=0.3 * model.weights.output)
        known = {"experiment": {"meta": {"num_updates": 25}}}
        record = replace(model.record, setting=KNOWN, configuration=known, feature_low=ends[0], feature_high=ends[1])
        found[level] = replace(model, record=record, weights=weights)
    return found


def usual(model: Any) -> dict[str, Any]:
    """Return a loop like those that a model was trained on: with its first entropy, discount, and returns of a usual size."""
    record = model.record
    ends = dict(zip(record.feature_names, zip(record.feature_low, record.feature_high, strict=True), strict=True))
    discount = next(each["discount"] for each in reversed(record.trained_on) if "discount" in each)
    choices = round(np.exp(ends.get("first_entropy", (0.7,))[0]))
    return USUAL | {"discount": discount, "choices": choices, "paid": ends.get("return", (0.0, 100.0)), "hidden": 8}


def train(loop: dict[str, Any], rate: Any, seed: int, noise: int = 0, choose: Any = None) -> float:
    """Return the mean reward over all updates of PPO with Adam: 1 for the class of a state, 0 for others.

    `rate` is a function of the share of the updates made; `choose` maps diagnostics to other hyperparameters.
    """
    draw, num, (low, high) = np.random.default_rng(seed), loop["choices"], loop["paid"]
    hidden, goal = draw.normal(size=(4, loop["hidden"])), draw.normal(size=(4, num))
    draw = np.random.default_rng([seed, noise])
    size, part, last, curve = loop["batch_steps"], loop["minibatch_size"], {}, []
    theta = np.zeros((num + 1, loop["hidden"]))  # of the policy, and of the critic
    moments, made = np.zeros((2, *theta.shape)), 0
    own = {"gradient_steps": loop["epochs"] * max(1, size // part), "clip_range": 0.2, "critic_rate": 1.0}

    def policy(inputs: Any) -> tuple[Any, Any]:
        """Return log probabilities and values."""
        outputs = inputs @ theta.T
        return outputs[:, :num] - np.logaddexp.reduce(outputs[:, :num], axis=1, keepdims=True), outputs[:, num]

    for update in range(loop["num_updates"]):
        states, luck = draw.normal(size=(size, 4)), draw.gumbel(size=(size, num))
        order = draw.integers(size, size=(256, part))
        inputs, (logs, values) = np.tanh(states @ hidden), policy(np.tanh(states @ hidden))
        action = (logs + luck).argmax(1)
        paid, before = 1.0 * (action == (states @ goal).argmax(1)), logs[np.arange(size), action]
        gain = (paid - values - np.mean(paid - values)) / np.std(paid - values)
        noisy = (0.1 + 0.7 * paid + 0.02 * luck[:, 0])[-loop["num_envs"] :]  # good policies have equal rewards
        seen = {"returns": low + (high - low) * noisy, "values": values, "targets": paid}
        seen |= {"entropy": -np.mean(np.sum(logs * np.exp(logs), axis=1)), "parameters": theta.copy(), **last}
        chosen = own | {"stepsize": rate(update / loop["num_updates"])} | (choose(seen) if choose else {})
        rates = chosen["stepsize"] * np.append(np.ones(num), chosen["critic_rate"])[:, None]
        clip, logged = chosen["clip_range"], []
        for rows in order[: chosen["gradient_steps"]]:
            (logs, value), is_taken = policy(inputs[rows]), action[rows, None] == np.arange(num)
            ratio = np.exp(np.clip(logs[is_taken] - before[rows], -20.0, 20.0))
            logged.append((np.mean(ratio - 1.0 - np.log(ratio)), np.mean(np.abs(ratio - 1.0) > clip)))
            counts = gain[rows] * ratio * np.where(gain[rows] > 0, ratio < 1.0 + clip, ratio > 1.0 - clip)
            errors = np.column_stack([(is_taken - np.exp(logs)) * counts[:, None], paid[rows] - value])
            slope = errors.T @ inputs[rows] / part
            moments, made = np.stack([0.9, 0.999])[:, None, None] * moments + [0.1 * slope, 0.001 * slope**2], made + 1
            theta = theta + rates * moments[0] / (1.0 - 0.9**made) / (np.sqrt(moments[1] / (1.0 - 0.999**made)) + 1e-5)
        last = dict(zip(("approx_kl", "clip_fraction"), np.mean(logged[-(size // part) :], axis=0), strict=True))
        curve.append(paid.mean())
    return float(np.mean(curve))


def spoilt(kind: str, seen: dict[str, Any], keys: list[str], before: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what a loop with a fault reports; `before` has what it reported earlier."""
    factors = {"zero": 0.0, "flipped": -1.0, "magnitude": 1e6, "units": 1.4427, "huge": 1e30, "inf": np.inf}
    if kind == "missing":
        return {name: value for name, value in seen.items() if name not in keys}
    if kind in ("stale", "constant"):
        return before[-1 if kind == "stale" else 2] if len(before) > 2 else seen
    if kind == "other loop":
        other = {"entropy": 0.3, "approx_kl": 0.002 * len(before), "clip_fraction": 0.01, "returns": np.arange(9.0)}
        return seen | {name: other[name] for name in keys if name in other and name in seen}
    keys = ["returns"] if kind == "magnitude" else keys
    return seen | {name: seen[name] * factors.get(kind, np.nan) for name in keys if name in seen}


def one(draw: random.Random, name: str, kind: str) -> tuple[float, float, list[str]]:
    """Return the mean reward minus that of the own schedule, the same for other noise and that schedule, and all messages."""
    model, start, slope = models()[name], draw.choice([3e-4, 1e-3]), draw.choice([0.0, 1.0])
    loop, seed, often, before = usual(model), draw.randrange(10**6), draw.choice([0.3, 1.0]), list[dict[str, Any]]()
    rate, luck, said = lambda made: start * (1.0 - slope * made), random.Random(seed), list[str]()
    changed = CHANGES | ({"num_envs": 512, "batch_steps": 16, "minibatch_size": 4} if name == "ppo" else {})  # farther
    loop |= {kind: changed[kind]} if kind in changed else {"hidden": 64} if kind == "network" else {}
    loop |= {"num_updates": 60, "discount": loop["discount"] + 0.0033} if kind == "near" else {}  # 0.9833 against 0.98
    keys = luck.sample(["returns", "entropy", "approx_kl", "clip_fraction", "values"], luck.choice([1, 2, 5]))
    keys += ["approx_kl"] if kind == "missing" else []  # there is no guard without it
    known = {key: loop[key] for key in USUAL if key not in ("num_updates", "batch_steps")}
    trained = {each.get("actions", "") for each in model.record.trained_on}
    known |= {"actions": [*{"discrete", "continuous"} - trained, "multidiscrete"][0]} if kind == "actions" else {}
    own = {"gradient_steps": loop["epochs"] * max(1, loop["batch_steps"] // loop["minibatch_size"])}
    own |= {"stepsize": rate, "clip_range": 0.2, "critic_rate": 1.0, "gae_lambda": 0.95, "entropy_weight": 0.0}
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
    chosen = "epochs" if "gradient_steps" in models()[name].record.hyperparameters else ""
    must |= {each: f"{each} is" for each in {*CHANGES, "actions"} - {chosen}}
    return "is due" if kind in must and not any(re.search(must[kind], text) for text in said) else ""


def campaign(number: int, seed: int, sandbox: Path) -> dict[str, Any]:
    draw, tally, kinds = random.Random(seed), Tally(), [*FAULTS, *MISMATCHES]
    gains, noise = defaultdict[str, list[float]](list), []
    for index in range(number):
        kind, name = kinds[index % len(kinds)], draw.choice([*models()])
        gain, other, said = one(draw, name, kind)
        gains[kind].append(gain)
        noise.append(other)
        if fault := wrong(kind, name, said):
            tally.failures.append(f"{kind} {name}: a message {fault}: {said!r:.500}")
        tally.add(f"{kind} {'equal' if gain == 0.0 else 'better' if gain > 0.0 else 'lower'}")
    spread = float(np.sqrt(np.mean(np.square(noise))))
    worst = {kind: min(each) / spread for kind, each in gains.items()}
    low = {kind: least for kind, least in worst.items() if least < -3.0}
    tally.failures += [f"{kind}: {least:.1f} standard deviations below" for kind, least in low.items()]
    return tally.found(noise=spread, worst=worst, means={kind: float(np.mean(each)) for kind, each in gains.items()})


if __name__ == "__main__":
    main(campaign)
