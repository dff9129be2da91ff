"""What the processes of `forked_programs` are forked with."""

from txl_tf.quiet_start import quiet_start

with quiet_start():
    import tensorflow as tf  # noqa: F401

from txl_tf.programs import train  # noqa: F401
from txl_tf.training import job  # noqa: F401
