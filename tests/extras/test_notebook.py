"""The notebooks run from top to bottom, in a folder with nothing but the examples."""

import re

import pytest
from places import ROOT

nbformat = pytest.importorskip("nbformat", reason="pip install -e '.[test-extras]'")
nbclient = pytest.importorskip("nbclient", reason="pip install -e '.[test-extras]'")
pytest.importorskip("ipykernel", reason="pip install -e '.[test-extras]'")

NOTEBOOKS = [ROOT / "examples" / name for name in ("tour.ipynb", "keras.ipynb")]


def run(path, tmp_path_factory):
    """Returns the cells with code after they were run: what each printed."""
    notebook = nbformat.read(path, as_version=4)
    folder = tmp_path_factory.mktemp("notebook")
    (folder / "examples").symlink_to(ROOT / "examples")
    nbclient.NotebookClient(
        notebook, timeout=1200, resources={"metadata": {"path": str(folder)}}
    ).execute()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def map_texts(cells):
    return "".join(map(get_text, cells))


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    return run(NOTEBOOKS[0], tmp_path_factory)


def get_text(cell):
    return "".join(output.get("text", "") for output in cell.outputs)


def test_every_cell_shows_something_and_none_fails(cells):
    assert all(cell.outputs for cell in cells)
    kinds = {output.output_type for cell in cells for output in cell.outputs}
    assert "error" not in kinds
    texts = [get_text(cell) for cell in cells]
    assert "Wrote `data/pydoc`" in texts[1]
    assert "step 250/250" in texts[3]
    assert any("image/png" in output.get("data", {}) for output in cells[-1].outputs)


def test_known_text_and_memory_save_bits(cells):
    texts = [get_text(cell) for cell in cells]
    known, foreign = map(float, re.findall(r"([\d.]+) bits per byte", texts[5]))
    assert known < foreign
    none, *_, most = map(float, re.findall(r"([\d.]+) bits per byte", texts[6]))
    assert most < none


def test_the_notebook_of_keras_trains_saves_generates_and_serves(tmp_path_factory):
    cells = run(NOTEBOOKS[1], tmp_path_factory)
    texts = [get_text(cell) for cell in cells]
    assert "val_perplexity" in texts[4]
    none, *_, most = map(float, re.findall(r"([\d.]+) bits per byte", texts[6]))
    assert most < none
    assert "after 500 steps" in texts[7]
    assert "Return the" in texts[8]
    assert "bits per byte" in texts[-1]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_the_file_holds_the_outputs_that_the_site_shows_and_no_place(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs for cell in code)
    assert any(mark in map_texts(code) for mark in ("step 250/250", "Epoch 5/5"))
    assert path.stat().st_size < 100_000
    assert not re.search(r"/(tmp|home|root|work)/|Traceback", path.read_text())
