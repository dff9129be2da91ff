"""Leaves out modules that need a package which is not installed."""

import importlib.util

_NEEDED = {
    "txl_tf/inference/onnx_graph.py": "onnx",
    "txl_tf/pipelines/*": "apache_beam",
    "txl_tf/server/*": "starlette",
}
collect_ignore_glob = [
    modules for modules, package in _NEEDED.items() if importlib.util.find_spec(package) is None
]
