"""Shared parts of the command-line programs: flags, the training command, one-line errors."""
