"""Dynamic evaluation of texts."""

from collections.abc import Iterable, Iterator

import numpy as np
import tensorflow as tf

from txl_tf.config import EvalConfig
from txl_tf.config.dynamic import DynamicConfig
from txl_tf.data.records.reading import Records
from txl_tf.model import SegmentModel
from txl_tf.scoring.adapting_model import AdaptingModel, check_temperature
from txl_tf.scoring.dynamic_runs import find_run_statistics
from txl_tf.scoring.token_streams import Piece, TokenSlot


class DynamicScorer:
    """Scores token streams, with the interface of `Scorer`; the weights learn from each stream.

    The streams are read one after the other. Each begins with the weights of the model and an empty
    memory, so they do not affect each other's scores.

    Args:
        adapting: The model.
        tgt_len: Segment length T: the weights make a step after so many tokens.
    """

    def __init__(self, adapting: AdaptingModel, tgt_len: int):
        self._adapting = adapting
        self._tgt_len = tgt_len

    def score(
        self, streams: Iterable[Iterable[np.ndarray]], *, in_order: bool = True
    ) -> Iterator[Piece]:
        """Scores streams; see `Scorer.score`. They are always read in order.

        Raises:
            DivergedError: If a loss is not finite.
        """
        for number, chunks in enumerate(streams):
            self._adapting.restart()
            yield from self._score_stream(TokenSlot(number, iter(chunks)))

    def _score_stream(self, slot: TokenSlot) -> Iterator[Piece]:
        if slot.is_done:  # it has at most one token
            yield Piece(slot.stream, slot.peek(1), np.zeros(0, np.float32), True)
        state = self._adapting.initial_state(1)
        while not slot.is_done:
            count = min(slot.n_inputs, self._tgt_len)
            known = slot.peek(count + 1)
            inputs, targets = (np.zeros((1, self._tgt_len), np.int32) for _ in range(2))
            inputs[0, :count], targets[0, :count] = known[:-1], known[1:]
            mask = np.arange(self._tgt_len)[None] < count
            nats, state = self._adapting.read(
                tf.constant(inputs), tf.constant(targets), tf.constant(mask), state
            )
            piece = nats.numpy()[0, :count]
            self._adapting.check_loss(float(piece.sum(dtype=np.float64)))
            ids = slot.advance(count)
            slot.fill(self._tgt_len)
            yield Piece(slot.stream, ids, piece, slot.is_done)


def make_dynamic_scorer(
    model: SegmentModel,
    config: EvalConfig,
    dynamic: DynamicConfig,
    records: Records | None,
    *,
    run: str | None,
    mask_empty_memory: bool = True,
    jit: str = "auto",
) -> DynamicScorer:
    """Returns the scorer of a run's model.

    Args:
        model: The model, with its weights.
        config: Segment and span.
        dynamic: The rule of the steps.
        records: The data set of the run; `None` for a rule without statistics.
        run: The run folder, in which these are kept; `None` to keep nothing.
        mask_empty_memory: Whether to hide memory entries that hold no token yet.
        jit: How much of the model XLA compiles; one of `JIT_MODES`.

    Raises:
        UserError: If the rule needs a training split and there is none, or the config has a
            temperature.
    """
    check_temperature(config)
    statistics = find_run_statistics(model, config, dynamic, records, run=run, jit=jit)
    adapting = AdaptingModel(
        model, config.span, dynamic, statistics, mask_empty_memory=mask_empty_memory, jit=jit
    )
    return DynamicScorer(adapting, config.tgt_len)
