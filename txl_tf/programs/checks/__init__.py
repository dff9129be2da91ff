"""The checks of `txl check`: each function `check_*` returns figures, or raises an error."""
