"""The flags of pipelines, as far as they need no Beam."""

import subprocess
import sys

from places import ROOT


def test_without_a_runner_beam_is_not_imported(tmp_path):
    (tmp_path / "a.txt").write_text("a b\n")
    program = (
        "import sys; from data_prep import make_tfrecords as m; from txl_tf.programs import score; "
        f"m.main(['x', '--dataset=text', '--train={tmp_path}/a.txt', '--data_dir={tmp_path}/b']); "
        "print(*sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = ran.stdout.splitlines()[-1].split()
    assert not [name for name in loaded if name.startswith("apache_beam")]
