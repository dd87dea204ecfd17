"""A gradient transformation of optax whose rate a fitted model proposes, in programs that JAX compiles.

The forests are walked on the host, through a callback: it is about four times as fast as gathers in the compiled program, and
proposes to the bit what the model proposes elsewhere (`benchmarks/proposals.py`).
"""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from metastep._core.errors import InputError
from metastep.features.diagnostics import Memory, MinibatchStats, Movement, observed
from metastep.fqi import Model
from metastep.fqi.stepper import Outside
from metastep.integrations.rates import rate_model, seen_of, warn_of_differences


class LearnedRateState(NamedTuple):
    """What is remembered between updates."""

    hyperparams: dict[str, Array]  # the rate, where loggers look for what `optax.inject_hyperparams` injects
    memory: Memory
    movement: Movement
    gathered: MinibatchStats


def learned_rate(
    model: str | os.PathLike[str] | Model,
    num_updates: int | None = None,
    *,
    flip_sign: bool = True,
    outside: Outside = "warn",
    minibatches: int | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Scale updates by the rate that a model proposes, as the last link of `optax.chain`.

    `update` takes two arguments more. `diagnostics` are what the loop tells, by name (`features.diagnostics.DIAGNOSTICS`), the
    same names every time; parameters need not be told. `begins` is true where an update begins, and a rate is proposed: at
    the first of its minibatches, say. With others the rate stays. With `minibatches`, `approx_kl` and `clip_fraction` are told of
    every minibatch as its gradient is, and become those of the update here.

    Args:
        model: a model, or the name of one that comes with the library, a file or the folder of a run.
        num_updates: updates to come; None takes as many as the learners that the model was fitted on.
        flip_sign: whether updates go downhill, as gradients of a loss want it.
        outside: warn once of numbers that the training data did not reach, or refuse each: what JAX makes of an error on the
            host is `jax.errors.JaxRuntimeError`, its last line is ours.
        minibatches: of an epoch, for loops that tell of every minibatch; None where ratios are told of the last update.
    """
    fitted = rate_model(model)
    stepper = fitted.stepper(num_updates, outside, minibatches=minibatches)
    names, budget, sign = stepper.features, float(stepper.num_updates), -1.0 if flip_sign else 1.0
    smallest = fitted.record.branches[0].low
    warned: list[str] = []
    looked_at: list[bool] = []

    def act(rows: Array) -> NDArray[np.float32]:
        table = np.asarray(rows, np.float32)
        flat = table.reshape(-1, table.shape[-1])
        for row in flat:
            fitted.check_reach(row, outside, warned)
        return fitted.act(flat, threads=1).reshape(table.shape[:-1])

    def init(params: Any) -> LearnedRateState:
        zero = jnp.float32(0.0)
        flat = _flat(params) if stepper.needs_parameters else jnp.zeros(0, jnp.float32)
        flat = jnp.where(jnp.isfinite(flat), flat, 0.0)  # else no step would ever be finite
        memory = Memory(*(zero for _ in Memory._fields))
        movement, gathered = (
            Movement(flat, jnp.zeros_like(flat)),
            MinibatchStats(*(zero for _ in MinibatchStats._fields)),
        )
        return LearnedRateState({"learning_rate": jnp.float32(smallest)}, memory, movement, gathered)

    def propose(told: Mapping[str, Array], params: Any, state: LearnedRateState) -> LearnedRateState:
        movement = state.movement
        if minibatches is not None:
            last = state.gathered.of_the_update(minibatches, jnp)
            told = {**told, **{name: value for name, value in last.items() if name in told}}
        told = {"rate": state.hyperparams["learning_rate"], **told}
        if stepper.needs_parameters:
            movement, turn = movement.after(_flat(params), jnp)
            told = {"step_norm": turn.length, "step_cosine": turn.cosine, **told, "parameters": _flat(params)}
        found, sound, memory = observed(names, told, state.memory, budget, jnp)
        row = jnp.concatenate([jnp.ravel(found[name]).astype(jnp.float32) for name in names])
        row = jnp.where(sound, row, jnp.nan)  # which gives the smallest step
        rate = jax.pure_callback(act, jax.ShapeDtypeStruct((), jnp.float32), row, vmap_method="broadcast_all")
        return LearnedRateState({"learning_rate": rate}, memory._replace(rate=rate), movement, state.gathered)

    def update(
        updates: Any,
        state: LearnedRateState,
        params: Any = None,
        *,
        diagnostics: Mapping[str, Any] | None = None,
        begins: bool | Array = True,
        **extra_args: Any,
    ) -> tuple[Any, LearnedRateState]:
        if diagnostics is None:
            raise InputError("learned_rate: update needs diagnostics, a table of what the loop tells.")
        if params is None and stepper.needs_parameters:
            raise InputError("learned_rate: update needs params, the model looks at how they move.")
        if not looked_at:
            looked_at.append(True)
            warn_of_differences(fitted, "learned_rate", seen_of(diagnostics), stacklevel=2)
        told = {name: jnp.asarray(value).astype(jnp.float32) for name, value in diagnostics.items()}
        state = jax.lax.cond(begins, lambda: propose(told, params, state), lambda: state)
        if minibatches is not None:
            state = state._replace(gathered=state.gathered.after(told, begins, minibatches, jnp))
        rate = sign * state.hyperparams["learning_rate"]
        return jax.tree.map(lambda leaf: (rate * leaf).astype(leaf.dtype), updates), state

    return optax.GradientTransformationExtraArgs(init, update)


def _flat(params: Any) -> Array:
    return ravel_pytree(jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params))[0]
