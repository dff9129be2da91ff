"""Trains a tiny `CausalLM` on JAX, without TensorFlow; `on_jax` runs it in a process of its own."""

import sys


class NoTensorFlow:
    """Makes imports of TensorFlow fail, as where it is not installed."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tensorflow", "tensorflow_text"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def main():
    import keras
    import numpy as np
    from small_causal_lm import make_segments, read_states

    import txl_tf
    from txl_tf import CausalLM, Segments

    results = {}
    for name, settings in CASES.items():
        lm = make(**settings)
        results[f"{name}/losses"] = train(lm)
        states = read_states(lm)
        results |= {f"{name}/state_{index}": state for index, state in enumerate(states)}
    path = sys.argv[2].replace(".npz", "")
    lm.save(f"{path}.keras")
    lm.to_run(f"{path}-run")
    again = CausalLM.from_run(f"{path}-run")
    again.compile()
    results["run"] = again.evaluate(make_segments(), verbose=0)
    lm.backbone.embedding.trainable = False
    lm.save(f"{path}-frozen.keras")
    frozen = keras.saving.load_model(f"{path}-frozen.keras")
    results["frozen"] = [x.path for x in frozen.weights if not x.trainable]
    results["expected_frozen"] = [x.path for x in lm.weights if not x.trainable]
    records = txl_tf.data.open_records(f"{path}-records")
    pydoc = CausalLM.from_run("pydoc", eval_batch_size=2)
    pydoc.compile()
    valid = Segments(records.split("valid"), batch_size=2, tgt_len=16)
    results["pydoc"] = pydoc.evaluate(valid, verbose=0)
    results["predicted"] = pydoc.predict(valid, verbose=0)
    try:
        txl_tf.load("pydoc")
    except txl_tf.UserError as error:
        results["error"] = str(error)
    np.savez(sys.argv[2], modules=sorted(sys.modules), **results)


# `dropping` has masks, which are the same on all backends.
CASES = {
    "plain": {},
    "dropping": {"dropout": 0.3, "dropatt": 0.2},
    "compiled": {"steps_per_execution": 3, "jit_compile": True},
}


def make(dropout=0.0, dropatt=0.0, **compiling):
    from small_causal_lm import CONFIG, make_lm

    config = CONFIG.from_json(CONFIG.to_json() | {"dropout": dropout, "dropatt": dropatt})
    return make_lm(config=config, **compiling)


def train(lm):
    """Returns the losses of two epochs and of the evaluations after them."""
    from small_causal_lm import make_segments

    data = make_segments()
    history = lm.fit(data, validation_data=data, epochs=2, verbose=0).history
    return [history["nats"], history["val_nats"]]


if __name__ == "__main__":
    sys.meta_path.insert(0, NoTensorFlow())
    main()
