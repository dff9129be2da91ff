"""What the 2019 code computed for tiny models with random weights, dropout off."""

import json
import re
from typing import NamedTuple

import numpy as np
from places import GOLDEN

from txl_tf.config import AttentionSpan, ModelConfig

FOLDER = GOLDEN / "model"
# Without adaptive softmax; with one table and cutoffs; with shared projections; with own ones.
NAMES = ("char", "word_base", "word_large", "lm1b")
EVALUATIONS = (
    ("char", "eval/tgt4_mem20_same1_clamp-1"),
    ("char", "eval/tgt8_mem24_same1_clamp10"),
    ("char", "eval/tgt16_mem16_same0_clamp-1"),
    ("word_base", "eval/tgt5_mem25_same1_clamp12"),
    ("word_large", "eval/tgt4_mem24_same1_clamp12"),
    ("lm1b", "eval/tgt6_mem24_same1_clamp-1"),
)


class Case(NamedTuple):
    """A model of the 2019 code: its config, its training segments and span, its numbers."""

    checkpoint: str
    config: ModelConfig
    tgt_len: int
    span: AttentionSpan
    golden: dict[str, np.ndarray]

    def cut(self, tgt_len):
        """Returns ids and targets of each segment of the text, (B, T) each."""
        tokens = self.golden["tokens"].astype("int32")
        starts = range(0, tokens.shape[1] - 1, tgt_len)
        return [
            (tokens[:, start : start + tgt_len], tokens[:, start + 1 : start + 1 + tgt_len])
            for start in starts
        ]


def load_case(name):
    """Returns the case of a folder."""
    settings = json.loads((FOLDER / name / "config.json").read_text())
    segment = {key: settings.pop(key) for key in ("tgt_len", "batch_size", "n_segments")}
    span = {key: settings.pop(key) for key in ("mem_len", "same_length", "clamp_len")}
    config = ModelConfig.from_json(settings | {"dropout": 0.0, "dropatt": 0.0})
    with np.load(FOLDER / name / "golden.npz") as arrays:
        golden = dict(arrays)
    checkpoint = str(FOLDER / name / "model.ckpt-0")
    return Case(checkpoint, config, segment["tgt_len"], AttentionSpan(**span), golden)


def parse_evaluation(key):
    """Returns segment length and span of an evaluation, which its key spells."""
    pattern = r"eval/tgt(\d+)_mem(\d+)_same([01])_clamp(-?\d+)"
    tgt_len, mem_len, same_length, clamp_len = map(int, re.fullmatch(pattern, key).groups())
    return tgt_len, AttentionSpan(mem_len, bool(same_length), clamp_len)
