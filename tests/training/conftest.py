import contextlib

import pytest
import tensorflow as tf

# Two logical CPUs stand in for two devices. This must come before tensorflow starts its devices,
# so at import; everything else still runs on the first one.
with contextlib.suppress(RuntimeError):  # started by another test module: the fixture tells
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )


@pytest.fixture(scope="session")
def two_replicas():
    assert len(tf.config.list_logical_devices("CPU")) == 2, (
        "a test module ran tensorflow while it was imported, before the devices were set up"
    )
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture(scope="session")
def one_replica():
    return tf.distribute.MirroredStrategy(["CPU:0"])
