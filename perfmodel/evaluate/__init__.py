"""How good the models are, and whether what they say can be: scores, baselines, checks. Laboratory; no product imports it."""
