"""Train one policy on one CartPole task with a fixed step size."""

import os

import jax
import jax.numpy as jnp

import metastep

num_updates = 3 if os.environ.get("METASTEP_EXAMPLE_QUICK") else 15

env = metastep.make_env("cartpole")
policy = metastep.policies.make("linear", env.num_observations, env.num_actions, sigma=1.001)
estimator = metastep.Estimator(metastep.Rollout(env, policy, num_episodes=100, horizon=100))
rule = metastep.rules.make("nga")

# Arrays are batched over learners; here there is one, with a light pole of a metre.
context = jnp.array([[0.5, 1.0]])  # pole mass (kg), pole length (m)
theta = jnp.zeros((1, policy.num_parameters))
values = {"stepsize": jnp.array([1.8])}

for update in range(num_updates + 1):
    estimate = estimator(theta, context, jax.random.key(update))
    length = estimate.num_steps[0] / 100
    print(
        f"update {update:2d}: return {estimate.mean_return[0]:5.1f} ± {estimate.return_error[0]:.1f}, {length:5.1f} steps"
    )
    theta = rule.apply(theta, estimate, values, None).theta
