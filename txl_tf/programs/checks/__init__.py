"""What `txl check` checks: each function `check_*` returns figures, or raises an error."""
