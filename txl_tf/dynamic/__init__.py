"""Dynamic evaluation: the weights learn from the text that they have scored.

References:
    Krause et al. 2018, Dynamic evaluation of neural sequence models,
    https://arxiv.org/abs/1709.07432.
    Krause et al. 2019, Dynamic evaluation of transformer language models,
    https://arxiv.org/abs/1904.08378.
"""
