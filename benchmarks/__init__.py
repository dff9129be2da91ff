"""What to measure the trained models against."""
