"""The speed of other implementations, on the works that `benchmarks.compare` measures."""
