"""Models for other places and processes: run folders and SavedModels."""
