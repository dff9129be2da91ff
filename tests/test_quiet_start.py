"""What a program shows of what is written while tensorflow starts.

A module of that name stands in for it: it writes to file descriptor 2, as its C++ does.
"""

import os
import subprocess
import sys
import threading

import pytest
from places import ROOT

from txl_tf.quiet_start import drop_lines

HEAD = "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR"
REMARK = "I0000 00:00:1795318324.141169    6219 port.cc:153] oneDNN custom operations are on."
WARNING = "W0000 00:00:1795318324.141169 6219 gpu_device.cc:2431] Cannot dlopen some libraries."
NO_DRIVER = (
    "E0000 00:00:1795318326.519667    6219 cuda_platform.cc:52] failed call to cuInit: INTERNAL: "
    "CUDA error: Failed call to cuInit: UNKNOWN ERROR (303)"
)
BROKEN_DRIVER = NO_DRIVER.replace("(303)", "(804)")
ERROR = "E0000 00:00:1795318326.519667    6219 device.cc:31] The device is lost."
OTHER = "Illegal instruction"
LINES = (HEAD, REMARK, WARNING, NO_DRIVER, BROKEN_DRIVER, ERROR, OTHER)
PROGRAM = """
import os, sys
from absl import flags
from txl_tf.programs.cli.program import run_program

def main(options):
    print("before", file=sys.stderr)
    import tensorflow
    print("after", os.environ["TF_CPP_MIN_LOG_LEVEL"], file=sys.stderr)
    os.write(2, tensorflow.LATE)

sys.exit(run_program("Starts.", flags.FlagValues(), main, ["x"]))
"""
TENSORFLOW = """
import os
os.write(2, {text!r}.encode())
{more}
LATE = b"I0000 00:00:1795318324.141169    6219 late.cc:1] late\\n"
class config:
    def list_physical_devices():
        os.write(2, {no_driver!r}.encode())
"""


def start(folder, *, more="", level=None, code=PROGRAM):
    """Runs a program that imports the stand-in; returns its status and the lines on stderr."""
    text = "".join(line + "\n" for line in LINES)
    source = TENSORFLOW.format(text=text, more=more, no_driver=NO_DRIVER + "\n")
    (folder / "tensorflow.py").write_text(source)
    environment = {name: os.environ[name] for name in os.environ if not name.startswith("TF_")}
    environment["PYTHONPATH"] = f"{folder}:{ROOT}"
    if level is not None:
        environment["TF_CPP_MIN_LOG_LEVEL"] = level
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr.splitlines()


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        (None, [BROKEN_DRIVER, ERROR, OTHER]),
        ("1", [BROKEN_DRIVER, ERROR, OTHER]),  # what JAX sets
        ("0", LINES),  # the stand-in does not read the level
    ],
)
def test_a_program_hides_remarks_unless_the_level_is_0(level, shown, tmp_path):
    status, lines = start(tmp_path, level=level)
    *early, late = lines
    assert early == ["before", *shown, f"after {level or 2}"]
    assert "late.cc" in late  # later lines are tensorflow's own affair
    assert status == 0


def test_a_crash_leaves_a_traceback(tmp_path):
    status, lines = start(tmp_path, more="os.abort()")
    assert status < 0
    assert lines[:2] == ["before", "Fatal Python error: Aborted"]


def test_an_import_that_fails_leaves_a_traceback(tmp_path):
    _, lines = start(tmp_path, more="raise ImportError('no AVX')")
    assert lines[-1] == "ImportError: no AVX"


def test_the_library_hides_remarks_where_it_imports_tensorflow(tmp_path):
    code = "from txl_tf.release import load_model"
    assert start(tmp_path, code=code)[1][:3] == [BROKEN_DRIVER, ERROR, OTHER]
    code = "import tensorflow, txl_tf"
    assert start(tmp_path, code=code)[1] == list(LINES)


def test_other_lines_pass_as_they_are(capfd):
    with drop_lines("I0000"):
        os.write(2, b"I0000 one\ntwo\nthree")
    assert capfd.readouterr().err == "two\nthree"


def test_two_threads_leave_standard_error_as_it_was(capfd):
    is_held, may_end = threading.Event(), threading.Event()

    def hold():
        with drop_lines("I0000"):
            is_held.set()
            may_end.wait()

    def hold_too():
        with drop_lines("I0000"):
            pass

    first, second = threading.Thread(target=hold), threading.Thread(target=hold_too)
    first.start()
    is_held.wait()
    second.start()
    second.join(0.2)  # it waits for the first, or is over
    may_end.set()
    first.join()
    second.join()
    os.write(2, b"shown")
    assert capfd.readouterr().err == "shown"
