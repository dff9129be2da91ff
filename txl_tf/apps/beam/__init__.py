"""Preparation and scoring as Apache Beam pipelines."""
