"""The meta-MDP: learning as a decision process.

Its state is a block of learners, its action the hyperparameters of their next update, its reward the improvement of the return.
`Process` is what all others need of it; `MetaMDP` is the paper's, `ActorCriticMDP` that of PPO and its relatives.
"""

from metastep.mdp.actor_critic import ActorCriticMDP, LastUpdate
from metastep.mdp.base import AnyRule, Learners, Process, Tasks, advance, begin, with_budget
from metastep.mdp.episodes import (
    DEFAULT_OBSERVATION,
    MetaMDP,
    Previous,
    divergence,
    rule_values,
    simulated,
    updated,
    whole_episodes,
)
from metastep.mdp.initial import InitialPolicy

__all__ = ["DEFAULT_OBSERVATION", "ActorCriticMDP", "AnyRule", "InitialPolicy", "LastUpdate", "Learners", "MetaMDP"]
__all__ += ["Previous", "Process", "Tasks", "advance", "begin", "divergence", "simulated", "updated", "whole_episodes"]
__all__ += ["rule_values", "with_budget"]
