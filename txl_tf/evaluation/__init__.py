"""Evaluation: every token of a split is scored once, in the units of the field."""
