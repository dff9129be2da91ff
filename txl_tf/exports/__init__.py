"""Exports of models for other processes: the table of formats, and SavedModels."""
