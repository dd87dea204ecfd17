"""The cost of a proposal: in a plain loop, inside a compiled program by a callback or by gathers, and as a share of SB3's PPO.

    python benchmarks/proposals.py

The model is as large as those of the PPO presets: two forests of 80 trees over ten features, fitted on 38,400 updates. Gathers
walk all trees for all 101 steps at once, in float32; the callback walks them on the host, in fixed point. In Stable-Baselines3,
the model is `ppo`, in the default loop on CartPole-v1; its callback also measures diagnostics and computes advantages with
another lambda.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import shared
from common import timed
from metastep.features import SETS
from metastep.fqi import ExtraTrees, MetaFQI, Model, ObservationPart, TrainingData, model_from
from metastep.mdp.history import Transitions

NAMES = SETS["training"]


def make_model(rows: int, trees: int) -> Model:
    draw = np.random.default_rng(0)
    seen = draw.normal(size=(rows, len(NAMES))).astype(np.float32)
    rate = (10.0 ** draw.uniform(-4.5, -1.55, rows)).astype(np.float32)
    reward = (-((np.log10(rate) + 3.0 + seen[:, 0]) ** 2) + draw.normal(size=rows)).astype(np.float32)
    fitted = MetaFQI(1, ExtraTrees(trees, 0.01), stepsize_low=3e-5, stepsize_high=3e-2, stepsize_scale="log")
    fitted.fit(Transitions(seen, rate, reward, seen))
    fitted.feature_low_[:], fitted.feature_high_[:] = -1e6, 1e6
    parts = [ObservationPart(name, 1) for name in NAMES]
    return model_from(fitted, setting={}, observation=parts, training_data=TrainingData(rows, 0, ""))


def by_gathers(model: Model) -> Callable[[Any], Any]:
    """Return the proposal as a program of arrays and gathers."""
    function: Any = model.q_functions[0]
    plan = function._grid_plans[0]
    feature, threshold, left, right, steps = map(jnp.asarray, (*plan.trees[:4], plan.stepsizes))
    value = jnp.asarray(np.concatenate([head.value for head in function.heads]).astype(np.float32))
    roots, last = jnp.asarray(plan.trees.offsets[:-1].astype(np.int32)), len(NAMES)

    @jax.jit
    def proposed(row: Any) -> Any:
        padded = jnp.concatenate([row, jnp.zeros(1, jnp.float32)])

        def descend(node: Any) -> Any:
            split = feature[node]
            number = jnp.where(split == last, steps[None, :], padded[split])
            below = jnp.where(number <= threshold[node], left[node], right[node])
            return jnp.where(split < 0, node, below)

        start = jnp.broadcast_to(roots[:, None], (len(roots), len(steps)))
        leaves = value[jax.lax.while_loop(lambda node: jnp.any(feature[node] >= 0), descend, start)]
        means = leaves.reshape(2, -1, len(steps)).mean(axis=1)
        return steps[jnp.argmax(plan.lam * means.min(axis=0) + (1.0 - plan.lam) * means.max(axis=0))]

    return proposed


def by_callback(model: Model) -> Callable[[Any], Any]:
    kind = jax.ShapeDtypeStruct((), jnp.float32)
    return jax.jit(lambda row: jax.pure_callback(lambda r: model.act(np.asarray(r)[None], threads=1)[0], kind, row))


def microseconds(function: Callable[[], Any], repeats: int, num: int = 10) -> float:
    """Return the time of a call: the fastest of several series, since the machine may be shared."""
    function()

    def series() -> None:
        for _ in range(num):
            jax.block_until_ready(function())

    return min(timed(series)[1].wall for _ in range(repeats)) / num * 1e6


def shares_in_sb3(updates: int, steps: int) -> dict[str, float]:
    """Return the shares of PPO's time that the model's proposals, and the whole callback, take."""
    import torch
    from stable_baselines3 import PPO

    from metastep.integrations.stable_baselines3 import LearnedUpdate

    torch.set_num_threads(1)
    callback, spent = LearnedUpdate("ppo", outside="trust"), {"callback": 0.0, "proposal": 0.0}

    def clocked(what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def around(*given: Any) -> Any:
            result, time = timed(lambda: call(*given))
            spent[what] += time.wall
            return result

        return around

    for name in ("on_step", "on_rollout_start", "on_rollout_end"):
        setattr(callback, name, clocked("callback", getattr(callback, name)))
    agent = PPO("MlpPolicy", "CartPole-v1", n_steps=steps, device="cpu", seed=0)
    begin = callback._on_training_start

    def started() -> None:
        begin()
        callback.stepper._propose = clocked("proposal", callback.stepper._propose)  # type: ignore[method-assign]

    callback._on_training_start = started  # type: ignore[method-assign]
    _, total = timed(lambda: agent.learn(updates * steps, callback=callback))
    return {name: each / total.wall for name, each in spent.items()}


def main() -> None:
    asked = shared.parser_of(__doc__).parse_args()
    size, trees, repeats = (400, 2, 1) if asked.smoke else (38_400, 80, 40)
    model, draw = make_model(size, trees), np.random.default_rng(1)
    rows = draw.normal(size=(200, len(NAMES))).astype(np.float32)
    row, stepper = jnp.asarray(rows[0]), model.stepper(10**9)
    diagnostics = {"returns": draw.normal(size=16), "entropy": 1.0, "explained_variance": 0.5, "approx_kl": 0.01}
    diagnostics |= {"clip_fraction": 0.1, "parameters": draw.normal(size=9000)}
    gathers, callback = by_gathers(model), by_callback(model)
    walked = 10.0 ** np.array([float(gathers(jnp.asarray(each))) for each in rows])
    calls = {
        "walk of the forests": lambda: model.act(rows[:1], threads=1),
        "stepper, 9,000 parameters": lambda: stepper(diagnostics),
        "compiled, callback": lambda: callback(row),
        "compiled, gathers": lambda: gathers(row),
    }
    figures = {name: microseconds(call, repeats) for name, call in calls.items()}
    agree = float(np.mean(np.isclose(walked, model.act(rows), rtol=1e-4)))
    shares = shares_in_sb3(*((2, 64) if asked.smoke else (20, 2048)))
    notes = [f"The gathers agree with the model on {agree:.1%} of the observations."]
    notes += [f"Of the time of SB3's PPO, the {name} takes {share:.2%}." for name, share in shares.items()]
    table = [[name, f"{value:.4g}"] for name, value in figures.items()]
    shared.show(f"a proposal on {jax.devices()[0]}", ("way", "microseconds"), table, notes)
    shared.save(asked.out, "proposals", figures | {"agree": agree} | shares)


if __name__ == "__main__":
    main()
