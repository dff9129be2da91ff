"""Preparing and scoring as Apache Beam pipelines; the only part that knows Beam."""
