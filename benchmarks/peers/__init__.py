"""Speed of other people's code, on the works that `benchmarks.compare` measures."""
