"""Lanes: the order in which records are read."""
