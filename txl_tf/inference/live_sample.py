"""Text that a model in training generates, at the cost of its tokens alone."""

import dataclasses

import numpy as np

from txl_tf.cached_model import CachedModel
from txl_tf.config import EvalConfig
from txl_tf.data.vocabulary import Vocabulary
from txl_tf.inference.generation import Generator
from txl_tf.inference.sampling import SamplingConfig
from txl_tf.model import TransformerXL

PROMPT_TOKENS = 32
TEMPERATURE, TOP_K, SEED = 0.95, 40, 0


class LiveSample:
    """Continues one prompt whenever it is called, with the weights that the model has by then.

    The same weights give the same text: its random numbers depend on a fixed seed. Nothing that
    training depends on is read or changed. The memory holds the prompt and the new tokens at most,
    and nothing is compiled by XLA, which would take longer than the sample.

    Args:
        model: the model.
        vocabulary: its symbols.
        evaluation: how far the model looks back.
        prompt: (n,) int32, not empty.
        n_new: tokens to generate.
    """

    def __init__(
        self,
        model: TransformerXL,
        vocabulary: Vocabulary,
        evaluation: EvalConfig,
        prompt: np.ndarray,
        n_new: int,
    ):
        self._vocabulary = vocabulary
        self._prompt = prompt
        self._n_new = n_new
        mem_len = min(evaluation.mem_len, len(prompt) + n_new)
        span = dataclasses.replace(evaluation.span, mem_len=mem_len)
        tgt_len = min(evaluation.tgt_len, len(prompt))
        cached = CachedModel(model, span, tgt_len, mask_empty_memory=True)
        self._generator = Generator(cached, jit_compile=False)
        banned = () if vocabulary.unknown_id is None else (vocabulary.unknown_id,)
        self._choice = SamplingConfig(temperature=TEMPERATURE, top_k=TOP_K, banned=banned)

    def __call__(self) -> str:
        """Returns prompt and continuation in Markdown."""
        self._generator.follow_weights()
        texts = self._generator.start([self._prompt], self._choice, [SEED])
        drawn = np.concatenate([tokens[0] for tokens in texts.draw(self._n_new)])
        prompt, text = map(self._vocabulary.decode, (self._prompt, drawn))
        return (
            f"Prompt:\n\n{_quote(prompt)}\n\n"
            f"Sample (temperature {TEMPERATURE}, top_k {TOP_K}, seed {SEED}):\n\n{_quote(text)}\n"
        )


def _quote(text: str) -> str:
    """Returns a text as a block of code, in which Markdown means nothing."""
    return "\n".join(f"    {line}" for line in text.split("\n"))
