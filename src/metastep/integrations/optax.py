"""A gradient transformation of optax whose rate a model proposes, and all hyperparameters of an update, in compiled programs.

A searched model is a few matrix products in the program. Forests are evaluated on the host, through a callback: this is about
four times as fast as gathers in the program, and gives exactly the proposals of the model elsewhere (`benchmarks/proposals.py`).
"""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from metastep._core.errors import InputError, shown
from metastep.features.diagnostics import Memory, MinibatchStats, Movement
from metastep.fqi import Model
from metastep.fqi.guard import Fallback, Guard, Outside, Values
from metastep.fqi.stepper import WHOLE, Proposal, as_diagnostics, as_numbers, batch_size, require_bool
from metastep.pretrained import ModelSource, rate_model, require_settings
from metastep.search import SearchedModel

_KEYS = {"stepsize": "learning_rate"}  # the rate has optax's name in the state


class LearnedRateState(NamedTuple):
    """State between updates."""

    hyperparams: dict[str, Array]  # the rate, where `optax.inject_hyperparams` would put it, and others by name
    memory: Memory
    movement: Movement
    gathered: MinibatchStats
    guard: Guard


class LearnedUpdate(NamedTuple):
    """Two pure functions, for compiled programs as well; see `learned_update`."""

    init: Callable[[Any], LearnedRateState]
    propose: Callable[..., tuple[dict[str, Array], LearnedRateState]]


def learned_rate(
    model: ModelSource, num_updates: int | None = None, **options: Any
) -> optax.GradientTransformationExtraArgs:
    """Scale updates by minus the rate that a model proposes, as the last link of `optax.chain`.

    `update` takes two more arguments. `diagnostics` are numbers by name (`features.diagnostics.DIAGNOSTICS`), the same names
    every time, except `parameters`. `begins` is true where an update begins and a rate is proposed, such as at the first of
    its minibatches; otherwise the rate stays. `learned_update` is for models that choose more than the rate.

    The arguments and options are those of `learned_update`.
    """
    fitted, name = rate_model(model), "learned_rate: update"
    require_settings(fitted, "learned_rate", instead="use learned_update")
    init, propose = learned_update(fitted, num_updates, name=name, **options)

    def update(updates: Any, state: LearnedRateState, params: Any = None, **given: Any) -> tuple[Any, LearnedRateState]:
        values, state = propose(state, given.get("diagnostics"), params, begins=given.get("begins", True))
        return jax.tree.map(lambda leaf: (-values["stepsize"] * leaf).astype(leaf.dtype), updates), state

    return optax.GradientTransformationExtraArgs(init, update)


def learned_update(
    model: ModelSource,
    num_updates: int | None = None,
    *,
    outside: Outside = "fallback",
    minibatches: int | None = None,
    fallback: Fallback = None,
    loop: Values | None = None,
    name: str = "learned_update: propose",
) -> LearnedUpdate:
    """Return pure functions that propose all hyperparameters of an update, by name.

    `init(params)` returns the first state, `propose(state, diagnostics, params)` the values and the next state. Call it after
    the batch and before the losses of an update; `params` may be left out where the model does not observe their steps.

    Args:
        model: a model, or the name of one that comes with the library, a file or the folder of a run.
        num_updates, minibatches, fallback, loop: as of `metastep.Stepper`; a function for the fallback is one of JAX.
        outside: likewise; a refusal in a program is a `jax.errors.JaxRuntimeError` whose last line says why.
        name: sentences about wrong arguments begin with it.
    """
    fitted = rate_model(model)
    stepper = fitted.stepper(num_updates, outside, minibatches=minibatches, fallback=fallback, loop=loop)
    chosen, place = fitted.record.hyperparameters, name.partition(":")[0]
    branches = [fitted.record.bounds(direction) for direction in fitted.record.directions or ("",)]

    def report(names: list[str], *seen: Any) -> NDArray[np.float32]:
        tables = [np.asarray(each) for each in seen]
        learners = tables[0].shape[:-1]
        for each in zip(*(table.reshape(math.prod(learners), table.shape[-1]) for table in tables), strict=True):
            stepper.report(each[0], names, *each[1:])
        return np.zeros(learners, np.float32)

    def act(rows: Any) -> NDArray[np.float32]:
        table = np.asarray(rows, np.float32)
        found = cast(Model, fitted).act(table.reshape(-1, table.shape[-1]), threads=1)
        found = found.reshape(*table.shape[:-1], -1)  # the step, after the position of its branch if there are several
        others = np.array([[*branch.values.values()] for branch in fitted.record.branches], np.float32)
        position = found[..., 0].astype(int) if fitted.record.directions else np.zeros(found.shape[:-1], int)
        return np.concatenate([others[position], found[..., -1:]], axis=-1)

    def choose(row: Array) -> Proposal:
        """Return the hyperparameters for some features, (size,)."""
        if not isinstance(fitted, SearchedModel):  # forests are on the host
            shape = jax.ShapeDtypeStruct((len(chosen),), jnp.float32)
            found = jax.pure_callback(act, shape, row, vmap_method="broadcast_all")
            return Proposal(dict(zip(chosen, found, strict=True)))
        return Proposal(fitted.values(row, jnp))

    def restored(state: LearnedRateState, params: Any) -> LearnedRateState:
        """Return a state that may come from anywhere, with a rate of the model's range; refuse what is none."""
        known, form = jax.tree.flatten(jax.eval_shape(init, params if "parameters" in stepper.needs else ()))
        places, own_form = None, cast(Any, None)
        with suppress(SystemError, TypeError, ValueError):  # a state that holds itself, or keys without an order
            places, own_form = jax.tree_util.tree_flatten_with_path(state)
        if places is None or own_form != form:
            raise InputError(f"{place}: state is {shown(state)}, allowed is the result of `init`.")
        leaves = []
        for (path, leaf), own in zip(places, known, strict=True):
            field = f"state{jax.tree_util.keystr(path)}"
            if (numbers := _numbers(field, leaf)).size != own.size:
                raise InputError(f"{place}: {field} has {numbers.size} numbers, allowed is {own.size}.")
            leaves.append(numbers.reshape(own.shape))
        found: LearnedRateState = jax.tree.unflatten(form, leaves)
        # What is remembered is finite, unlike what is gathered.
        memory, movement, guard = jax.tree.map(
            lambda leaf: jnp.where(jnp.isfinite(leaf), leaf, 0.0), (found.memory, found.movement, found.guard)
        )
        values = {}
        for each in chosen:
            number = found.hyperparams[key := _KEYS.get(each, each)]
            ends = np.array([branch[each] for branch in branches], np.float32)  # (branches, 2)
            # The nearest number of all ranges; a choice among several has one range of a single number for each.
            near = jnp.clip(jnp.nan_to_num(number, nan=ends.min()), ends[:, 0], ends[:, 1])
            nearest = near[jnp.argmin(jnp.abs(near - number))]
            nearest = jnp.round(nearest) if each in WHOLE else nearest
            # The loop's own values know no range.
            values[key] = jnp.where((guard.acted == 1.0) & jnp.isfinite(number), jnp.maximum(number, 0.0), nearest)
        return LearnedRateState(values, memory, movement, found.gathered, guard)

    def init(params: Any) -> LearnedRateState:
        flat = _flat(params) if "parameters" in stepper.needs else jnp.zeros(0, jnp.float32)
        flat = jnp.where(jnp.isfinite(flat), flat, 0.0)  # else no step would ever be finite
        memory, gathered, guard = jax.tree.map(jnp.float32, (Memory(), MinibatchStats(), Guard()))
        values = {_KEYS.get(each, each): jnp.float32(min(branch[each][0] for branch in branches)) for each in chosen}
        return LearnedRateState(values, memory, Movement(flat, jnp.zeros_like(flat)), gathered, guard)

    def proposed(given: Mapping[str, Array], params: Any, state: LearnedRateState) -> LearnedRateState:
        if "parameters" in stepper.needs:
            given = {**given, "parameters": _flat(params)}
        begun, usual = state.memory.updates > 0, stepper.usual.values
        last = {each: jnp.where(begun, state.hyperparams[_KEYS.get(each, each)], usual[each]) for each in chosen}
        (values, _), found, guard, (is_unusual, *seen) = stepper.next_update(given, state, last, choose, jnp)
        nothing = jnp.float32(0.0)
        call = partial(report, [*found.diagnostics])
        reported = partial(jax.pure_callback, call, nothing, *seen, vmap_method="broadcast_all")
        # The host is called only where something is unusual; the zero that it returns makes sure that it is.
        zero = jax.lax.cond(is_unusual, reported, lambda: nothing)
        rates: dict[str, Any] = {_KEYS.get(each, each): jnp.float32(values[each]) + zero for each in chosen}
        return LearnedRateState(rates, found.memory, found.movement or state.movement, state.gathered, guard)

    def propose(
        state: LearnedRateState, diagnostics: Values | None = None, params: Any = None, *, begins: bool | Array = True
    ) -> tuple[dict[str, Array], LearnedRateState]:
        if diagnostics is None and stepper.needs:
            raise InputError(f"{name} needs diagnostics, a dictionary of numbers by name.")
        if params is None and "parameters" in stepper.needs:
            raise InputError(f"{name} needs params, since the model observes their steps.")
        require_bool(begins)
        begins = begins if isinstance(begins, jax.Array) else bool(begins)
        given = as_diagnostics({} if diagnostics is None else diagnostics, convert=_numbers)
        state = restored(state, params)
        stepper.compare(batch_size(given))
        stepper.watch(given)
        state = jax.lax.cond(begins, lambda: proposed(given, params, state), lambda: state)
        if minibatches is not None:
            state = state._replace(gathered=state.gathered.after(given, begins, minibatches, jnp))
        return {each: state.hyperparams[_KEYS.get(each, each)] for each in chosen}, state

    return LearnedUpdate(init, propose)


def _numbers(name: str, value: Any) -> Array:
    """Return numbers as a flat vector, also while a program is compiled."""
    if isinstance(value, jax.Array) and any(jnp.issubdtype(value.dtype, kind) for kind in (jnp.floating, jnp.integer)):
        return value.astype(jnp.float32).ravel()
    return jnp.asarray(as_numbers(name, value))


def _flat(params: Any) -> Array:
    return ravel_pytree(jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params))[0]
