"""Metrics of the demo's model and of the shipped one, which the documentation cites.

python -m benchmarks.demo --run runs/demo

It trains the run as `make demo` does, unless that is done. It needs the extras litert and onnx.
"""

import contextlib
import json
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

from absl import flags

from benchmarks import off_python
from benchmarks.baselines import measure_baselines
from benchmarks.several_workers import run_python
from benchmarks.tables import define_json_flag, print_table, write_json
from examples.demo import DATA_DIR, list_commands
from txl_tf.config import KERNEL_DTYPES, DynamicConfig
from txl_tf.errors import UserError
from txl_tf.programs import attention, context
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import run_program

ROOT = Path(__file__).parents[1]
SHIPPED = "pydoc"  # the model that comes with the package
# The best of a few that were tried on the split valid.
TUNED = DynamicConfig(learning_rate=2e-4, decay=0.04)
CONTEXTS = ("--first_context=32", "--delta=32", "--max_context=320", "--positions=500")
N_TOKENS = 3000  # of the comparison of files, which read one token at a time


def measure_losses(run: str) -> dict[str, float]:
    """Returns the bits per byte of the test split, by the model and its precision."""
    import txl_tf

    data_dir = str(ROOT / DATA_DIR)
    bits = measure_baselines(data_dir)
    for precision in KERNEL_DTYPES:
        found = txl_tf.load(run, precision=precision).evaluate("test")
        bits[f"the demo's model, {precision}"] = found.bits_per_token
    dynamic = txl_tf.load(run).evaluate("test", dynamic=TUNED)
    bits["the same with dynamic evaluation"] = dynamic.bits_per_token
    shipped = txl_tf.load(SHIPPED).evaluate("test", data_dir=data_dir)
    bits[f"`{SHIPPED}`, of the package"] = shipped.bits_per_token
    return bits


def measure_contexts(run: str) -> dict[str, Any]:
    """Returns the effective context length in bytes, and the relative ones by share of targets."""
    with tempfile.TemporaryDirectory() as folder:
        _call(context.main, f"--run={run}", f"--out={folder}", *CONTEXTS)
        record = json.loads((Path(folder) / "context.json").read_text(encoding="utf-8"))
    (ecl,) = record["ecl"].values()
    relative = {str(part["share"]): part["runs"].popitem()[1] for part in record["recl"]}
    return {"ecl": ecl["tokens"], "recl": {share: r["tokens"] for share, r in relative.items()}}


def measure_attention(run: str) -> dict[str, float]:
    """Returns the mean distance of the attention of each head, in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        _call(attention.main, f"--run={run}", f"--out={folder}")
        record = json.loads((Path(folder) / "attention.json").read_text(encoding="utf-8"))
    return {head["head"]: head["mean_distance"] for head in record["heads"]}


def _call(program: Any, *arguments: str) -> None:
    with contextlib.redirect_stdout(sys.stderr):
        status = program(["", *arguments])
    if status:
        raise UserError(f"{program.__module__} failed with status {status}")


def measure(options: flags.FlagValues) -> None:
    """Measures the models and prints the results.

    Raises:
        UserError: If a part fails.
    """
    prepare, train, *_ = list_commands("demo", options.run)
    for command in (prepare, train):
        run_python(*shlex.split(command)[1:])
    bits = measure_losses(options.run)
    lengths, distances = measure_contexts(options.run), measure_attention(options.run)
    files = off_python.measure_losses(options.run, N_TOKENS)
    print_table(("model", "bits per byte"), [(name, f"{bpc:.3f}") for name, bpc in bits.items()])
    print_table(
        ("of the demo's model", "bytes"),
        [
            ("effective context length", lengths["ecl"]),
            *(
                (f"relative effective context length, r = {share}", length)
                for share, length in lengths["recl"].items()
            ),
            *(
                (f"mean distance of head {head}", f"{distances[head]:.1f}")
                for head in sorted(distances, key=distances.__getitem__, reverse=True)[:3]
            ),
        ],
    )
    off_python.print_losses(files)
    write_json(options, {"bits": bits, **lengths, "distances": distances, "step_files": files})


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define_flag(options, "run", str, "runs/demo", "Folder of the run.", is_path=True)
    define_json_flag(options)
    return run_program(__doc__, options, measure, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
