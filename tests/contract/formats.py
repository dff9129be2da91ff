"""Describes the files that programs write: names, keys, and the variables of checkpoints.

python -m tests.contract.formats tests/contract/formats.json
"""

import hashlib
import json
import sys
import tempfile
from pathlib import Path

import tensorflow as tf

import txl_tf
from txl_tf.programs import evaluate, prepare, train

TEXT = "".join(f"the {animal} sat on a {thing} .\n" for animal in "abcde" for thing in "vwxyz")
RUN = "--n_layer=2 --d_model=6 --d_embed=6 --tgt_len=5 --train_batch_size=3 --eval_batch_size=2"
RUN += " --train_steps=2 --jit=none"
TRANSFORMER = "--n_head=3 --d_head=5 --d_inner=7 --mem_len=7 --dropout=0.1"
RUNS = {
    "adam": f"{TRANSFORMER} --ema=0.9 --eval_every=1 --eval_split=train",
    "adamw": f"{TRANSFORMER} --optimizer=adamw --average_from=1 --accumulate_steps=3",
    "lamb": f"{TRANSFORMER} --optimizer=lamb --precision=float16",
    "muon": f"{TRANSFORMER} --optimizer=muon --cutoffs=3,6 --div_val=2 --untie_r",
    "lstm": "--model_type=lstm --mem_len=0",
}
OBJECTS = ("config.json", "options.json", "data.json", "run.json")
LINES = ("log.jsonl", "validation.jsonl", "evaluations.jsonl")


def describe_formats(folder):
    """Prepares, trains, evaluates and exports in an empty folder, and describes what is there."""
    records, run = make_records(folder), folder / "adam"
    for name, flags in RUNS.items():
        places = [f"--data_dir={records}", f"--model_dir={folder / name}"]
        call(train, *places, *f"{RUN} {flags}".split())
    call(evaluate, f"--run={run}", "--split=train", "--jit=none")
    signatures = txl_tf.load(run).export(folder / "exported")
    (shard,) = records.glob("*.tfrecords")
    lines = {name: (run / name).read_text().splitlines()[-1] for name in LINES}
    texts = {name: (run / name).read_text() for name in OBJECTS} | lines
    return {
        "records": list_files(records),
        "records.json": list_keys((records / "records.json").read_text()),
        "SHA-256 of a shard": hashlib.sha256(shard.read_bytes()).hexdigest(),
        "run": list_files(run),
        **{name: list_keys(text) for name, text in texts.items()},
        **{f"checkpoint of {name}": list_variables(folder / name) for name in RUNS},
        "export": list_files(folder / "exported"),
        "signatures": list(signatures),
    }


def make_records(folder):
    """Writes records of words and returns their folder."""
    (folder / "text.txt").write_text(TEXT)
    flags = ["--dataset=text", f"--train={folder}/text.txt", "--level=word"]
    call(prepare, *flags, f"--data_dir={folder}/records")
    return folder / "records"


def call(program, *arguments):
    """Runs a program, which must succeed."""
    assert program.main([program.__name__, *arguments]) == 0


def list_files(folder):
    """Returns the names of all files but those of TensorBoard, which have the time in them."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(str(path.relative_to(folder)) for path in paths if "events.out" not in path.name)


def list_keys(text):
    """Returns the keys of a JSON object, and of the objects in it as "outer.inner"."""

    def walk(content):
        for key, value in content.items():
            yield key
            if isinstance(value, dict):
                yield from (f"{key}.{inner}" for inner in walk(value))

    return sorted(walk(json.loads(text)))


def list_variables(run):
    """Returns dtype and shape of each variable of a run's checkpoint."""
    reader = tf.train.load_checkpoint(str(run / "checkpoints" / "ckpt-2"))
    dtypes, shapes = reader.get_variable_to_dtype_map(), reader.get_variable_to_shape_map()
    return {key: f"{dtypes[key].name} {shapes[key]}" for key in sorted(shapes)}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        described = describe_formats(Path(name))
    Path(sys.argv[1]).write_text(json.dumps(described, indent=1) + "\n")
