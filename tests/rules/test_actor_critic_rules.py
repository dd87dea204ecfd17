"""What the rules do with a batch, where Stable-Baselines3 says nothing about it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metastep._core.errors import InputError
from metastep.mdp.blocks import Stream
from metastep.rules.actor_critic import PPO, TRPO
from metastep.rules.spaces import HyperparameterSpace, Range, space_for
from tests.controllers.problems import BLOCK, TRAINING, make_training_mdp

STEP = Range(1e-4, 1e-1, "log")


def test_trpo_improves_within_the_bound_and_moves_the_critic():
    mdp = make_training_mdp(TRPO(minibatch_size=8, critic_epochs=1), num_steps=32)
    learners = mdp.begin(mdp.tasks(0, Stream.TRAIN, 0))
    for bound in (1e-3, 1e-2):
        after = mdp.advance(learners, jnp.full((BLOCK, 1), bound, jnp.float32))
        spent = np.asarray(after.previous.divergence)
        assert (spent <= bound).all()
        assert (spent > 0.2 * bound).mean() > 0.5  # a shorter step would do little
        before, now = (mdp.policy.split(each.theta) for each in (learners, after))
        batch = learners.estimate

        def gain(parts, batch=batch):
            act = jax.vmap(lambda one, seen, done: mdp.policy.act(one, seen).log_density(done))
            ratio = jnp.exp(act(parts, batch.observation, batch.action) - batch.log_density)
            centred = batch.advantage - batch.advantage.mean(axis=1, keepdims=True)
            return np.asarray((ratio * centred).mean(axis=1))

        assert (gain(now) > gain(before)).all()
        assert np.any(now["critic.0.weight"] != before["critic.0.weight"])


def test_a_clip_range_is_chosen_by_name_among_several_numbers():
    mdp = make_training_mdp()
    learners, clips = mdp.begin(mdp.tasks(0, Stream.TRAIN, 0)), (0.05, 0.4)
    rule = dataclasses.replace(TRAINING, clip_range=clips)
    own = mdp.with_rule(rule, space_for(rule, STEP, {}, {}))
    rows = jnp.asarray([[index % 2, 0.01] for index in range(BLOCK)], jnp.float32)
    apart = [
        mdp.with_rule(dataclasses.replace(TRAINING, clip_range=(clip,))).advance(learners, rows[:, 1:]).theta
        for clip in clips
    ]
    assert np.abs(apart[0] - apart[1]).max() > 1e-4
    expected = np.where(np.arange(BLOCK)[:, None] % 2 == 0, *apart)
    np.testing.assert_allclose(own.advance(learners, rows).theta, expected, rtol=1e-6, atol=1e-7)


MOMENTUM = HyperparameterSpace((0.1, 0.1), (1.0, 1.0), ("log", "log"), ("stepsize", "momentum"))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: PPO(clip_range=()), r"meta.rule.clip_range: \[\] must hold one number or more"),
        (lambda: PPO(minibatch_size=1), r"meta.rule.minibatch_size: 1 must be greater than or equal to 2"),
        (lambda: make_training_mdp(PPO(2, 8, gradient_steps=7)), r"gradient_steps: 7 must not exceed 6, the number"),
        (lambda: TRPO(search_factor=1.0), r"meta.rule.search_factor: 1.0 must be less than 1"),
        (lambda: make_training_mdp().with_rule(TRAINING, MOMENTUM), "the rule 'ppo' takes stepsize, and may take grad"),
        (lambda: space_for(PPO(), STEP, {}, {"gae_lambda": Range(0.9, 1.5)}), "gae_lambda: 1.5 must be less than or"),
    ],
)
def test_what_a_rule_refuses(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()
