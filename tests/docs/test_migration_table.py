"""The table of `docs/migrate-2019.md` that leads from the functions of 2019 to those here."""

import inspect
import pkgutil
import re

import pytest
from places import ROOT

# All of model.py, data_utils.py, gpu_utils.py, train_gpu.py and train.py but each `main`.
FUNCTIONS_OF_2019 = """
    positional_embedding positionwise_FF rel_shift rel_multihead_attn embedding_lookup
    mask_adaptive_embedding_lookup mul_adaptive_embedding_lookup mask_adaptive_logsoftmax
    mul_adaptive_logsoftmax _create_mask _cache_mem transformer _preprocess Corpus get_bin_sizes
    _int64_feature _float_feature batchify create_ordered_tfrecords get_lm_corpus load_record_info
    get_input_fn get_corpus_info assign_to_gpu average_grads_and_vars load_from_checkpoint
    get_model_fn single_core_graph train evaluate metric_fn get_cache_fn
    """
PAGE = (ROOT / "docs" / "migrate-2019.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("function by function\n")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\|[^|`]*\| (`.*?) \| (.*) \|$", TABLE, re.MULTILINE)


def test_each_function_of_2019_has_a_row():
    names = re.findall(r"`(\w+)`", " ".join(old for old, _ in ROWS))
    assert not set(FUNCTIONS_OF_2019.split()) - set(names)


@pytest.mark.parametrize(("old", "new"), ROWS, ids=[old for old, _ in ROWS])
def test_a_name_of_2019_stands_in_the_docstring_of_its_counterpart(old, new):
    paths = re.findall(r"`(\w+\.[\w.]+\w)(?<!\.pkl)`", new)
    docstrings = " ".join(inspect.getdoc(pkgutil.resolve_name(f"txl_tf.{path}")) for path in paths)
    assert not [name for name in re.findall(r"`\w+`", old) if name not in docstrings]
