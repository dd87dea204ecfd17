"""HalfCheetah's physics in JAX, written for that model alone: a chain of bodies that moves in one plane.

They are those of `mj_step`. Every quantity is a scalar, nothing is an array of a few numbers: batched, a step is a few
elementwise programs over all episodes, which is what compilers and GPUs are good at.
"""
