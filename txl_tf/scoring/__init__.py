"""Scoring: segments of tokens through a reader, and what their losses sum up to."""
