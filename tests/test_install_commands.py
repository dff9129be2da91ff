"""How docs and messages say to install the package."""

import re

from places import ROOT

FOLDERS = (".github", "benchmarks", "data_prep", "docs", "examples", "tests", "txl_tf")
# The backslash stands before the dot in patterns of tests.
OURS = r"(?:--quiet |\$\(QUIETLY\) )?-e '?\\?\.(?!/)"
OTHERS = r"build |uv\b|--python \S+ --resolution \S+ -e |tensorflow-tpu==|torch\b|'apache-beam\["
# With an extra, pip keeps the package that is installed.
WHEEL = r"\\?'txl_tf\\?\["
WRONG = re.compile(rf"\bpip\s+install (?!{OURS}|{OTHERS}|{WHEEL}).*".encode())


def list_files():
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    return [path for path in (*ROOT.iterdir(), *paths) if path.is_file() and path.suffix != ".pyc"]


def test_the_package_is_installed_from_a_clone_and_stays_editable():
    # The public index may hold another package of our name; a copy would replace a clone.
    found = {path: WRONG.findall(path.read_bytes()) for path in list_files()}
    assert not {path.name: commands for path, commands in found.items() if commands}
