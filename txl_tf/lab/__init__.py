"""The laboratory: the experiments of the paper, its baselines, and what verifies a model."""
