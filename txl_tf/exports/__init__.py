"""Exports of models for other machines and processes: run folders and SavedModels."""
