"""A feature for PPO, in simulation and in other training loops: one class and one line; `ppo_walk.toml` names it."""

from metastep import features


class Certainty(features.Feature):
    name, needs = "certainty", ("entropy", "approx_kl")

    def __call__(self, seen):
        return seen["approx_kl"] - seen["entropy"]


features.register("certainty", Certainty)
