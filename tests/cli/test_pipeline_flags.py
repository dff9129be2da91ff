"""The flags of pipelines, as far as they need no Beam."""

import subprocess
import sys

import pytest
from places import ROOT

from data_prep import make_tfrecords
from txl_tf import score

PREPARE = ["x", "--dataset=text", "--train=a"]
SCORE = ["x", "--run=a", "b"]


@pytest.mark.parametrize(
    ("program", "arguments", "message"),
    [
        (make_tfrecords, [*PREPARE, "--temp_dir=b"], "--temp_dir needs --runner"),
        (make_tfrecords, [*PREPARE, "--beam_options=b"], "--beam_options needs --runner"),
        (make_tfrecords, [*PREPARE, "--piece_bytes=3"], "--piece_bytes needs --runner"),
        (make_tfrecords, ["x", "--dataset=pydoc", "--runner=R"], "--runner is for --dataset=text"),
        (make_tfrecords, [*PREPARE, "--runner=R", "--level=subword"], "needs --vocab_file"),
        (make_tfrecords, [*PREPARE, "--runner=R", "--num_workers=2"], "is for one machine"),
        (score, [*SCORE, "--out=b"], "--out needs --runner"),
        (score, [*SCORE, "--runner=R"], "--runner needs --out"),
        (score, [*SCORE, "--runner=R", "--out=b", "--carry_memory"], "excludes --runner"),
        (score, [*SCORE, "--runner=R", "--out=b", "--format=table"], "writes --format jsonl"),
        (score, ["x", "--run=a", "--runner=R", "--out=b"], "not standard input"),
    ],
)
def test_flags_without_effect_are_refused(program, arguments, message, capsys):
    assert program.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_without_a_runner_beam_is_not_imported(tmp_path):
    (tmp_path / "a.txt").write_text("a b\n")
    program = (
        "import sys; from data_prep import make_tfrecords as m; from txl_tf import score; "
        f"m.main(['x', '--dataset=text', '--train={tmp_path}/a.txt', '--data_dir={tmp_path}/b']); "
        "print(*sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = ran.stdout.splitlines()[-1].split()
    assert not [name for name in loaded if name.startswith(("apache_beam", "txl_tf.pipelines"))]
