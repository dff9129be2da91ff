"""The equations of the paper in NumPy, and a model beside them, term by term."""
