"""Plots the losses of a run: training, validation during training, evaluations.

python examples/plot_loss.py --model_dir runs/demo
"""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from txl_tf.data.files import read_json_lines
from txl_tf.errors import UserError, explain_errors
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import run_program
from txl_tf.programs.cli.run_flags import check_figures
from txl_tf.runs.folder import read_run_config, read_run_vocabulary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Records = Sequence[dict[str, Any]]


def plot_loss(options: flags.FlagValues) -> None:
    """Writes the plot and prints its path."""
    model_dir = Path(options.model_dir)
    target = Path(options.output or model_dir / "loss.png")
    check_figures()
    figure = draw_run(model_dir)
    with explain_errors(f"`{target}` cannot be written", OSError, ValueError):
        figure.savefig(target, dpi=120)
    print(f"Wrote {target}")


def draw_run(model_dir: Path) -> "Figure":
    """Returns the plot of a run, with its name, its data set and its unit.

    Raises:
        UserError: If the folder holds no run or no training log.
    """
    dataset = read_run_config(str(model_dir)).dataset
    vocabulary = read_run_vocabulary(str(model_dir))
    steps, validation, evaluations = (
        read_json_lines(str(model_dir / f"{name}.jsonl"))
        for name in ("log", "validation", "evaluations")
    )
    if not steps:
        raise UserError(f"`{model_dir}` holds no training log")
    figure = draw_curves(steps, validation, evaluations)
    (axes,) = figure.axes
    axes.set_title(f"Loss of run {model_dir.resolve().name} on {dataset}")
    axes.set_ylabel(f"bits per {vocabulary.level if vocabulary else 'token'}")
    return figure


def draw_curves(steps: Records, validation: Records, evaluations: Records) -> "Figure":
    """Returns a plot of bits per token over steps.

    They are computed from `loss_nats`, which logs have at every level of the vocabulary.

    Args:
        steps: The lines of the training log.
        validation: The lines of the evaluations during training, drawn as curves.
        evaluations: The lines of the evaluations of checkpoints, drawn as markers.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    # A line whose steps were all skipped has no loss.
    trained = [record for record in steps if "loss_nats" in record]
    axes.plot(*_read_points(trained), label="train, mean since the previous log line")
    for style, records, name in (
        (".-", validation, "{} during training, last: {:.3f}"),
        ("o", evaluations, "{}, last: {:.3f}"),
    ):
        for kind in dict.fromkeys(map(_describe_kind, records)):
            points = _read_points([each for each in records if _describe_kind(each) == kind])
            axes.plot(*points, style, label=name.format(kind, points[1][-1]))
    axes.set_xlabel("step")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    return figure


def _describe_kind(record: dict[str, Any]) -> str:
    """Returns the split, and how an evaluation differs from an ordinary one."""
    dynamic = " (dynamic)" if record.get("dynamic") else ""
    temperature = record.get("evaluation", {}).get("temperature", 1.0)
    hot = f" at temperature {temperature:g}" if temperature != 1 else ""
    return f"{record['split']}{dynamic}{hot}"


def _read_points(records: Records) -> tuple[list[int], list[float]]:
    """Returns the steps and the bits per token."""
    bits = [record["loss_nats"] / math.log(2) for record in records]
    return [record["step"] for record in records], bits


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define_flag(options, "model_dir", str, None, "Folder of the run.", required=True, is_path=True)
    output_help = "Image file to write. [default: MODEL_DIR/loss.png]"
    define_flag(options, "output", str, None, output_help, is_path=True)
    return run_program(__doc__, options, plot_loss, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
