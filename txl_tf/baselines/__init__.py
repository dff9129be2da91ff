"""Baselines with the interface of `TransformerXL`."""
