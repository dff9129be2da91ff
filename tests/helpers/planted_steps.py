"""Compiles a training step with a mistake for a TPU: `planted_steps.py MISTAKE FILE`."""

import sys

from benchmarks import chips, compiled

chips.prepare_compilers()

import tensorflow as tf  # noqa: E402  after the environment

from txl_tf.models.segment_model import SegmentModel  # noqa: E402


def print_mean(nats):
    with tf.control_dependencies([tf.print(tf.reduce_mean(nats))]):
        return tf.identity(nats)


# Each takes the losses (B, T) and the targets, and returns losses.
MISTAKES = {
    "slice": lambda nats, targets: nats + tf.reduce_mean(nats[0, : targets[0, 0]]),
    "float64": lambda nats, _: tf.cast(tf.exp(tf.cast(nats, tf.float64)), tf.float32),
    "py_function": lambda nats, _: tf.ensure_shape(
        tf.py_function(lambda x: 2 * x, [nats], tf.float32), nats.shape
    ),
    "numpy_function": lambda nats, _: (
        nats + tf.ensure_shape(tf.numpy_function(lambda x: x, [nats], tf.float32), nats.shape)
    ),
    "print": lambda nats, _: print_mean(nats),
}

mistake, path = MISTAKES[sys.argv[1]], sys.argv[2]
compute = SegmentModel.nll


def nll(self, hidden, targets, **options):
    return mistake(compute(self, hidden, targets, **options), targets)


SegmentModel.nll = nll  # in the process that compiles, too, which imports this file

if __name__ == "__main__":
    sys.exit(compiled.main(["compiled", "--models=demo:1", "--chips=v5e", f"--json={path}"]))
