"""Programs that measure speed, memory and training results."""
