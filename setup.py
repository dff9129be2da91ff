"""Installs txl_tf; the metadata is in pyproject.toml, except for README's text on the index."""

import re
import runpy
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSION = runpy.run_path(str(ROOT / "txl_tf" / "version.py"))["__version__"]


def make_absolute(link: re.Match[str]) -> str:
    """Returns a link of README with the address of the file in the repository, at the version."""
    kind = "raw" if link[1].startswith("!") else "blob"
    return f"{link[1]}({PROJECT['urls']['Repository']}/{kind}/v{VERSION}/{link[2]})"


setup(
    long_description=re.sub(
        r"(!?\[[^\]]*\])\((?!https?://)([^)]+)\)",
        make_absolute,
        (ROOT / "README.md").read_text(encoding="utf-8"),
    ),
    long_description_content_type="text/markdown",
)
