"""What `--version` prints: what someone who looks into a fault needs to know of the machine."""

import importlib.metadata
import os
import platform

from txl_tf.version import __version__

_PACKAGES = ("tensorflow", "tensorflow-text", "tensorflow-tpu", "keras", "jax", "numpy", "protobuf")


def describe_versions() -> list[str]:
    """Returns lines with the versions of the packages, Keras' backend and the devices."""
    import keras
    import tensorflow as tf

    gpus = [
        tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name)
        for gpu in tf.config.list_physical_devices("GPU")
    ]
    return [
        f"txl_tf {__version__}",
        f"Python {platform.python_version()}, {platform.platform()}",
        ", ".join(f"{name} {version}" for name, version in _find_versions().items()),
        f"backend of Keras: {keras.backend.backend()}",
        f"devices: {os.cpu_count()} CPU cores, {', '.join(gpus) or 'no GPU'}",
    ]


def _find_versions() -> dict[str, str]:
    """Returns the versions of the packages that are installed."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
