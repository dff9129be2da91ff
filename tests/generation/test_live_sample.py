"""Text of a model in training."""

import re

import numpy as np
import pytest
from small_model import VOCABULARY, make_model

import txl_tf
from txl_tf.data import Vocabulary
from txl_tf.generation.live_sample import SEED, LiveSample

LETTERS = Vocabulary("char", tuple(map(chr, range(ord("a"), ord("a") + VOCABULARY))))
PROMPT = np.array([2, 7, 1, 8, 2, 8, 1], np.int32)
EVALUATION = txl_tf.EvalConfig(tgt_len=5, mem_len=41, same_length=True, clamp_len=13)


def generate(model):
    """Returns what a loaded model would generate."""
    lm = txl_tf.LanguageModel(model, LETTERS, EVALUATION)
    return lm.generate(LETTERS.decode(PROMPT), max_new_tokens=17, seed=SEED)


def read_blocks(markdown):
    """Returns prompt and text."""
    return re.findall(r"^    (.*)$", markdown, flags=re.MULTILINE)


@pytest.mark.slow
def test_a_sample_is_what_the_model_of_the_moment_would_generate():
    model = make_model()
    sample = LiveSample(model, LETTERS, EVALUATION, PROMPT, 17)
    before = sample()
    assert sample() == before
    assert read_blocks(before) == [LETTERS.decode(PROMPT), generate(model)]
    for weight in model.trainable_variables:
        weight.assign(-weight)
    after = sample()
    assert after != before
    assert read_blocks(after)[1] == generate(model)


@pytest.mark.slow
def test_a_sample_in_bfloat16_is_one_too():
    model = make_model(dtype="mixed_bfloat16")
    _, text = read_blocks(LiveSample(model, LETTERS, EVALUATION, PROMPT, 17)())
    assert len(text) == 17


def test_the_unknown_symbol_is_not_drawn():
    words = Vocabulary(
        "word", ("<unk>", *(f"w{i}" for i in range(VOCABULARY - 1))), unknown="<unk>"
    )
    model = make_model()
    model.softmax.biases[0].assign(np.eye(VOCABULARY)[0] * 100.0)
    _, text = read_blocks(LiveSample(model, words, EVALUATION, PROMPT, 17)())
    assert "<unk>" not in text


def test_a_prompt_is_one_block_of_whole_characters():
    codes = [*"b\n日".encode(), *range(200, 195 + VOCABULARY)]
    text = Vocabulary("byte", tuple(map(str, codes)))
    prompt = np.array([0, 1, 1, 2, 3, 4, 2], np.int32)
    markdown = LiveSample(make_model(), text, EVALUATION, prompt, 2)()
    assert markdown.startswith("Prompt:\n\n    b\n    \n    日\n\nSample (temperature")
