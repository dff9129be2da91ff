"""Dynamic evaluation of a split."""

import dataclasses
import sys
import time
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from txl_tf.config import EvalConfig
from txl_tf.config.dynamic import DynamicConfig
from txl_tf.data.lanes.evaluation_lanes import Segment
from txl_tf.data.lanes.sliding_windows import AnyLanes, SlidingWindows
from txl_tf.data.lanes.training_lanes import iterate_chunks
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError
from txl_tf.model import SegmentModel
from txl_tf.runs.array_store import ArrayStore, hash_arrays, hash_weights
from txl_tf.scoring.adapting_model import (
    AdaptingModel,
    AdaptingState,
    DivergedError,
    check_temperature,
)
from txl_tf.scoring.evaluator import Evaluator, Progress
from txl_tf.scoring.gradient_statistics import GradientStatistics
from txl_tf.scoring.metrics import Score

_SAVE_SECONDS = 300.0
_NAME = "progress"


class DynamicEvaluator(Evaluator):
    """Scores every token of a split once; after each segment the weights make a step on it.

    The step is on the mean loss of the segment in all lanes, so more lanes make fewer steps and
    give another score. Tokens that only warm a lane are not learnt from: another lane has yet
    to score them. The given model keeps its weights. With a learning rate of 0 no weight would
    change, so the split is scored as `Evaluator` does, with the same result.

    Args:
        model: The model.
        config: Lanes, segment and span.
        dynamic: The rule of the steps.
        statistics: The statistics of the gradients; `None` for a rule without.
        folder: The folder in which the progress is kept, so that an interrupted evaluation can go
            on; `None` to keep nothing.
        save_seconds: Seconds between two stores of the progress.
        vocabulary: As for `Evaluator`.
        jit: As for `Evaluator`.

    Attributes:
        adapting: The model whose weights change.

    Raises:
        UserError: If the config has a temperature.
    """

    dynamic: DynamicConfig

    def __init__(
        self,
        model: SegmentModel,
        config: EvalConfig,
        dynamic: DynamicConfig,
        statistics: GradientStatistics | None = None,
        *,
        folder: str | None = None,
        save_seconds: float = _SAVE_SECONDS,
        vocabulary: Vocabulary | None = None,
        jit: str = "none",
    ):
        check_temperature(config)
        super().__init__(model, config, vocabulary=vocabulary, jit=jit)
        self.dynamic = dynamic
        self._folder = folder
        self._statistics_hash = hash_arrays(statistics.sums if statistics else [])
        self._store = ArrayStore(None, {})
        self.adapting = AdaptingModel(model, config.span, dynamic, statistics, jit=jit)
        self._save_seconds = save_seconds
        self._last_save = time.monotonic()

    @property
    def is_static(self) -> bool:
        """Whether no weight would change."""
        return not self.dynamic.learning_rate

    def set_rates(self, learning_rate: float, decay: float) -> None:
        """Changes the rates of the next evaluation without compiling anything again."""
        self.dynamic = dataclasses.replace(self.dynamic, learning_rate=learning_rate, decay=decay)
        self.adapting.set_rates(learning_rate, decay)

    def score_lanes(self, lanes: AnyLanes, **options: Any) -> Score:
        """Scores lanes; see `Evaluator.score_lanes`.

        Raises:
            DivergedError: If the loss is not finite.
            UserError: If the lanes are sliding windows, or the device's memory is full.
        """
        if isinstance(lanes, SlidingWindows):
            raise UserError("dynamic evaluation reads a text once: it cannot use sliding windows")
        score = super().score_lanes(lanes, **options)
        self._store.remove(_NAME)
        return score

    def _begin(self, lanes: AnyLanes, n_segments: int) -> Progress:
        self.n_resumed_tokens = 0
        if self.is_static:
            return super()._begin(lanes, n_segments)
        self._last_save = time.monotonic()
        self._store = self._open_store(lanes, n_segments, self.dynamic.to_json())
        self.adapting.restart()
        state = self.adapting.initial_state(lanes.n_lanes)
        progress = Progress(0, state, self._make_empty_score())
        arrays = self._store.load(_NAME)
        return progress if arrays is None else self._restore(progress, arrays)

    def open_search(self, lanes: AnyLanes, max_segments: int | None) -> ArrayStore:
        """Returns the store of a search, by all that its scores depend on but the rates.

        Args:
            lanes: The lanes of the split.
            max_segments: As for `score_lanes`.
        """
        rates = {"learning_rate": None, "decay": None}
        n_segments = self._count_segments(lanes, max_segments)
        return self._open_store(lanes, n_segments, self.dynamic.to_json() | rates)

    def _open_store(self, lanes: AnyLanes, n_segments: int, dynamic: dict[str, Any]) -> ArrayStore:
        """Returns a store of the folder, by all that a score depends on."""
        if self._folder is None:
            return ArrayStore(None, {})
        settings = {
            "weights": hash_weights(self.model),
            "text": hash_arrays(iterate_chunks(lanes.split)),
            "lanes": lanes.describe(),
            "segments": n_segments,
            "evaluation": self.config.to_json(),
            "dtype": self.model.compute_dtype,
            "dynamic": dynamic,
            "statistics": self._statistics_hash,
        }
        return ArrayStore(self._folder, settings)

    def _score_segment(self, segment: Segment, state: Any) -> tuple[Any, Any]:
        if self.is_static:
            return super()._score_segment(segment, state)
        starts = segment.document_starts if self.config.reset_at_documents else None
        nats, state = self.adapting.read(
            segment.ids, segment.targets, segment.mask, state, document_starts=starts
        )
        return tf.reduce_sum(tf.cast(nats, tf.float64)), state

    def _keep(self, progress: Progress) -> None:
        if self.is_static:
            return
        try:
            self.adapting.check_loss(progress.score.total_nats)
        except DivergedError:
            self._store.remove(_NAME)
            raise
        if time.monotonic() - self._last_save >= self._save_seconds:
            self._save(progress)

    def _save(self, progress: Progress) -> None:
        """Stores all that an interrupted evaluation needs to go on."""
        score = progress.score
        counts = {
            "n_done": progress.n_done,
            "total_nats": score.total_nats,
            "tokens": score.tokens,
            "n_unknown": -1 if score.n_unknown is None else score.n_unknown,
        }
        tensors = self._list_tensors(progress.state)
        arrays = {name: np.array(value) for name, value in counts.items()}
        arrays |= {str(index): _make_array(tensor) for index, tensor in enumerate(tensors)}
        self._store.save(_NAME, arrays)
        self._last_save = time.monotonic()

    def _restore(self, progress: Progress, arrays: Mapping[str, np.ndarray]) -> Progress:
        """Returns the progress that was stored, and sets the weights to those of then."""
        n_weights = len(self.adapting.model.weights)
        for index, weight in enumerate(self.adapting.model.weights):
            weight.assign(arrays[str(index)])
        tensors = [
            tf.cast(arrays[str(index)], tensor.dtype)
            for index, tensor in enumerate(keras.tree.flatten(progress.state), n_weights)
        ]
        n_unknown = int(arrays["n_unknown"])
        score = dataclasses.replace(
            progress.score,
            total_nats=float(arrays["total_nats"]),
            tokens=int(arrays["tokens"]),
            n_unknown=None if n_unknown < 0 else n_unknown,
        )
        state = keras.tree.pack_sequence_as(progress.state, tensors)
        self.n_resumed_tokens, n_done = score.tokens, int(arrays["n_done"])
        print(f"Going on after segment {n_done:,} of an interrupted evaluation.", file=sys.stderr)
        return Progress(n_done, state, score)

    def _list_tensors(self, state: AdaptingState) -> list[Any]:
        """Returns the weights and the tensors of a state."""
        weights = [weight.value for weight in self.adapting.model.weights]
        return [*weights, *keras.tree.flatten(state)]


def _make_array(tensor: tf.Tensor) -> np.ndarray:
    """Returns the values of a tensor as an array that files can hold: bfloat16 as float32."""
    return (tf.cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor).numpy()
