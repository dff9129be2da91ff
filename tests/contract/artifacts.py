"""Makes records, runs and models, and notes what this version computes with them.

python -m tests.contract.artifacts tests/golden/artifacts

What 1.0.0 made there is kept: every later 1.x reads it (docs/policies.md).
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

import txl_tf
from txl_tf.data.files import drop_lines_after
from txl_tf.programs import prepare, train

STEP, N_STEPS = 8, 12
SIZES = "--n_layer=2 --d_model=12 --d_embed=12 --n_head=2 --d_head=6 --d_inner=16 --tgt_len=8"
SIZES += " --mem_len=8 --cutoffs=10,30 --div_val=2 --train_batch_size=4 --eval_batch_size=4"
STEPS = f"--train_steps={N_STEPS} --save_steps={STEP} --learning_rate=0.01 --warmup_steps=4"
STEPS += " --iterations=1 --eval_every=4 --sample_tokens=0"
RUNS = {
    "adam": "--ema=0.9",
    "adamw": "--optimizer=adamw --weight_decay=0.1 --average_from=6",
    "lamb": "--optimizer=lamb --weight_decay=0.1 --precision=float16",
    "muon": "--optimizer=muon --schedule=linear",
}
TEXTS = ["the cat sat on a mat", "w1 w2 w3\nw4 cat"]
UNNEEDED = ("events", "lock", "data.json", "ckpt-4.*", f"ckpt-{N_STEPS}.*")


def make_artifacts(folder):
    """Writes the files into a new folder."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        write_texts(work)
        places = [f"--{split}={work}/{split}.txt" for split in ("train", "valid")]
        flags = ["--dataset=text", "--level=word", f"--data_dir={folder}/records"]
        assert prepare.main(["make_tfrecords", *flags, *places]) == 0
        expected = {name: make_run(folder, work, name) for name in RUNS}
    lm = txl_tf.load(folder / "adam")
    lm.model.save(folder / "model.keras")
    lm.save(folder / "shared", safetensors="float16")
    expected |= {
        "nats": score_texts(lm),
        "shared_nats": score_texts(txl_tf.load(folder / "shared")),
        "generated": generate(lm),
        "signatures": describe_signatures(lm),
    }
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def write_texts(folder):
    """Writes texts with a few frequent and many rare words."""
    rng = np.random.default_rng(5)
    for split, n_lines in (("train", 140), ("valid", 34)):
        lines = [" ".join(f"w{word % 40}" for word in rng.zipf(1.4, 7)) for _ in range(n_lines)]
        lines[::20] = [TEXTS[0]] * len(lines[::20])
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n")


def make_run(folder, work, name):
    """Writes a run that has made some of its steps, and returns the numbers of the others."""
    places = [f"--data_dir={folder}/records", f"--model_dir={work / name}"]
    flags = f"{SIZES} {STEPS} {RUNS[name]}".split()
    assert train.main(["train_gpu", *places, *flags]) == 0
    shutil.copytree(work / name, folder / name, ignore=shutil.ignore_patterns(*UNNEEDED))
    for log in ("log.jsonl", "validation.jsonl"):
        drop_lines_after(str(folder / name / log), STEP)
    return read_steps(work / name)


def read_steps(run):
    """Returns what a run that is complete has logged after the step of the artifacts."""
    lines, validation = (
        [json.loads(line) for line in (run / name).read_text().splitlines()]
        for name in ("log.jsonl", "validation.jsonl")
    )
    assert [line["step"] for line in lines] == list(range(1, N_STEPS + 1))
    names = ("loss_nats", "grad_norm")
    return {name: [line[name] for line in lines[STEP:]] for name in names} | {
        "validation": validation[-1]["loss_nats"]
    }


def score_texts(lm):
    """Returns the losses of the tokens of each text."""
    return [np.asarray(score.nats).tolist() for score in lm.score(TEXTS)]


def generate(lm):
    """Returns a generated text."""
    return lm.generate("the cat", max_new_tokens=12, temperature=0.8, top_k=20, seed=3)


def describe_signatures(lm):
    """Returns the names, shapes and dtypes of what the signatures of a SavedModel take and give."""
    with tempfile.TemporaryDirectory() as name:
        lm.export(f"{name}/exported")
        signatures = tf.saved_model.load(f"{name}/exported").signatures

    def describe(specs):
        return {
            name: [None if spec.shape.rank is None else spec.shape.as_list(), spec.dtype.name]
            for name, spec in specs.items()
        }

    return {
        name: {
            "inputs": describe(function.structured_input_signature[1]),
            "outputs": describe(function.structured_outputs),
        }
        for name, function in signatures.items()
    }


if __name__ == "__main__":
    make_artifacts(Path(sys.argv[1]))
