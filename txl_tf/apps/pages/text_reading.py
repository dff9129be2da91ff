"""Texts read by a language model, as pages."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from txl_tf.apps.pages.text_page import Choice, TextFacts, make_text_page
from txl_tf.apps.pages.text_trace import TextTracer
from txl_tf.cached_model import CachedModel
from txl_tf.config import EvalConfig
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError
from txl_tf.experiments.text_attention import Head
from txl_tf.language_model import LanguageModel
from txl_tf.quantization import get_kernel_dtype
from txl_tf.scoring.checkpoints import describe_span
from txl_tf.scoring.metrics import Score


class TextReading(NamedTuple):
    """A text that was read.

    Args:
        score: Its score.
        page: Its page, in HTML.
    """

    score: Score
    page: str


class TextReader:
    """Reads texts, each with an empty memory, and makes their pages.

    Args:
        lm: The language model, a Transformer-XL.
        heads: The heads whose attention a page holds beside the mean of all.
        run: The name of the run, for pages.
        vocabulary: The vocabulary of the texts; `None` if only ids are known.
        evaluation: The segment length and the attention span; `None` for those of the run.
        n_alternatives: The number of likely alternatives for each token.
        n_keys: The number of strongest keys for each head.
        mask_empty_memory: As in `LanguageModel.score`.
        is_framed: Whether pages are shown in frames, for texts of many lengths: their headings are
            left out, and segments are padded to one length.
    """

    def __init__(
        self,
        lm: LanguageModel,
        heads: Sequence[Head],
        *,
        run: str,
        vocabulary: Vocabulary | None,
        evaluation: EvalConfig | None = None,
        n_alternatives: int = 5,
        n_keys: int = 8,
        mask_empty_memory: bool = True,
        is_framed: bool = False,
    ):
        self._lm = lm
        self._run = run
        self._vocabulary = vocabulary
        self._evaluation = evaluation or lm.evaluation
        self._mask_empty_memory = mask_empty_memory
        self._is_framed = is_framed
        span, tgt_len = self._evaluation.span, self._evaluation.tgt_len
        self._tracer = TextTracer(
            CachedModel(
                lm.model,
                span,
                tgt_len,
                mask_empty_memory=mask_empty_memory,
                temperature=self._evaluation.temperature,
                defer_products=True,  # each text begins with those of its weights
            ),
            heads,
            n_alternatives=min(n_alternatives, lm.config.n_token),
            n_keys=n_keys,
            pads_segments=is_framed,
        )

    def read(
        self,
        ids: np.ndarray,
        source: str,
        *,
        choice: Choice | None = None,
        report: Callable[[int], object] = lambda n_ids: None,
    ) -> TextReading:
        """Reads a text and makes its page.

        Args:
            ids: (n,) int32, the text.
            source: The name of the text, for the page.
            choice: The token and the head that are chosen when the page opens; `None` for none.
            report: Called with the number of tokens after each segment.

        Raises:
            UserError: If the text has less than 2 tokens, or the device's memory is full.
        """
        if len(ids) < 2:
            raise UserError(f"a page needs at least 2 tokens. Received: {len(ids)} in {source}")
        trace = self._tracer.trace(ids, report=report)
        facts = TextFacts(
            run=self._run,
            step=self._lm.step,
            span=describe_span(self._evaluation),
            tgt_len=self._evaluation.tgt_len,
            source=source,
            score=trace.sum_up(self._vocabulary),
            precision=get_kernel_dtype(self._lm.model),
            mask_empty_memory=self._mask_empty_memory,
        )
        page = make_text_page(facts, trace, self._vocabulary, choice, is_framed=self._is_framed)
        return TextReading(facts.score, page)
