"""The equations of the paper in NumPy, and the comparison of a model with them, term by term."""
