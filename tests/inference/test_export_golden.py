"""An exported SavedModel, beside what the 2019 code computed."""

import numpy as np
import pytest
import tensorflow as tf
from golden_cases import EVALUATIONS, load_case, parse_evaluation

from txl_tf.config import EvalConfig
from txl_tf.inference import LanguageModel
from txl_tf.release import load_model

pytestmark = pytest.mark.slow

SAME = {"rtol": 0, "atol": 2e-5}


@pytest.mark.parametrize(("name", "key"), EVALUATIONS[2:])
def test_a_saved_model_has_the_losses_of_the_2019_code(tmp_path, name, key):
    """Of whole texts, and segment by segment with the memory in the client's hands."""
    case = load_case(name)
    tgt_len, span = parse_evaluation(key)
    evaluation = EvalConfig(tgt_len=tgt_len, **span.to_json())
    lm = LanguageModel(load_model(case.checkpoint, case.config), None, evaluation)
    lm.export(tmp_path / "out", mask_empty_memory=False)
    served = tf.saved_model.load(str(tmp_path / "out")).signatures
    expected, tokens = case.golden[key], tf.constant(case.golden["tokens"], tf.int32)
    n_rows, n_scored = expected.shape

    lengths = tf.fill([n_rows], tokens.shape[1])
    whole = served["score_ids"](ids=tokens, lengths=lengths)["nats"]
    np.testing.assert_allclose(whole[:, 1 : n_scored + 1], expected, **SAME)

    carried, nats = served["initial_memory"](batch_size=tf.constant(n_rows)), []
    for start in range(0, n_scored + 1, tgt_len):
        ids = tokens[:, start : start + tgt_len]
        lengths, reset = tf.fill([n_rows], ids.shape[1]), tf.zeros(n_rows, tf.bool)
        carried = dict(served["step"](ids=ids, lengths=lengths, reset=reset, **carried))
        nats.append(carried.pop("nats"))
        carried.pop("log_probs")
    by_segment = np.concatenate(nats, axis=1)[:, 1 : n_scored + 1]
    np.testing.assert_allclose(by_segment, expected, **SAME)
