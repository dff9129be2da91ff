"""A traced step as a LiteRT file (`.tflite`), for phones and small devices."""

import tempfile

import tensorflow as tf

from txl_tf.exports.traced_step import TracedStep

SIGNATURE = "step"


def make_litert(step: TracedStep, precision: str) -> bytes:
    """Returns the content of a LiteRT file, whose only signature is "step".

    With "int8" LiteRT rounds the inputs of each product to 8 bits, too, with a scale for each row.

    Args:
        step: The step.
        precision: The dtype in which matrices are stored: "float32", "float16" or "int8".
    """
    signatures = {SIGNATURE: step.function.get_concrete_function()}
    # The custom gradients are only for training.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    with tempfile.TemporaryDirectory() as folder:  # a file made of a function has no signature
        tf.saved_model.save(step, folder, signatures=signatures, options=options)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=[SIGNATURE])
        if precision != "float32":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if precision == "float16":
            converter.target_spec.supported_types = [tf.float16]
        return converter.convert()
