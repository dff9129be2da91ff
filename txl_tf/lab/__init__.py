"""The laboratory: the paper's experiments and baselines, pages that show texts, verification."""
