"""Draws the training loss of a run, and its evaluations, from its logs.

python examples/plot_loss.py --model_dir runs/demo
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

from absl import flags

from txl_tf.errors import UserError
from txl_tf.program import define_flag, run_program


def plot_loss(options: flags.FlagValues) -> None:
    """Writes the picture and prints where."""
    model_dir = Path(options.model_dir)
    target = Path(options.output or model_dir / "loss.png")
    steps = read_json_lines(model_dir / "log.jsonl")
    if not steps:
        raise UserError(f"`{model_dir}` holds no log of a training")
    draw_curve(steps, read_json_lines(model_dir / "evaluations.jsonl"), target)
    print(f"Wrote {target}")


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the objects of a file of JSON lines; none if there is no such file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def draw_curve(
    steps: list[dict[str, Any]], evaluations: list[dict[str, Any]], target: Path
) -> None:
    """Draws bits per token over steps, with a mark for each evaluation.

    They are computed from the loss: logs call them `bpc` or `bits_per_token`, by the level of the
    vocabulary, and logs of old runs always `bpc`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    finite = [record for record in steps if "loss_nats" in record]  # others have bad steps alone
    axes.plot(
        [record["step"] for record in finite],
        [record["loss_nats"] / math.log(2) for record in finite],
        label="train, mean since the last line of the log",
    )
    for split in dict.fromkeys(record["split"] for record in evaluations):
        found = [record for record in evaluations if record["split"] == split]
        axes.plot(
            [record["step"] for record in found],
            [record["loss_nats"] / math.log(2) for record in found],
            "o",
            label=f"{split}, last: {found[-1]['loss_nats'] / math.log(2):.3f}",
        )
    axes.set_xlabel("step")
    axes.set_ylabel("bits per token")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(target, dpi=120)


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define_flag(options, "model_dir", str, None, "Folder of the run.", required=True, is_path=True)
    define_flag(
        options, "output", str, None, "Picture. [default: MODEL_DIR/loss.png]", is_path=True
    )
    return run_program(str(__doc__), options, plot_loss, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
