"""Texts and their symbols."""
