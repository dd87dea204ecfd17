"""A transformation of optax: the rate that is proposed is the length of the step that is made, compiled or not."""

import io

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from metastep._core.errors import InputError
from metastep.integrations.optax import learned_rate
from tests.steppers import LOW, diagnostics, tiny_model

PARAMS = {"w": jnp.arange(4.0, dtype=jnp.float32), "b": jnp.ones(2, jnp.float32)}


def told(update):
    return {name: np.float32(value) for name, value in diagnostics(update).items() if name != "parameters"}


def loss(params):
    return jnp.sum(jnp.sin(params["w"])) + jnp.sum(params["b"] ** 2)


def make():
    optimizer = optax.chain(optax.clip_by_global_norm(100.0), learned_rate(tiny_model(), num_updates=8))

    @jax.jit
    def step(params, state, told, begins):
        grads = jax.grad(loss)(params)
        updates, state = optimizer.update(grads, state, params, diagnostics=told, begins=begins)
        lengths = [jnp.linalg.norm(ravel_pytree(tree)[0]) for tree in (updates, grads)]
        return optax.apply_updates(params, updates), state, lengths[0] / lengths[1]

    return optimizer, step


@pytest.fixture(scope="module")
def loop():
    return make()


def test_the_rate_that_is_proposed_is_the_step_that_is_made(loop):
    optimizer, step = loop
    params, state = PARAMS, optimizer.init(PARAMS)
    stepper, proposed = tiny_model().stepper(num_updates=8), []
    for update in range(5):
        vector = np.concatenate([params["b"], params["w"]])
        proposed.append(stepper(told(update), parameters=vector).stepsize)
        for minibatch in range(2):
            params, state, made = step(params, state, told(update), minibatch == 0)
            assert float(made) == pytest.approx(proposed[-1], rel=1e-5)
            assert float(state[-1].hyperparams["learning_rate"]) == pytest.approx(proposed[-1], rel=1e-6)
        assert float(state[-1].memory.step_norm) == pytest.approx(float(stepper.memory.step_norm), rel=1e-4)
    assert len(set(proposed)) > 2
    assert optax.tree_utils.tree_get(state, "learning_rate") == pytest.approx(proposed[-1])
    assert float(state[-1].memory.updates) == 5.0


@pytest.mark.parametrize("name", [*told(0), "parameters"])
def test_what_is_not_finite_gives_the_smallest_step_in_compiled_programs_too(loop, name):
    optimizer, step = loop
    params, state, _ = step(PARAMS, optimizer.init(PARAMS), told(0), True)
    spoilt = told(1)
    where = PARAMS | {"b": jnp.array([jnp.nan, 1.0], jnp.float32)} if name == "parameters" else params
    if name != "parameters":
        spoilt[name] = np.where(np.arange(np.size(spoilt[name])) == 0, np.nan, spoilt[name]).astype(np.float32)
        spoilt[name] = spoilt[name].reshape(told(1)[name].shape)
    _, state, _ = step(where, state, spoilt, True)
    assert float(state[-1].hyperparams["learning_rate"]) == pytest.approx(LOW)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))
    _, state, _ = step(params, state, told(3), True)
    assert float(state[-1].hyperparams["learning_rate"]) > 1.01 * LOW


def test_what_was_saved_goes_on_identically(loop):
    optimizer, step = loop
    params, state, _ = step(PARAMS, optimizer.init(PARAMS), told(0), True)
    leaves, form = jax.tree.flatten((params, state))
    file = io.BytesIO()
    np.savez(file, *leaves)
    wanted = step(params, state, told(1), True)
    file.seek(0)
    with np.load(file) as arrays:
        again = jax.tree.unflatten(form, [jnp.asarray(arrays[name]) for name in arrays.files])
    jax.tree.map(np.testing.assert_array_equal, step(*again, told(1), True), wanted)


def test_in_a_scan_and_for_several_learners_at_once():
    optimizer = learned_rate(tiny_model(), num_updates=8)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[told(update) for update in range(3)])

    def learner(scale):
        def step(carry, told):
            params, state = carry
            updates, state = optimizer.update(jax.grad(loss)(params), state, params, diagnostics=told)
            return (optax.apply_updates(params, updates), state), state.hyperparams["learning_rate"]

        params = jax.tree.map(lambda leaf: scale * leaf, PARAMS)
        return jax.lax.scan(step, (params, optimizer.init(params)), stacked)[1]

    rates = jax.jit(jax.vmap(learner))(jnp.array([1.0, 2.0], jnp.float32))
    alone = jax.jit(learner)(jnp.float32(2.0))
    np.testing.assert_allclose(rates[1], alone, rtol=1e-6)
    assert rates.shape == (2, 3)


def test_of_minibatches_the_numbers_of_an_update_are_made_here():
    optimizer = learned_rate(tiny_model(), num_updates=8, minibatches=2)
    stepper = tiny_model().stepper(num_updates=8, minibatches=2)

    @jax.jit
    def rates(state):
        def step(state, each):
            update, told = each
            _, state = optimizer.update(PARAMS, state, PARAMS, diagnostics=told, begins=update % 4 == 0)
            return state, state.hyperparams["learning_rate"]

        return jax.lax.scan(step, state, (jnp.arange(12), stacked))

    minibatches = [told(update) for update in range(12)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *minibatches)
    vector = np.concatenate([PARAMS["b"], PARAMS["w"]])
    wanted = [
        stepper(each, parameters=vector, begins=index % 4 == 0).stepsize for index, each in enumerate(minibatches)
    ]
    state, found = rates(optimizer.init(PARAMS))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    np.testing.assert_allclose(state.gathered, stepper.gathered, rtol=1e-6)
    assert float(state.memory.updates) == 3.0


def test_another_size_of_batch_is_warned_of_once():
    optimizer = learned_rate(tiny_model())
    state = optimizer.init(PARAMS)
    batch = {name: value for name, value in told(0).items() if name != "explained_variance"}
    batch["values"] = batch["targets"] = np.arange(10, dtype=np.float32)
    with pytest.warns(UserWarning, match=r"learned_rate: .* this one has steps of a batch 10 \(there 24\)\."):
        optimizer.update(PARAMS, state, PARAMS, diagnostics=batch)
    optimizer.update(PARAMS, state, PARAMS, diagnostics=batch)


def test_what_is_outside_of_the_training_data_may_be_refused():
    optimizer = learned_rate(tiny_model(reach=1e-3), outside="refuse")
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"InputError: last_rate is -6, outside of the -0.001 to 0.001"
    ):
        jax.block_until_ready(optimizer.update(PARAMS, optimizer.init(PARAMS), PARAMS, diagnostics=told(0)))
    with pytest.raises(InputError, match="outside is 'ignore', allowed are warn, refuse"):
        learned_rate(tiny_model(), outside="ignore")


def test_what_is_missing_is_told():
    optimizer = learned_rate(tiny_model())
    state = optimizer.init(PARAMS)
    with pytest.raises(InputError, match="update needs diagnostics"):
        optimizer.update(PARAMS, state, PARAMS)
    with pytest.raises(InputError, match="update needs params"):
        optimizer.update(PARAMS, state, diagnostics=told(0))
    without = {name: value for name, value in told(0).items() if name != "entropy"}
    with pytest.raises(InputError, match="diagnostics: missing entropy"):
        optimizer.update(PARAMS, state, PARAMS, diagnostics=without)
