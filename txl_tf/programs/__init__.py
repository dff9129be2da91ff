"""The programs behind `txl`, one file each.

`cli` holds their flags and the training command, and `checks` the checks of `txl check`.
"""
