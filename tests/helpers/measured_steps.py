"""Prints the memory of training steps and of generation, measured and estimated, in bytes.

A program, since XLA reads its flags once in a process.
"""

import json
import tempfile

from benchmarks.memory import dump_reports, make_case, measure_generation, measure_step
from benchmarks.works import Shape

SMALL = Shape(4, 64, 4, 256, 32, 32, 4, 53)
THIN = SMALL._replace(n_layer=1)
WORDS = SMALL._replace(n_layer=2, n_token=997, cutoffs=(101, 499))
CASES = [
    make_case("plain", SMALL, 0.0),
    make_case("plain, remat", SMALL, 0.0, remat=True),
    make_case("dropout", SMALL),
    make_case("dropout, remat", SMALL, remat=True),
    make_case("no memory", THIN._replace(mem_len=0)),
    make_case("words", WORDS),
    make_case("large vocabulary", THIN._replace(n_token=2**17 + 1)),
    make_case("bfloat16", SMALL, precision="bfloat16"),
]

TEXTS = make_case("texts", THIN._replace(n_layer=2, n_token=997), 0.0).model
GENERATION = {  # memory, texts, segment and dtype
    "a text": (TEXTS, 200, 1, 31, "float32"),
    "texts": (TEXTS, 200, 7, 31, "float32"),
    "a text, int8": (TEXTS, 200, 1, 31, "int8"),
    "texts, int8": (TEXTS, 200, 7, 31, "int8"),
    "texts, bfloat16": (TEXTS, 200, 7, 31, "bfloat16"),
}

if __name__ == "__main__":
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        dump_reports(folder)
        from txl_tf.training.step_memory import estimate_activations

        for name, model, training in CASES:
            estimate = sum(estimate_activations(model, training, is_widened=True).values())
            found[name] = measure_step(model, training, folder), estimate
        from txl_tf.inference.costs import estimate_generation_memory

        for name, (model, *work) in GENERATION.items():
            mem_len, n_texts, tgt_len, dtype = work
            parts = estimate_generation_memory(
                model, mem_len, n_texts=n_texts, tgt_len=tgt_len, dtype=dtype
            )
            found[name] = measure_generation(model, *work, folder), sum(parts.values())
    print(json.dumps(found))
