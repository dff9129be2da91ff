"""What the command-line programs share: flags, the training command, errors of one line."""
