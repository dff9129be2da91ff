"""Exact losses after contexts of given lengths."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from txl_tf import LanguageModel, UserError
from txl_tf.data.lanes.training_lanes import Tokens
from txl_tf.layers.memory import clear_rows
from txl_tf.models.cached_model import FrozenModel
from txl_tf.scoring.segment_loop import FrozenReader, cut_rows, score_segments

# Limits of a batch: scores of one head, and tokens.
_MAX_SCORES, _MAX_TOKENS = 16 * 512**2, 2**14


def draw_positions(n_tokens: int, max_context: int, count: int, seed: int) -> np.ndarray:
    """Draws positions of targets with `max_context` tokens before them, (n,) int64, ascending.

    If `count` is 0 or there are not more than `count` targets, all of them are returned.

    Raises:
        UserError: If the split is too short for the context.
    """
    n_targets = n_tokens - max_context
    if n_targets < 1:
        raise UserError(
            f"the split must be longer than the longest context, {max_context:,}. "
            f"Received: {n_tokens:,} tokens"
        )
    if not 0 < count < n_targets:
        return np.arange(max_context, n_tokens)
    generator = np.random.default_rng(seed)
    drawn = generator.choice(n_targets, count, replace=False, shuffle=False)
    return np.sort(drawn) + max_context


class ContextReader:
    """Computes the losses of tokens after contexts of exactly c tokens (Dai et al. 2019, figure 4).

    Each context is read from an empty, hidden memory, with the segment length and the span of the
    config: `LanguageModel.score` of a context with its target gives the target the same loss.
    Without a memory, the whole context is read as a single window. If the model has a learned row
    for each position, longer contexts are cut off at the number of rows.

    Args:
        lm: The model, with the segment length and the span.
        max_context: The longest context to read.
        jit: How much of the model XLA compiles; one of `JIT_MODES`.
    """

    def __init__(self, lm: LanguageModel, max_context: int, *, jit: str = "auto"):
        config = lm.evaluation
        self._tgt_len, self._mem_len = config.tgt_len, config.mem_len
        self._max_context = max_context
        if not config.mem_len:
            self._max_context = min(max_context, lm.config.max_places or max_context)
            self._tgt_len = self._max_context
        self._reader = FrozenReader(
            lm.model,
            config,
            max_len=self._tgt_len,
            mask_empty_memory=True,
            jit=jit,
            score=_score_last_targets,
        )
        longest = min(self._reader.cached.max_len_without_memory, math.isqrt(_MAX_SCORES))
        self._longest_whole = longest if config.mem_len else self._max_context

    def read(
        self,
        split: Tokens,
        positions: np.ndarray,
        context_len: int,
        *,
        report: Callable[[int], object] = lambda n_tokens: None,
    ) -> np.ndarray:
        """Returns the losses of targets after contexts of one length, (n,) float32 in nats.

        Args:
            split: The tokens of the split.
            positions: (n,) the positions of the targets, at least `context_len`.
            context_len: The number of tokens c before each target.
            report: Called after each batch with the number of tokens before its targets.
        """
        n_before, context_len = context_len, min(context_len, self._max_context)
        is_whole = context_len <= self._longest_whole
        seg_len = context_len if is_whole else self._tgt_len
        n_keys = seg_len if is_whole else seg_len + self._mem_len
        n_fitting = min(_MAX_SCORES // (seg_len * n_keys), _MAX_TOKENS // seg_len)
        n_rows = min(len(positions), max(1, n_fitting))
        losses = np.zeros(len(positions), np.float32)
        for start in range(0, len(positions), n_rows):
            batch = positions[start : start + n_rows]
            padded = np.resize(batch, n_rows)  # one shape for all batches
            windows = np.stack([split.read(at - context_len, at + 1) for at in padded.tolist()])
            lengths = np.full(n_rows, context_len, np.int32)
            segments = cut_rows(windows, lengths, seg_len, uses_memory=not is_whole)
            for _, nats in score_segments(self._reader, segments):
                losses[start : start + len(batch)] = nats[: len(batch)]  # the last segment's
            report(len(batch) * n_before)
        return losses


def _score_last_targets(
    cached: FrozenModel,
    ids: tf.Tensor,
    targets: tf.Tensor,
    state: Any,
    counts: tf.Tensor,
    document_starts: tf.Tensor | None,
    begins: tf.Tensor,
) -> tuple[tf.Tensor, Any]:
    """Returns -log p of only the last target of each row, (B,) float32, and the new state."""
    _, state = cached.read(ids, clear_rows(state, begins), counts, document_starts)
    targets = tf.gather(targets, counts[:, None] - 1, axis=1, batch_dims=1)
    nats = cached.model.nll(state.last[:, None], targets, temperature=cached.temperature)
    return nats[:, 0], state


def compute_losses(
    reader: ContextReader,
    split: Tokens,
    positions: np.ndarray,
    lengths: Sequence[int],
    *,
    report: Callable[[int], object] = lambda n_tokens: None,
) -> np.ndarray:
    """Returns the losses after contexts of C lengths, (C, n) float32; see `ContextReader.read`."""
    return np.stack([reader.read(split, positions, n, report=report) for n in lengths])
