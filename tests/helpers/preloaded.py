"""What the processes of `forked_programs` are forked with."""

import tensorflow as tf  # noqa: F401

from txl_tf.programs import train  # noqa: F401
from txl_tf.training import job  # noqa: F401
