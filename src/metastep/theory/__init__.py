"""Lipschitz constants of contextual MDPs, and the bounds that follow from them."""
