"""Actor-critic learning as practitioners have it: batches of a fixed number of steps, advantages, PPO, A2C and TRPO."""

from metastep.rules.actor_critic.ppo import A2C, PPO, TRPO
from metastep.rules.actor_critic.rule import ActorCriticRule, Trained
from metastep.rules.actor_critic.sampler import Experience, Lanes, Sampler

__all__ = ["A2C", "PPO", "TRPO", "ActorCriticRule", "Experience", "Lanes", "Sampler", "Trained"]
