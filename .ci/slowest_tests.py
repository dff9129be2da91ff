"""Prints the ten slowest tests of JUnit files, with their setup and teardown.

python3 .ci/slowest_tests.py build/tests/*.xml
"""

import sys
from pathlib import Path
from xml.etree import ElementTree

cases = [
    (float(case.attrib["time"]), f"{case.attrib['classname']}::{case.attrib['name']}")
    for path in map(Path, sys.argv[1:])
    if path.exists()
    for case in ElementTree.parse(path).iter("testcase")
]
for seconds, name in sorted(cases, reverse=True)[:10]:
    print(f"{seconds:6.1f}  {name}")
