"""The models, their forward pass with a cache, quantization and compilation."""
