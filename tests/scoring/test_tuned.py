import dataclasses
import json

import pytest

from txl_tf.config import EvalConfig
from txl_tf.config.dynamic import DynamicConfig
from txl_tf.errors import UserError
from txl_tf.scoring.kept_rates import Tuned, check_tuned_place, read_tuned, write_tuned

DYNAMIC = DynamicConfig("rms", 3e-5, 0.007)
EVALUATION = EvalConfig(tgt_len=5, mem_len=7, eval_batch_size=1)


@pytest.mark.parametrize("place", ["{}", "ram://{}/run"])
def test_what_was_found_is_kept(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where an address would be taken for a folder
    run = place.format(str(tmp_path).strip("/") if "://" in place else tmp_path)
    assert read_tuned(run) is None
    check_tuned_place(run)
    assert read_tuned(run) is None
    write_tuned(run, DYNAMIC, EVALUATION, split="valid")
    assert read_tuned(run) == (DYNAMIC, EVALUATION)
    assert not (tmp_path / "ram:").exists()


def test_a_file_of_another_version_is_read(tmp_path):
    write_tuned(str(tmp_path), DYNAMIC, EVALUATION)
    path = tmp_path / "dynamic" / "tuned.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({"dynamic": content["dynamic"]}))
    assert read_tuned(str(tmp_path)) == (DYNAMIC, None)
    assert read_tuned(str(tmp_path)).describe_differences(DYNAMIC, EVALUATION) is None


@pytest.mark.parametrize("content", ['{"dynamic": 3}', "[]", '{"evaluation": {}}'])
def test_a_damaged_file_is_refused(content, tmp_path):
    (tmp_path / "dynamic").mkdir()
    (tmp_path / "dynamic" / "tuned.json").write_text(content)
    with pytest.raises(UserError, match=r"must (be|hold) an object"):
        read_tuned(str(tmp_path))


def test_a_run_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "dynamic").touch()
    with pytest.raises(UserError, match=r"--tune cannot keep what it finds: `.*/dynamic"):
        check_tuned_place(str(tmp_path))


def test_another_evaluation_than_that_of_the_search_is_described():
    tuned = Tuned(DYNAMIC, EVALUATION)
    assert tuned.describe_differences(DYNAMIC, EVALUATION) is None
    other = EvalConfig(tgt_len=5, mem_len=11, eval_batch_size=3)
    line = tuned.describe_differences(dataclasses.replace(DYNAMIC, n_batches=7), other)
    assert line == (
        "--tune found these rates for another evaluation: eval_batch_size is 1 there and 3 here, "
        "mem_len is 7 there and 11 here"
    )
    assert tuned.describe_differences(dataclasses.replace(DYNAMIC, decay=0.1), other) is None
