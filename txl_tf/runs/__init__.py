"""Run folders: config, location of the data, checkpoints."""
