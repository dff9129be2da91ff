"""A server of runs over HTTP."""
