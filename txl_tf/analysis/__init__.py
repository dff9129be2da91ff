"""Analyses of a trained model, as in the paper's experiments."""
