"""Pages that show what a model predicts."""
