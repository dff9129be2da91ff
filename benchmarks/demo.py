"""Metrics of the demo's model, which the documentation cites.

python -m benchmarks.demo --run runs/demo --out docs/lab/demo.json

Run `make demo` first. It needs the extras litert and onnx. A test compares the pages with the file.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from absl import flags

from benchmarks import off_python
from txl_tf import attention, context
from txl_tf.cli.flags import define_flag
from txl_tf.cli.program import run_program
from txl_tf.cli.run_flags import check_out_files, check_run
from txl_tf.config import KERNEL_DTYPES, DynamicConfig
from txl_tf.errors import UserError

# Found by `python -m txl_tf.evaluate --run runs/demo --tune`.
TUNED = DynamicConfig(learning_rate=2e-4, decay=0.04)
CONTEXTS = ("--first_context=32", "--delta=32", "--max_context=320", "--positions=500")
N_TOKENS = 3000  # of the comparison of files, which read one token at a time


def measure_losses(run: str) -> dict[str, Any]:
    """Returns the bits per byte of the test split, in each precision and dynamically."""
    import txl_tf

    bits = {}
    for precision in KERNEL_DTYPES:
        bits[precision] = txl_tf.load(run, precision=precision).evaluate("test").bits_per_token
    dynamic = txl_tf.load(run).evaluate("test", dynamic=TUNED)
    return {"test_bits": bits, "dynamic_test_bits": dynamic.bits_per_token}


def measure_contexts(run: str) -> dict[str, Any]:
    """Returns the effective context length in bytes, and the relative ones by share of targets."""
    with tempfile.TemporaryDirectory() as folder:
        _call(context.main, f"--run={run}", f"--out={folder}", *CONTEXTS)
        record = json.loads((Path(folder) / "context.json").read_text(encoding="utf-8"))
    (ecl,) = record["ecl"].values()
    relative = {str(part["share"]): part["runs"].popitem()[1] for part in record["recl"]}
    return {"ecl": ecl["tokens"], "recl": {share: r["tokens"] for share, r in relative.items()}}


def measure_attention(run: str) -> dict[str, Any]:
    """Returns the mean distance of the attention of each head, in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        _call(attention.main, f"--run={run}", f"--out={folder}")
        record = json.loads((Path(folder) / "attention.json").read_text(encoding="utf-8"))
    return {"mean_distance": {head["head"]: head["mean_distance"] for head in record["heads"]}}


def _call(program: Any, *arguments: str) -> None:
    if status := program(["", *arguments]):
        raise UserError(f"{program.__module__} failed with status {status}")


def measure(options: flags.FlagValues) -> None:
    """Measures the model and writes the file.

    Raises:
        UserError: If there is no run, or a part fails.
    """
    check_run(options.run)
    check_out_files(options, "out")
    record = {
        **measure_losses(options.run),
        **measure_contexts(options.run),
        **measure_attention(options.run),
        "step_files": off_python.measure_losses(options.run, N_TOKENS),
    }
    Path(options.out).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"Wrote {options.out}")


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define_flag(options, "run", str, "runs/demo", "Folder of the run.", is_path=True)
    define_flag(options, "out", str, "docs/lab/demo.json", "File to write.", is_path=True)
    return run_program(__doc__, options, measure, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
