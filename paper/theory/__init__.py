"""Lipschitz constants of contextual MDPs, the bounds that follow from them, and how both compare with measurement.

- `constants`: the formulas of the paper's context-Lipschitz section, with their conditions.
- `policy`: the linear Gaussian policy, with constants of its score that keep the gradient theorem true; Nav2D's constants.
- `lqr`: exact constants and closed forms on LQR.
- `measure`: differences between tasks with common random numbers, against their bounds.

docs/theory.md derives what is used.
"""
