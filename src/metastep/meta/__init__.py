"""The meta-MDP: observations, the loop that every method shares, collection, the dataset on disk."""
