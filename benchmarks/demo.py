"""Metrics of the demo's model and of the shipped model, which the documentation cites.

python -m benchmarks.demo --run runs/demo

It trains the run as `make demo` does, unless that has been done.
"""

import json
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

from absl import flags

import txl_tf
from benchmarks.several_workers import ROOT, run_python
from benchmarks.tables import define_json_flag, print_table, write_json
from examples.demo import DATA_DIR, list_commands
from txl_tf.config import KERNEL_DTYPES, DynamicConfig
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import run_program

SHIPPED = "pydoc"  # the model that comes with the package
# Found on the split valid, as docs/dynamic-evaluation.md shows.
TUNED = DynamicConfig(learning_rate=2e-4, decay=0.04)
CONTEXTS = ("--first_context=32", "--delta=32", "--max_context=320", "--positions=500")


def measure_losses(run: str) -> dict[str, float]:
    """Returns the bits per byte on the test split, by model and precision."""
    bits = {}
    for precision in KERNEL_DTYPES:
        found = txl_tf.load(run, precision=precision).evaluate("test")
        bits[f"the demo's model, {precision}"] = found.bits_per_token
    dynamic = txl_tf.load(run).evaluate("test", dynamic=TUNED)
    bits["the same with dynamic evaluation"] = dynamic.bits_per_token
    shipped = txl_tf.load(SHIPPED).evaluate("test", data_dir=str(ROOT / DATA_DIR))
    bits[f"`{SHIPPED}`, of the package"] = shipped.bits_per_token
    return bits


def run_experiment(program: str, run: str, *arguments: str) -> dict[str, Any]:
    """Returns the record that `txl attention` or `txl context` writes for a run."""
    with tempfile.TemporaryDirectory() as out:
        run_python("-m", "txl_tf", program, f"--run={run}", f"--out={out}", *arguments)
        return json.loads((Path(out) / f"{program}.json").read_text(encoding="utf-8"))


def measure(options: flags.FlagValues) -> None:
    """Measures the models and prints the results.

    Raises:
        UserError: If a part fails.
    """
    run = str(Path(options.run).resolve())
    prepare, train, *_ = list_commands("demo", run)
    for command in (prepare, train):
        run_python(*shlex.split(command)[1:])
    bits = measure_losses(run)
    contexts = run_experiment("context", run, *CONTEXTS)
    (ecl,) = contexts["ecl"].values()
    lengths = {"effective context length": ecl["tokens"]}
    for part in contexts["recl"]:
        title = f"relative effective context length, r = {part['share']}"
        lengths[title] = part["runs"].popitem()[1]["tokens"]
    heads = run_experiment("attention", run)["heads"]
    distances = {head["head"]: head["mean_distance"] for head in heads}
    farthest = sorted(distances, key=distances.__getitem__, reverse=True)[:3]
    print_table(("model", "bits per byte"), [(name, f"{bpc:.3f}") for name, bpc in bits.items()])
    rows = [(f"mean distance of head {head}", f"{distances[head]:.1f}") for head in farthest]
    print_table(("of the demo's model", "bytes"), [*lengths.items(), *rows])
    write_json(options, {"bits": bits, "lengths": lengths, "distances": distances})


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define_flag(options, "run", str, "runs/demo", "Folder of the run.", is_path=True)
    define_json_flag(options)
    return run_program(__doc__, options, measure, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
