"""A server of SavedModels."""
