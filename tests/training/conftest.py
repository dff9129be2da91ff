import pytest
import tensorflow as tf


@pytest.fixture(scope="session")
def two_replicas():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture(scope="session")
def one_replica():
    return tf.distribute.MirroredStrategy(["CPU:0"])
