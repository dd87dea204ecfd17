"""Experiments: their configuration, their presets, and what runs them."""
