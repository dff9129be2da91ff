"""The picture of a run's loss, from logs of any age."""

import json
import math

import pytest
from matplotlib.figure import Figure

from examples import plot_loss

NATS = [3.0, 2.5, 2.0]


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture
def curves(monkeypatch):
    """Returns the points of each curve that is drawn."""
    found = []
    save = Figure.savefig

    def read_and_save(figure, *args, **kwargs):
        found.extend(line.get_xydata().tolist() for line in figure.axes[0].lines)
        save(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", read_and_save)
    return found


@pytest.mark.parametrize("names", [["bpc"] * 3, ["bits_per_token"] * 3, ["bpc", "bpc", "x"]])
def test_logs_of_any_name_for_the_bits_are_drawn(curves, tmp_path, names):
    bits = [nats / math.log(2) for nats in NATS]
    steps = [
        {"step": 5 * index, "loss_nats": nats, name: value}
        for index, (nats, value, name) in enumerate(zip(NATS, bits, names, strict=True))
    ]
    write_lines(tmp_path / "log.jsonl", [*steps, {"step": 17, "bad_steps": 2}])
    write_lines(tmp_path / "evaluations.jsonl", [{**steps[1], "split": "valid"}])
    assert plot_loss.main(["plot_loss.py", f"--model_dir={tmp_path}"]) == 0
    points = [pytest.approx([5 * index, value]) for index, value in enumerate(bits)]
    assert curves == [points, points[1:2]]
    assert (tmp_path / "loss.png").stat().st_size
