"""Reports of programs for chips, without the compilers."""

import dataclasses

import pytest

from benchmarks import compiled_presets
from benchmarks.chip_reports import Report, find_largest_batch


@pytest.mark.parametrize("refusal", ["with its memory", "without"])
@pytest.mark.parametrize("largest", [0, 1, 3, 61])
def test_the_largest_batch_is_found_in_a_few_compilations(largest, refusal):
    """The memory of a batch is 7 + 13 rows, and a little more for each further one."""
    tried = []
    measure = lambda rows: int(7 + 13 * rows + rows**2 / 100)  # noqa: E731
    limit = measure(largest) + 5

    def report_rows(rows):
        tried.append(rows)
        fits = measure(rows) <= limit
        size = measure(rows) if fits or refusal == "with its memory" else 0
        return Report("", "", "", 1, {}, fits=fits, temporary_bytes=size, tokens=rows)

    found = find_largest_batch(report_rows, limit)
    assert (found.tokens if found else 0) == largest
    assert len(tried) <= 7


def test_progress_of_the_presets_is_no_part_of_their_table(tmp_path, monkeypatch, capsys):
    compiled = []

    def start_report(program, chip, *, effort):
        settings = dataclasses.asdict(program.config) | {"kernels": False, "effort": effort}
        return Report(program.name, program.work, chip, 1, settings)

    def make_report(program, chip, *, effort):
        compiled.append(program.name)
        report = start_report(program, chip, effort=effort)
        return report._replace(fits=True, tokens=1, matrix_limit=2.0, memory_limit=1.0)

    monkeypatch.setattr(compiled_presets.chips, "prepare_compilers", lambda: None)
    monkeypatch.setattr(compiled_presets, "start_report", start_report)
    monkeypatch.setattr(compiled_presets, "make_report_apart", make_report)
    path = tmp_path / "presets.json"
    command = ["", "--models", "ptb", "--chips", "v5e", "--json", str(path)]
    for progress in ("ptb, train, v5e", ""):  # the second call finds all in the file
        assert compiled_presets.main(command) == 0
        out, err = capsys.readouterr()
        assert progress in err
        assert out.lstrip().startswith("| preset | chip |")
        assert "| `ptb` | v5e |" in out
    assert compiled == ["ptb"]
