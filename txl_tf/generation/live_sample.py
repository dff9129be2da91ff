"""Text samples of a model during training."""

import dataclasses

import numpy as np

from txl_tf.config import DEFAULT_TEMPERATURE, DEFAULT_TOP_K, EvalConfig
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.generation.generator import Generator
from txl_tf.generation.session import Session, decode_added
from txl_tf.models.cached_model import CachedModel
from txl_tf.models.transformer_xl import TransformerXL

PROMPT_TOKENS = 32
SEED = 0


class LiveSample:
    """Continues a prompt, (n,) int32, by `n_new` tokens with the current weights at every call.

    The seed is fixed, so equal weights give equal text. The state of training is neither read nor
    changed. To keep samples cheap, the memory holds only the prompt and the new tokens, and XLA
    compiles nothing, which would take longer than the sample itself.
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

    def __call__(self) -> str:
        """Returns the prompt and its continuation in Markdown."""
        self._generator.follow_weights()
        vocabulary, prompt = self._vocabulary, self._prompt
        (drawn,) = Session(self._generator, vocabulary, [prompt], seed=SEED).draw(self._n_new)
        return (
            f"Prompt:\n\n{_indent(decode_added(vocabulary, prompt[:0], prompt))}\n\n"
            f"Sample (temperature {DEFAULT_TEMPERATURE}, top_k {DEFAULT_TOP_K}, seed {SEED}):\n\n"
            f"{_indent(decode_added(vocabulary, prompt, np.asarray(drawn)))}\n"
        )


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.split("\n"))
