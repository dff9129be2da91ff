"""The folder of a run: its config, its data, its checkpoints."""
