"""Run folders: config, location of the data, and checkpoints."""
