"""Deployment planning: which GPU, how many, which parallelism, at what cost, for a model and its traffic."""
