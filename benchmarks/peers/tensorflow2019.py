"""The TensorFlow code of the 2019 release, which the authors published with the paper.

git clone https://github.com/kimiyoung/transformer-xl
python -m benchmarks.peers.tensorflow2019 --source transformer-xl/tf WORK...

It needs any TensorFlow 2, whether that of this package or another, and runs in its TensorFlow 1
mode, as a graph without XLA. Three functions that TensorFlow 2 no longer has are defined below. As
in the release's own programs, the memory passes through the host, and everything is float32.
"""

import importlib
import os
import sys
import types
from collections.abc import Callable
from typing import Any

from benchmarks.peers.protocol import Work, make_parser, print_speeds


def load_model(source: str) -> tuple[Any, Any]:
    """Returns the TensorFlow 1 API of TensorFlow 2, and the module `model` of the release."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()

    def dense(x: Any, units: int, *, kernel_initializer: Any, **options: Any) -> Any:
        with tf.variable_scope(options.get("name"), default_name="dense"):
            size = [x.shape[-1], units]
            y = tf.tensordot(x, tf.get_variable("kernel", size, initializer=kernel_initializer), 1)
            if options.get("use_bias", True):
                y += tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
        return options.get("activation", tf.identity)(y)

    def dropout(x: Any, rate: float, *, training: bool, **_: Any) -> Any:
        return tf.nn.dropout(x, rate=rate) if training and rate else x

    def layer_norm(x: Any, **_: Any) -> Any:
        with tf.variable_scope(None, default_name="LayerNorm"):
            shift = tf.get_variable("beta", x.shape[-1:], initializer=tf.zeros_initializer())
            scale = tf.get_variable("gamma", x.shape[-1:], initializer=tf.ones_initializer())
            mean, variance = tf.nn.moments(x, [-1], keepdims=True)
            return tf.nn.batch_normalization(x, mean, variance, shift, scale, 1e-12)

    old: Any = types.ModuleType("tensorflow")
    old.__getattr__ = lambda name: getattr(tf, name)
    old.layers = types.SimpleNamespace(dense=dense, dropout=dropout)
    old.contrib = types.SimpleNamespace(layers=types.SimpleNamespace(layer_norm=layer_norm))
    sys.path.insert(0, source)
    sys.modules["tensorflow"] = old
    model = importlib.import_module("model")
    sys.modules["tensorflow"] = tensorflow
    return tf, model


def make_call(work: Work, tf: Any, model: Any) -> Callable[[], object]:
    """Returns a function that computes a segment of a work, with a step of Adam in training."""
    import numpy as np

    shape, trains = work.shape, work.kind == "train"
    rate = 0.1 if trains else 0.0
    tf.reset_default_graph()
    ids = tf.placeholder(tf.int32, [shape.tgt_len, shape.batch_size])
    size = [shape.mem_len, shape.batch_size, shape.d_model]
    old = [tf.placeholder(tf.float32, size) for _ in range(shape.n_layer)]
    normal = tf.initializers.random_normal(stddev=0.02)
    names = ("n_token", "n_layer", "d_model", "n_head", "d_inner", "mem_len", "div_val")
    losses, new = model.transformer(
        **{name: getattr(shape, name) for name in names},
        dec_inp=ids,
        target=ids,
        mems=old,
        d_embed=shape.d_model,
        d_head=shape.d_model // shape.n_head,
        dropout=rate,
        dropatt=rate,
        is_training=trains,
        initializer=normal,
        proj_initializer=normal,
        cutoffs=list(shape.cutoffs),
        tie_projs=[False, *(True for _ in shape.cutoffs)],
        proj_same_dim=shape.div_val > 1,
        same_length=not trains,
        clamp_len=-1,
        untie_r=True,
        use_tpu=False,
        **dict.fromkeys(("input_perms", "target_perms", "head_target")),
    )
    loss = tf.reduce_mean(losses)
    fetched = [new, loss]
    if trains:
        weights = tf.trainable_variables()
        gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, weights), 0.25)
        adam = tf.train.AdamOptimizer(2.5e-4)
        fetched.append(adam.apply_gradients(zip(gradients, weights, strict=True)))
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    fed = np.random.default_rng(0).integers(0, shape.n_token, ids.shape)
    memory = [np.zeros(size, np.float32)] * shape.n_layer

    def call() -> None:
        nonlocal memory
        states = dict(zip(old, memory, strict=True))
        memory, *_ = session.run(fetched, {ids: fed} | states)

    return call


def main() -> None:
    """Runs the program on the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--source", required=True, help="Folder with the model.py of the release.")
    options = parser.parse_args()
    try:
        tf, model = load_model(options.source)
    except ImportError as error:
        sys.exit(f"{error}: --source must be the folder tf of github.com/kimiyoung/transformer-xl")
    print_speeds("2019", options, lambda work: make_call(work, tf, model), compiled=False)


if __name__ == "__main__":
    main()
