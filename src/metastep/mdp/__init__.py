"""The meta-MDP: learning as a decision process.

Its state is a block of learners, its action the hyperparameters of their next update, its reward the improvement of the return.
`EpisodicMetaMDP` is the paper's, `ActorCriticMDP` that of PPO and its relatives.
"""

from metastep.mdp.actor_critic import ActorCriticMDP
from metastep.mdp.base import InitialPolicy, Learners, MetaMDP, Tasks
from metastep.mdp.episodes import DEFAULT_OBSERVATION, EpisodicMetaMDP, divergence, rule_values, updated, whole_episodes

__all__ = ["DEFAULT_OBSERVATION", "ActorCriticMDP", "EpisodicMetaMDP", "InitialPolicy", "Learners", "MetaMDP", "Tasks"]
__all__ += ["divergence", "rule_values", "updated", "whole_episodes"]
