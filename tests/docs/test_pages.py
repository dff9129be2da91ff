"""Links of the pages and of the files beside them, names of pages in the code, and an example."""

import ast
import re
import runpy
import tomllib

import pytest
import setuptools
from markdown.extensions.toc import slugify
from places import ROOT

import txl_tf
from benchmarks.all import fill_blocks, list_pages, read_figures

FILES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
SOURCES = ("txl_tf", "benchmarks", "data_prep", "examples", "tests", "docs/site")
LINK = re.compile(r"\]\(((?:docs/)?[\w/.-]+)(?:#([\w-]+))?\)")


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def list_anchors(path):
    titles = re.findall(r"^#+ (.*)$", read(path), flags=re.MULTILINE)
    return {slugify(re.sub(r"\[(.*?)\]\(.*?\)", r"\1", title), "-") for title in titles}


@pytest.mark.parametrize("file", FILES)
def test_links_beside_the_pages_lead_to_a_file_and_a_title(file):
    for path, anchor in LINK.findall(read(file)):
        assert (ROOT / path).exists(), path
        assert not anchor or anchor in list_anchors(path), f"{path}#{anchor}"


def test_links_between_the_pages_lead_to_a_file_of_the_repository():
    for path in (ROOT / "docs").rglob("*.md"):
        page = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        targets = [link for link in re.findall(r"\]\(([^)#\s]+)", page) if "://" not in link]
        assert not [link for link in targets if not (path.parent / link).exists()], path


def test_changelog_and_citation_name_the_version():
    (newest, *_) = re.findall(r"^## (\S+)", read("CHANGELOG.md"), flags=re.MULTILINE)
    (cited,) = re.findall(r"^version: (\S+)$", read("CITATION.cff"), flags=re.MULTILINE)
    assert newest == cited == txl_tf.__version__


def read_address():
    return tomllib.loads(read("pyproject.toml"))["project"]["urls"]["Repository"]


def test_the_address_of_the_project_is_that_of_its_metadata():
    files = ("README.md", "docs/getting-started.md", "examples/tour.ipynb", "CITATION.cff")
    text = "".join(map(read, files))
    found = re.findall(r'(?:git clone |repository-code: ")([^\s"\\]+)', text)
    assert found == [read_address()] * len(files)


def test_the_long_description_has_absolute_links(monkeypatch):
    fields = {}
    monkeypatch.setattr(setuptools, "setup", lambda **given: fields.update(given))
    runpy.run_path(str(ROOT / "setup.py"))
    links = re.findall(r"\]\((.*?)\)", fields["long_description"])
    place = f"{read_address()}/{{}}/v{txl_tf.__version__}/docs/"
    assert {f"{place.format('raw')}img/memory.svg", f"{place.format('blob')}data.md"} <= set(links)
    assert not [link for link in links if not link.startswith("https://")]


def test_pages_show_the_measurements_of_the_file():
    figures, shown = read_figures(), set()
    for path in list_pages():
        page = path.read_text(encoding="utf-8")
        shown |= set(re.findall(r"<!-- figures: (\w+) -->", page))
        assert fill_blocks(page, figures) == page, path
    assert shown == set(figures)


DATED = "accelerators.md"  # compiled programs and runs on devices, each table with its date
OF_OTHERS = {"59,961"}  # tokens/s of NVIDIA's PyTorch code on an A100
BLOCK = re.compile(r"<!-- figures: \w+ -->.*?<!-- end of figures -->", re.DOTALL)
FIGURE = re.compile(r"(\d[\d,.]*\d|\d)(?= (?:tokens/s|tokens a second|bits per byte|GFLOP/s))")
ROW = re.compile(r"^\| (?:train|evaluate|generate) .*$", re.MULTILINE)


def test_measured_figures_outside_of_the_blocks_are_in_the_file():
    known = " ".join(record["text"] for record in read_figures().values())
    known += read("txl_tf/pretrained/pydoc/README.md")
    for path in list_pages():
        if path.name == DATED:
            continue
        page = BLOCK.sub("", path.read_text(encoding="utf-8"))
        cells = re.findall(r"\| ([\d,.]+) (?=\|)", " ".join(ROW.findall(page)))
        for figure in {*FIGURE.findall(page), *cells} - OF_OTHERS:
            assert re.search(rf"(?<![\d,.]){re.escape(figure)}(?![\d,.]*\d)", known), (path, figure)


def test_the_index_of_the_api_names_all_that_the_package_exports():
    page = read("docs/api/index.md")
    assert not [name for name in txl_tf.__all__ if not re.search(rf"`(txl_tf\.)?{name}`", page)]


def test_one_page_says_what_has_never_been_run():
    said = re.compile(r"never (been )?(run|built)\b|not (yet )?(been )?(run on|built yet|tested)\b")
    table = "platforms.md#what-has-never-been-run"
    for path in (ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")):
        for paragraph in path.read_text(encoding="utf-8").split("\n\n"):
            assert path.name == "platforms.md" or table in paragraph or not said.search(paragraph)


def test_pages_that_the_code_names_exist():
    paths = [path for folder in SOURCES for path in (ROOT / folder).rglob("*.py")]
    named = {name for path in paths for name in re.findall(r"docs/[\w/-]+\.\w+", path.read_text())}
    assert not [name for name in named if not (ROOT / name).exists()]


def test_the_example_of_the_concepts_has_the_shapes_of_its_table(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", read("docs/concepts.md"), flags=re.DOTALL)
    exec(example, {})
    assert capsys.readouterr().out == "(2, 4, 8) (2, 6, 8) (2, 4)\n"


def list_definitions(path):
    """Lists the functions, classes and methods of a file, the last as CLASS.METHOD."""
    names, defines = set(), ast.ClassDef | ast.FunctionDef
    for node in ast.parse(read(path)).body:
        if isinstance(node, defines):
            names.add(node.name)
            names |= {f"{node.name}.{x.name}" for x in node.body if isinstance(x, defines)}
    return names


def test_the_functions_of_the_walks_are_in_their_files():
    page = read("docs/read-the-code.md")
    steps = re.findall(r"^\d+\. `([\w/]+\.py): ([\w.]+)`", page, re.MULTILINE)
    missing = [step for step in steps if step[1] not in list_definitions(f"txl_tf/{step[0]}")]
    assert len(steps) == len(re.findall(r"^\d+\. ", page, re.MULTILINE))
    assert not missing
