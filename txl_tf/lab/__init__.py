"""The laboratory: experiments and baselines of the paper, pages of texts, verification."""
