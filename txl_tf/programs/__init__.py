"""The programs behind `txl`, one file each.

`cli` has their flags and the training command, and `checks` what `check` checks.
"""
