"""Leaves out modules that need a package which is not installed."""

import importlib.util

_NEEDED = {
    "txl_tf/apps/onnx_graph.py": "tf2onnx",
    "txl_tf/apps/beam/*": "apache_beam",
    "txl_tf/apps/lm_eval.py": "lm_eval",
    "txl_tf/apps/server/*": "starlette",
}
collect_ignore_glob = [
    modules for modules, package in _NEEDED.items() if importlib.util.find_spec(package) is None
]
