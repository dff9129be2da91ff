"""Files for LiteRT and ONNX: their sizes and tokens per second, beside the package's generation.

python -m benchmarks.off_python --json off_python.json
python -m benchmarks.off_python --run runs/demo --tokens 3000

One text is continued, one token at a time, by a model with random weights. The table has the
median of the tokens; `--json` writes the fastest one, too, which tells what the program can do on a
busy machine. It needs the extras litert and onnx. Our own loop uses all cores. With a run, the
losses of its split valid are compared instead: the same tokens in each precision, one at a time.
"""

import dataclasses
import functools
import itertools
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from benchmarks.tables import define_json_flag, print_table, write_json
from benchmarks.works import SHAPES, Shape, measure_apart
from txl_tf.exports.formats import FORMATS
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import run_program
from txl_tf.quiet_start import quiet_start

SHAPE_NAMES = ("bytes", "words", "words_divided")
OWN_PRECISIONS = ("float32", "int8")
FILES = {"litert": "model.tflite", "onnx": "model.onnx"}


def export_model(folder: str, shape: Shape, file_format: str, precision: str) -> int:
    """Writes a model of a shape and returns the size of its file in bytes."""
    with quiet_start():
        import tensorflow  # noqa: F401
    from benchmarks.inference_calls import make_model
    from txl_tf.config import EvalConfig
    from txl_tf.language_model import LanguageModel

    evaluation = EvalConfig(mem_len=shape.mem_len, same_length=True)
    lm = LanguageModel(make_model(shape), None, evaluation)
    lm.export(folder, format=file_format, precision=precision)
    return (Path(folder) / FILES[file_format]).stat().st_size


def measure_file(folder: str, file_format: str, n_threads: int, n_tokens: int) -> dict[str, float]:
    """Returns tokens per second of a file, from an empty memory."""
    info = json.loads((Path(folder) / "model.json").read_text(encoding="utf-8"))
    step, memory = load_step(folder, file_format, n_threads), _make_memory(info)
    durations = []
    for token in range(1 + n_tokens):
        ids = np.full((1, 1), token % info["model"]["n_token"], np.int32)
        start = time.perf_counter()
        _, *memory = step(ids, *memory)
        durations.append(time.perf_counter() - start)
    return _summarize(durations[1:])


def _make_memory(info: dict[str, Any]) -> list[np.ndarray]:
    """Returns the empty memory of a step, given the content of `model.json`."""
    shapes = info["inputs"]
    states = [np.zeros(shapes[name], np.float32) for name in ("keys", "values")]
    return [*states, np.zeros(shapes["length"], np.int32)]


def measure_losses(run: str, n_tokens: int) -> list[dict[str, Any]]:
    """Returns the bits per token of a run's split valid, of the live model and of each file."""
    with quiet_start():
        import tensorflow  # noqa: F401
    import txl_tf
    from txl_tf.data import open_records
    from txl_tf.runs.folder import name_records

    ids = open_records(name_records(run)).split("valid").read(0, 1 + n_tokens)
    records: list[dict[str, Any]] = []
    for precision in OWN_PRECISIONS:
        lm = txl_tf.load(run, precision=precision)
        lm.evaluation = dataclasses.replace(lm.evaluation, tgt_len=1)
        (score,) = lm.score([ids], batch_size=1)
        bits = float(score.nats.mean()) / math.log(2)
        records.append({"method": "live", "precision": precision, "bits_per_token": bits})
    lm = txl_tf.load(run)
    for file_format, precision in itertools.product(FILES, FORMATS["onnx"].precisions):
        with tempfile.TemporaryDirectory() as parent:
            folder = Path(parent) / "exported"
            lm.export(folder, format=file_format, precision=precision)
            path = folder / FILES[file_format]
            bits = measure_bits(folder, file_format, ids)
            facts = {"method": file_format, "precision": precision, "bytes": path.stat().st_size}
            records.append({**facts, "bits_per_token": bits})
    return records


def measure_bits(folder: Path, file_format: str, ids: np.ndarray) -> float:
    """Returns the bits per token of a file, for all tokens but the first."""
    info = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    step, memory = load_step(folder, file_format), _make_memory(info)
    nats = 0.0
    for token, target in itertools.pairwise(ids):
        log_probs, *memory = step(np.full((1, 1), token, np.int32), *memory)
        nats -= float(log_probs[0, 0, target])
    return nats / (len(ids) - 1) / math.log(2)


def load_step(
    folder: str | Path, file_format: str, n_threads: int = 1
) -> Callable[..., list[np.ndarray]]:
    """Returns the step of a file: a function of its inputs, which returns its outputs, in order."""
    load = {"litert": _load_litert, "onnx": _load_onnx}[file_format]
    return load(str(Path(folder) / FILES[file_format]), n_threads)


def _load_litert(path: str, n_threads: int) -> Callable[..., list[np.ndarray]]:
    from ai_edge_litert.interpreter import Interpreter

    model = Interpreter(path, num_threads=n_threads)
    run = model.get_signature_runner("step")

    def step(ids: Any, keys: Any, values: Any, length: Any) -> list[np.ndarray]:
        outputs = run(ids=ids, keys=keys, values=values, length=length)
        names = ("log_probabilities", "new_keys", "new_values", "new_length")
        return [outputs[name] for name in names]

    return step


def _load_onnx(path: str, n_threads: int) -> Callable[..., list[np.ndarray]]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = n_threads
    session = onnxruntime.InferenceSession(path, options)

    def step(ids: Any, keys: Any, values: Any, length: Any) -> list[np.ndarray]:
        inputs = {"ids": ids, "keys": keys, "values": values, "length": length}
        return session.run(None, inputs)

    return step


def measure_own(shape: Shape, precision: str, n_tokens: int) -> dict[str, float]:
    """Returns tokens per second of the loop that `LanguageModel.generate` runs, compiled."""
    with quiet_start():
        import tensorflow  # noqa: F401
    from benchmarks.inference_calls import TokenDrawer, make_model

    drawer = TokenDrawer(make_model(shape, precision), shape.mem_len, jit=True)
    return _summarize([took / count for count, took in drawer.measure(1, n_tokens)])


def _summarize(durations: list[float]) -> dict[str, float]:
    return {"best": 1 / min(durations), "median": 1 / statistics.median(durations)}


def measure_shape(shape: Shape, n_threads: list[int], n_tokens: int) -> list[dict[str, Any]]:
    """Returns a record for our own loop in each precision, and for each file and thread count."""
    records: list[dict[str, Any]] = []
    for precision in OWN_PRECISIONS:
        speed = measure_apart(measure_own, shape, precision, n_tokens)
        records.append({"method": "own loop", "precision": precision, **speed})
    for file_format, precision in itertools.product(FILES, FORMATS["onnx"].precisions):
        with tempfile.TemporaryDirectory() as parent:
            folder = str(Path(parent) / "exported")
            n_bytes = measure_apart(export_model, folder, shape, file_format, precision)
            for threads in n_threads:
                speed = measure_apart(measure_file, folder, file_format, threads, n_tokens)
                facts = {"method": file_format, "precision": precision, "threads": threads}
                records.append({**facts, "bytes": n_bytes, **speed})
    return records


def compare_losses(options: flags.FlagValues) -> dict[str, Any]:
    """Measures the losses of a run and prints a table of them."""
    records = measure_apart(measure_losses, options.run, options.tokens)
    print_losses(records)
    return {options.run: records}


def print_losses(records: list[dict[str, Any]]) -> None:
    """Prints a table of the records from `measure_losses`."""
    print_table(
        ("step", "precision", "MB", "bits per token"),
        [
            (
                record["method"],
                record["precision"],
                _format_size(record),
                f"{record['bits_per_token']:.4f}",
            )
            for record in records
        ],
    )


def compare_speeds(options: flags.FlagValues) -> dict[str, Any]:
    """Measures the speeds of the shapes and prints a table of each."""
    found = {}
    n_threads = list(map(int, options.threads))
    for name in options.shapes:
        shape = SHAPES[name]._replace(tgt_len=1, mem_len=640, batch_size=1)
        found[name] = measure_shape(shape, n_threads, options.tokens)
        print_table(
            (name, "precision", "threads", "MB", "tokens/s"),
            [
                (
                    record["method"],
                    record["precision"],
                    record.get("threads", "all"),
                    _format_size(record),
                    f"{record['median']:,.0f}",
                )
                for record in found[name]
            ],
        )
    return found


def _format_size(record: dict[str, Any]) -> str:
    return f"{record['bytes'] / 1e6:.1f}" if "bytes" in record else ""


def measure(options: flags.FlagValues) -> None:
    """Measures what the flags name, and writes it to a file if wanted."""
    write_json(options, compare_losses(options) if options.run else compare_speeds(options))


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define = functools.partial(define_flag, options)
    define("run", str, None, "Run whose losses are compared. [default: none]", is_path=True)
    define("shapes", list, list(SHAPE_NAMES), "Models to measure.", choices=SHAPE_NAMES)
    define("threads", list, ["1", "2"], "Numbers of threads of the runtimes.")
    define("tokens", int, 640, "Number of tokens to draw, or to score.", lower_bound=64)
    define_json_flag(options)
    return run_program(__doc__, options, measure, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
