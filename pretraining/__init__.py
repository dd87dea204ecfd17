"""Families of tasks that models are pretrained on, and their presets. It uses the public API of metastep only.

metastep search pretraining/presets/lander-update.toml    # from the root of the repository
"""
