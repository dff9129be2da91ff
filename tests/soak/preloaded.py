"""What the processes of the soak are forked with."""

from txl_tf.quiet_start import quiet_start

with quiet_start():
    import tensorflow as tf  # noqa: F401

import train_gpu  # noqa: F401
from txl_tf.training import job  # noqa: F401
