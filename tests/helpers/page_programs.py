"""The programs of docs/onnx-litert.md, in a process of their own."""

import re
import subprocess
import sys

from places import ROOT

from txl_tf.data import Vocabulary

BYTES = Vocabulary("byte", tuple(map(str, range(256))))


def read_program(package):
    """Returns the program of the page with the step of a package."""
    page = (ROOT / "docs" / "onnx-litert.md").read_text(encoding="utf-8")
    programs = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    (step,) = (text for text in programs if package in text)
    (loop,) = (text for text in programs if "rng" in text)
    return step + loop


def make_greedy(program):
    """Returns a program that takes the most likely token, 20 times, in place of drawing."""
    drawn = re.search(r"ids = .*rng\.choice.*", program)
    return program.replace(drawn.group(), "ids = [int(log_probs.argmax())]").replace(
        "(200)", "(20)"
    )


def run_program(program, folder):
    """Returns the bytes that a program prints behind its prompt."""
    program += "\nassert not {'tensorflow', 'txl_tf'} & set(sys.modules)\n"
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, check=True
    )
    return ran.stdout.removeprefix(b"The ")
