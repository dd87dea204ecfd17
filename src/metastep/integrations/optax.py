"""A gradient transformation of optax whose rate a fitted model proposes, also in compiled programs.

The forests are evaluated on the host, through a callback: this is about four times as fast as gathers in the compiled program,
and gives exactly the proposals of the model elsewhere (`benchmarks/proposals.py`).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from metastep._core.errors import InputError, shown
from metastep.features.diagnostics import Memory, MinibatchStats, Movement, observed
from metastep.fqi.stepper import Outside, as_diagnostics, as_numbers, require_bool
from metastep.integrations.rates import ModelSource, batch_size, rate_model, require_settings, warn_of_differences


class LearnedRateState(NamedTuple):
    """State between updates."""

    hyperparams: dict[str, Array]  # the rate, where `optax.inject_hyperparams` would put it
    memory: Memory
    movement: Movement
    gathered: MinibatchStats


def learned_rate(
    model: ModelSource,
    num_updates: int | None = None,
    *,
    flip_sign: bool = True,
    outside: Outside = "warn",
    minibatches: int | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Scale updates by the rate that a model proposes, as the last link of `optax.chain`.

    `update` takes two more arguments. `diagnostics` are numbers by name (`features.diagnostics.DIAGNOSTICS`), the same names
    every time, except `parameters`. `begins` is true where an update begins and a rate is proposed, such as at the first of
    its minibatches; otherwise the rate stays.

    Args:
        model: a model, or the name of one that comes with the library, a file or the folder of a run.
        num_updates: updates to come; None takes that of the learners that the model was fitted on.
        flip_sign: whether updates descend, as with gradients of a loss.
        outside: warn once of numbers outside the range of the training data, or refuse each, with a
            `jax.errors.JaxRuntimeError` whose last line says why.
        minibatches: of an epoch, for loops with `approx_kl` and `clip_fraction` of every minibatch, which are averaged here;
            None for those of the last update.
    """
    fitted: Any = rate_model(model)
    require_settings(fitted, "learned_rate")
    stepper = fitted.stepper(num_updates, outside, minibatches=minibatches)
    names, budget, sign = stepper.features, float(stepper.num_updates), -1.0 if flip_sign else 1.0
    smallest, largest = fitted.record.bounds()["stepsize"]
    warned: list[str] = []
    is_compared = False

    def act(rows: Array) -> NDArray[np.float32]:
        table = np.asarray(rows, np.float32)
        flat = table.reshape(-1, table.shape[-1])
        for row in flat:
            fitted.check_reach(row, outside, warned)
        return fitted.act(flat, threads=1).reshape(table.shape[:-1])

    def restored(state: LearnedRateState, params: Any) -> LearnedRateState:
        """Return a state that may come from anywhere, with a rate of the model's range; refuse what is none."""
        wanted = jax.eval_shape(init, params if stepper.needs_parameters else ())
        (known, form), own_form = jax.tree.flatten(wanted), cast(Any, None)
        try:
            places, own_form = jax.tree_util.tree_flatten_with_path(state)
        except SystemError:  # a state that holds itself
            places = []
        if own_form != form:
            raise InputError(f"learned_rate: state is {shown(state)}, allowed is the result of `init`.")
        leaves = []
        for (path, leaf), own in zip(places, known, strict=True):
            name = f"state{jax.tree_util.keystr(path)}"
            if (numbers := _numbers(name, leaf)).size != own.size:
                raise InputError(f"learned_rate: {name} has {numbers.size} numbers, allowed is {own.size}.")
            leaves.append(numbers.reshape(own.shape))
        found: LearnedRateState = jax.tree.unflatten(form, leaves)
        # What is remembered is finite, unlike what is gathered.
        memory, movement = jax.tree.map(lambda leaf: jnp.where(jnp.isfinite(leaf), leaf, 0.0), found[1:3])
        rate = jnp.nan_to_num(found.hyperparams["learning_rate"], nan=smallest)
        rate = jnp.clip(rate, jnp.float32(smallest), jnp.float32(largest))
        return LearnedRateState({"learning_rate": rate}, memory, movement, found.gathered)

    def init(params: Any) -> LearnedRateState:
        zero = jnp.float32(0.0)
        flat = _flat(params) if stepper.needs_parameters else jnp.zeros(0, jnp.float32)
        flat = jnp.where(jnp.isfinite(flat), flat, 0.0)  # else no step would ever be finite
        memory = Memory(*(zero for _ in Memory._fields))
        gathered = MinibatchStats(*(zero for _ in MinibatchStats._fields))
        movement = Movement(flat, jnp.zeros_like(flat))
        return LearnedRateState({"learning_rate": jnp.float32(smallest)}, memory, movement, gathered)

    def propose(given: Mapping[str, Array], params: Any, state: LearnedRateState) -> LearnedRateState:
        movement = state.movement
        if minibatches is not None:
            given = {**given, **state.gathered.of_the_update(given, minibatches, jnp)}
        given = {"rate": state.hyperparams["learning_rate"], **given}
        if stepper.needs_parameters:
            movement, turn = movement.after(_flat(params), jnp)
            parameters = _flat(params)
            lengths = {"step_norm": turn.length, "parameter_norm": jnp.sqrt(jnp.sum(parameters**2))}
            given = {**lengths, "step_cosine": turn.cosine, **given, "parameters": parameters}
        found, sound, memory = observed(names, given, state.memory, budget, jnp)
        parts = {name: jnp.ravel(found[name]).astype(jnp.float32) for name in names}
        for name, size in fitted.record.keywords.items():
            if parts[name].size != size:
                raise InputError(f"diagnostics: {name} has {parts[name].size} numbers, allowed is {size}.")
        row = jnp.concatenate([*parts.values()])
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
            raise InputError("learned_rate: update needs diagnostics, a dictionary of numbers by name.")
        if params is None and stepper.needs_parameters:
            raise InputError("learned_rate: update needs params, since the model observes their steps.")
        require_bool(begins)
        begins = begins if isinstance(begins, jax.Array) else bool(begins)
        given, state = as_diagnostics(diagnostics, convert=_numbers), restored(state, params)
        nonlocal is_compared
        if not is_compared:
            is_compared = True
            warn_of_differences(fitted, "learned_rate", batch_size(given))
        state = jax.lax.cond(begins, lambda: propose(given, params, state), lambda: state)
        if minibatches is not None:
            state = state._replace(gathered=state.gathered.after(given, begins, minibatches, jnp))
        rate = sign * state.hyperparams["learning_rate"]
        return jax.tree.map(lambda leaf: (rate * leaf).astype(leaf.dtype), updates), state

    return optax.GradientTransformationExtraArgs(init, update)


def _numbers(name: str, value: Any) -> Array:
    """Return numbers as a flat vector, also while a program is compiled."""
    if not isinstance(value, jax.Array) or not (
        jnp.issubdtype(value.dtype, jnp.floating) or jnp.issubdtype(value.dtype, jnp.integer)
    ):
        return jnp.asarray(as_numbers(name, value))
    return value.astype(jnp.float32).ravel()


def _flat(params: Any) -> Array:
    return ravel_pytree(jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params))[0]
