import json

import pytest

from benchmarks import all as measurements
from benchmarks.all import Measurement, fill_blocks

PAGE = "before\n<!-- figures: one -->\nold\n<!-- end of figures -->\nafter\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with one page, whose code is that of the commit "now"."""
    (tmp_path / "docs" / "lab").mkdir(parents=True)
    (tmp_path / "README.md").write_text(PAGE)
    for number in ("one", "two"):
        (tmp_path / f"print_{number}.py").write_text(f"print('| {number} |')")
    (tmp_path / "fail.py").write_text("print('| half |'); raise SystemExit(3)")
    monkeypatch.setattr(measurements, "ROOT", tmp_path)
    monkeypatch.setattr(measurements, "FIGURES", tmp_path / "docs" / "lab" / "figures.json")
    monkeypatch.setattr(measurements, "has_same_code", lambda commit: commit in ("HEAD", "now", ""))
    monkeypatch.setattr(
        measurements,
        "MEASUREMENTS",
        {"one": Measurement("print_one"), "two": Measurement("print_two"),
         "bad": Measurement("fail"), "peers": Measurement("fail", "peer")},
    )  # fmt: skip
    return tmp_path


def read_figures(project):
    return json.loads((project / "docs" / "lab" / "figures.json").read_text())


def test_results_are_kept_with_their_source_and_shown_by_the_page(project):
    assert measurements.main(["all", "--only=one"]) == 0
    record = read_figures(project)["one"]
    assert record["text"] == "| one |"
    assert record["command"] == "python -m print_one"
    page = (project / "README.md").read_text()
    assert page.startswith("before\n<!-- figures: one -->\n\n| one |\n\n`python -m print_one`, com")
    assert page.endswith("\n\n<!-- end of figures -->\nafter\n")
    assert fill_blocks(page, read_figures(project)) == page


def test_a_failure_is_told_and_the_others_are_kept(project, capsys):
    assert measurements.main(["all", "--only=bad,two,peers"]) == 1
    assert list(read_figures(project)) == ["two"]
    found = capsys.readouterr()
    assert "bad failed with status 3" in found.err
    assert "| half |" in found.err
    assert "peers: not measured without --peer" in found.out


@pytest.mark.parametrize(("commit", "text"), [("now", "| kept |"), ("before", "| one |")])
def test_measurements_of_the_same_code_are_kept(project, commit, text):
    record = {"command": "", "commit": commit, "machine": "", "date": "", "text": "| kept |"}
    measurements.FIGURES.write_text(json.dumps({"one": record}))
    assert measurements.main(["all", "--only=one"]) == 0
    assert read_figures(project)["one"]["text"] == text


def test_code_that_changes_meanwhile_is_told(project, monkeypatch, capsys):
    monkeypatch.setattr(measurements, "has_same_code", lambda commit: commit == "HEAD")
    assert measurements.main(["all", "--only=one"]) == 1
    assert "one: the code changed while it was measured" in capsys.readouterr().err
    assert not measurements.FIGURES.exists()


def test_changes_must_be_committed(project, monkeypatch, capsys):
    monkeypatch.setattr(measurements, "has_same_code", lambda commit: False)
    assert measurements.main(["all", "--only=one"]) == 1
    assert "commit the changes" in capsys.readouterr().err
    assert not measurements.FIGURES.exists()
