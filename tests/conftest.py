import ctypes
import gc
import os
import sys
from unittest import mock

import pytest
from hub_server import hub  # noqa: F401  fixtures for all
from served_files import closed_url, serve, server  # noqa: F401

from txl_tf.quiet_start import hide_remarks


def pytest_configure(config):
    if config.getoption("numprocesses", None):
        return  # this process only starts those of pytest-xdist, which run the tests
    # Programs that tests start find the environment as it was.
    with mock.patch.dict(os.environ):
        hide_remarks()
        import tensorflow as tf

    # The processes of pytest-xdist share the cores: more threads would wait for each other.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    # Two logical CPUs stand in for two devices. This must come before tensorflow starts its
    # devices, so before any test module is imported; everything else still runs on the first one.
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )


# Tracing makes many objects, and Python would search all that tensorflow has imported for cycles
# again and again: a tenth of the time of tests that train.
def pytest_collection_finish():
    gc.freeze()
    gc.set_threshold(50_000)


# The compiled functions of a test module lie in cycles, and take gigabytes in the end. The C
# library keeps what is freed in small pieces unless it is asked to return it.
@pytest.fixture(scope="module", autouse=True)
def free_memory():
    yield
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


# One strategy of each kind for all tests of a process: the collective operations of two over the
# same devices would be taken for each other's.
@pytest.fixture(scope="session")
def two_replicas():
    import tensorflow as tf

    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture(scope="session")
def one_replica():
    import tensorflow as tf

    return tf.distribute.MirroredStrategy(["CPU:0"])


# XLA compiles for longer than small models compute. Where a test does not say what it compiles,
# `auto` compiles nothing, and neither does generation. The contract is tested as users have it, and
# so are servers, which are processes of their own.
@pytest.fixture(scope="module", autouse=True)
def compile_nothing(request):
    if any(f"tests/{room}" in request.path.as_posix() for room in ("contract", "extras")):
        yield
        return
    from txl_tf.generation.generator import Generator
    from txl_tf.models import compilation
    from txl_tf.scoring import dynamic_evaluation
    from txl_tf.training import job, trainer

    choose_jit = compilation.choose_jit

    def choose(jit, dtype):
        return "none" if jit == "auto" else choose_jit(jit, dtype)

    with pytest.MonkeyPatch.context() as patch:
        for module in (compilation, dynamic_evaluation, job, trainer):
            patch.setattr(module, "choose_jit", choose)
        patch.setitem(Generator.__init__.__kwdefaults__, "jit_compile", False)
        yield


@pytest.fixture
def saved(tmp_path):
    """A run folder with checkpoints of steps 2 and 5, and what made them."""
    from small_runs import Bare, make_checkpointer, save_steps

    run = Bare()
    checkpointer = make_checkpointer(tmp_path, run)
    save_steps(checkpointer, run, [2, 5])
    return tmp_path, run, checkpointer
