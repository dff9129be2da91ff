"""What a model uses of the text before a token: how far it looks, and at what."""
