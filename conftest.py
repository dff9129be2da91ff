"""Leaves out what needs a package that is not installed."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("apache_beam") else ["txl_tf/pipelines/*"]
