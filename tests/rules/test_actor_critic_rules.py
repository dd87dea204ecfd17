"""What the rules do with a batch, where Stable-Baselines3 says nothing about it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metastep._core.errors import InputError
from metastep.mdp.blocks import Stream
from metastep.rules.actor_critic import PPO, TRPO
from metastep.rules.spaces import HyperparameterSpace, Range, space_for
from tests.controllers.problems import BLOCK, make_training_mdp

KEY = jax.random.key(0)


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


def test_a_clip_range_is_chosen_by_name_among_several_numbers_or_from_a_range():
    mdp = make_training_mdp()
    learners = mdp.begin(mdp.tasks(0, Stream.TRAIN, 0))
    state, theta, clips = PPO().init(learners.theta), learners.theta, (0.05, 0.4)

    def moved(rule, values):
        return rule.apply(mdp.policy, theta, learners.estimate, values, state, KEY).theta

    rates = {"stepsize": jnp.full(BLOCK, 0.01, jnp.float32)}
    apart = [moved(PPO(epochs=2, minibatch_size=8, clip_range=(clip,)), rates) for clip in clips]
    expected = np.where(np.arange(BLOCK)[:, None] % 2 == 0, *apart)
    assert np.abs(apart[0] - apart[1]).max() > 1e-4
    step = Range(1e-4, 1e-1, "log")
    menu = PPO(epochs=2, minibatch_size=8, clip_range=clips)
    box = PPO(epochs=2, minibatch_size=8)
    positions = jnp.asarray([[index % 2, 0.01] for index in range(BLOCK)], jnp.float32)
    numbers = jnp.asarray([[0.01, clips[index % 2]] for index in range(BLOCK)], jnp.float32)
    ranges = {"clip_range": Range(0.01, 0.5)}
    for rule, space, rows in (
        (menu, space_for(menu, step, {}, {}), positions),
        (box, space_for(box, step, {}, ranges), numbers),
    ):
        values = space.named(rows)
        assert sorted(values) == ["clip_range", "stepsize"]
        np.testing.assert_allclose(moved(rule, values), expected, rtol=1e-6, atol=1e-7)
        own = mdp.with_rule(rule, space)
        after = own.advance(learners, own.space.sample(KEY, BLOCK))
        assert np.isfinite(after.theta).all()
    with pytest.raises(InputError, match="it names stepsize, momentum, but the rule 'ppo' takes stepsize, and may"):
        mdp.with_rule(box, HyperparameterSpace((0.1, 0.1), (1.0, 1.0), ("log", "log"), ("stepsize", "momentum")))
    with pytest.raises(InputError, match=r"meta.choices: 'momentum' must be a hyperparameter of the rule 'ppo', grad"):
        space_for(box, step, {}, {"momentum": step})
    with pytest.raises(InputError, match=r"meta.rule.gae_lambda: 1.5 must be less than or equal to 1"):
        space_for(box, step, {}, {"gae_lambda": Range(0.9, 1.5)})


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: PPO(clip_range=()), r"meta.rule.clip_range: \[\] must hold one number or more"),
        (lambda: PPO(minibatch_size=1), r"meta.rule.minibatch_size: 1 must be greater than or equal to 2"),
        (lambda: make_training_mdp(PPO(minibatch_size=7)), r"minibatch_size: 7 must divide the 24 steps of a batch"),
        (lambda: make_training_mdp(PPO(2, 8, gradient_steps=7)), r"gradient_steps: 7 must not exceed 6, the number"),
        (lambda: TRPO(search_factor=1.0), r"meta.rule.search_factor: 1.0 must be less than 1"),
    ],
)
def test_what_a_rule_refuses(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()
