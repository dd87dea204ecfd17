"""rejax, PureJaxRL's PPO as a package, in one compiled loop; several learners are a vmap over seeds."""

from __future__ import annotations

from functools import partial
from importlib.metadata import version

import jax
import numpy as np
from rejax import PPO

from common import Training, from_arguments, print_record, training_record


def main() -> None:
    job, _ = from_arguments(Training)
    agent = {"hidden_layer_sizes": (job.hidden, job.hidden), "activation": "tanh"}
    algorithm = PPO.create(
        env=job.env,
        agent_kwargs=agent,
        num_envs=job.envs,
        num_steps=job.steps,
        num_epochs=job.epochs,
        num_minibatches=job.batch // job.minibatch,
        max_grad_norm=0.5,
    )
    keys = jax.random.split(jax.random.key(0), job.learners)
    state = jax.jit(jax.vmap(algorithm.init_state))(keys)

    @partial(jax.jit, static_argnums=1)
    def run(state: object, num: int) -> object:
        return jax.lax.fori_loop(0, num, lambda _, each: jax.vmap(algorithm.train_iteration)(each), state)

    def update(num: int) -> None:
        nonlocal state
        state = jax.block_until_ready(run(state, num))

    record = training_record(job, update, "rejax", version("rejax"))
    finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.actor_ts.params))
    print_record({**record, "finite": bool(finite), "device": jax.devices()[0].platform})


if __name__ == "__main__":
    main()
