"""Shared parts of the command-line programs: flags, the training command, errors of one line."""
