"""Meta-MDPs: learning as a decision process.

The state is a block of learners, the action the hyperparameters of their next update, the reward the improvement of the return.
`EpisodicMetaMDP` is the paper's, `ActorCriticMDP` that of PPO and related methods.
"""

from metastep.mdp.actor_critic import ActorCriticMDP
from metastep.mdp.base import InitialPolicy, Learners, MetaMDP, Tasks
from metastep.mdp.episodes import DEFAULT_OBSERVATION, EpisodicMetaMDP, apply_rule, require_episodic, rule_values

__all__ = ["DEFAULT_OBSERVATION", "ActorCriticMDP", "EpisodicMetaMDP", "InitialPolicy", "Learners", "MetaMDP", "Tasks"]
__all__ += ["apply_rule", "require_episodic", "rule_values"]
