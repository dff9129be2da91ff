"""Scoring a split: every token once, and the result in the field's units."""
