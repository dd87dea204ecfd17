"""Families of tasks that models are pretrained on, training loops, and the recipe of the model `ppo`.

It uses the public API of metastep only. From the root of the repository:

    python -m pretraining.families                            # what the families are like
    python -m pretraining train --device gpu --minutes 25     # search the model; the same command goes on with the search
    python -m pretraining score --device gpu --minutes 25     # test it on families that it never saw
    metastep publish runs/ppo --name ppo                      # the model file and its card
    metastep search pretraining/presets/lander-update.toml    # a model for one family
"""
