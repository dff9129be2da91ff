"""Dynamic evaluation: weights that learn from each segment after it was scored."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf.config import AttentionSpan, EvalConfig
from txl_tf.config.dynamic import DynamicConfig
from txl_tf.data.lanes.evaluation_lanes import Segment
from txl_tf.data.records.reading import Records
from txl_tf.errors import UserError
from txl_tf.layers.memory import clear_rows
from txl_tf.models.compilation import choose_jit, compile_function
from txl_tf.models.segment_model import SegmentModel
from txl_tf.progress import Bar
from txl_tf.scoring.gradient_statistics import (
    GradientStatistics,
    copy_without_dropout,
    gather_statistics,
    make_tensors,
    score_with_gradients,
)


class WeightStep(NamedTuple):
    """The tensors that every rule needs for a step of a weight, which may have any shape."""

    weight: tf.Tensor
    start: tf.Tensor  # its value before the evaluation
    gradient: tf.Tensor  # of the segment's mean loss
    rate: tf.Tensor  # () float32
    decay: tf.Tensor  # () float32, the rate of the return to `start`


Rule = Callable[..., tf.Tensor]  # a weight after a step, from a `WeightStep` and constants


def change_sgd(step: WeightStep) -> tf.Tensor:
    """Returns the weight after a step of `sgd`."""
    return step.weight + step.decay * (step.start - step.weight) - step.rate * step.gradient


def change_rms(step: WeightStep, root: tf.Tensor, mean: tf.Tensor, epsilon: tf.Tensor) -> tf.Tensor:
    """Returns the weight after a step of `rms`: `root` is S, `mean` that of S over all weights."""
    pull = tf.minimum(step.decay * root / mean, 1.0)  # decay * min(S / mean, 1 / decay)
    change = pull * (step.start - step.weight) - step.rate * step.gradient / (root + epsilon)
    return step.weight + change


def prepare_rule(
    config: DynamicConfig, statistics: GradientStatistics | None
) -> tuple[Rule, list[list[tf.Tensor]] | None]:
    """Returns the rule of a config, and for each weight its constants; `None` if it has none."""
    if not config.has_statistics:
        return change_sgd, None
    assert statistics is not None
    epsilon = tf.constant(config.epsilon, tf.float32)
    roots = [np.sqrt(sums / np.float32(statistics.n_batches)) for sums in statistics.sums]
    means = [float(root.mean(dtype=np.float64)) for root in roots]
    mean = tf.constant(sum(means) / len(means), tf.float32)
    return change_rms, [[tf.constant(root), mean, epsilon] for root in roots]


class AdaptingState(NamedTuple):
    """The state carried from one segment to the next, beside the weights."""

    memory: Any  # of the model, a nest of tensors (B, ...)
    n_read: tf.Tensor  # (B,) int32, the number of entries of the memory that hold a token


class AdaptingReader:
    """A reader whose weights make a gradient step on each segment after it has scored it.

    The losses are honest: a token is scored before the weights learn from it. A step does not
    recompute the states in the memory. When all rows begin a text, the weights are reset to those
    of the given model, which is not changed. The weights do not learn from targets that do not
    count, such as those that only warm a lane.

    The other arguments are those of `FrozenReader`; `statistics` are those of the gradients, for a
    rule that needs them.
    """

    def __init__(
        self,
        model: SegmentModel,
        span: AttentionSpan,
        dynamic: DynamicConfig,
        statistics: GradientStatistics | None = None,
        *,
        mask_empty_memory: bool = False,
        jit: str = "auto",
    ):
        self.model = copy_without_dropout(model)
        self._source = model
        self._span = span
        self._mask_empty_memory = mask_empty_memory
        self.dynamic = dynamic
        self._rate, self._decay = (
            tf.constant(rate, tf.float32) for rate in (dynamic.learning_rate, dynamic.decay)
        )
        rule, self._constants = prepare_rule(dynamic, statistics)
        is_compiled = choose_jit(jit, model.compute_dtype) != "none"
        # Weights of one shape share a compiled function.
        self._change = tf.function(rule, jit_compile=is_compiled, autograph=False)
        self._score = compile_function(self._score_with_gradients, jit, model.compute_dtype)
        self._read = tf.function(self._read_and_step, autograph=False)

    def begin(self) -> None:
        """Sets the weights to those of the given model."""
        for weight, source in zip(self.model.weights, self._source.weights, strict=True):
            weight.assign(source)

    def read(self, segment: Segment, state: Any) -> tuple[np.ndarray, AdaptingState]:
        """Scores a segment, then makes a step on the mean loss of the targets that count.

        Returns the losses, (B, T) float32, 0 where the mask is false, and the new state.
        """
        if state is not None and segment.begins.all():
            self.begin()
            state = None
        if state is None:
            n_rows = len(segment.ids)
            memory = self.model.initial_memory(n_rows, self._span.mem_len)
            state = AdaptingState(memory, tf.zeros(n_rows, tf.int32))
        elif segment.begins.any():
            state = clear_rows(state, segment.begins)
        losses, state = self._read(make_tensors(segment), state)
        nats = losses.numpy()
        if not math.isfinite(nats.sum(dtype=np.float64)):
            raise UserError(
                "the loss is not finite: the weights diverge. Received: "
                f"learning_rate={self.dynamic.learning_rate:g}"
            )
        return nats, state

    def _score_with_gradients(
        self, segment: Segment, state: AdaptingState
    ) -> tuple[tf.Tensor, list[tf.Tensor], Any]:
        filled = state.n_read if self._mask_empty_memory else None
        return score_with_gradients(
            self.model, segment, state.memory, span=self._span, filled=filled
        )

    def _read_and_step(
        self, segment: Segment, state: AdaptingState
    ) -> tuple[tf.Tensor, AdaptingState]:
        nats, gradients, memory = self._score(segment, state)
        weights = zip(
            self.model.trainable_variables,
            self._source.trainable_variables,
            gradients,
            self._constants or [[] for _ in gradients],
            strict=True,
        )
        for weight, source, gradient, constants in weights:
            # Tensors: a compiled function would take the value of a variable as it was then.
            now, start = map(tf.convert_to_tensor, (weight, source))
            weight.assign(
                self._change(WeightStep(now, start, gradient, self._rate, self._decay), *constants)
            )
        n_read = tf.minimum(state.n_read + segment.ids.shape[1], self._span.mem_len)
        return nats, AdaptingState(memory, n_read)


def make_adapting_reader(
    model: SegmentModel,
    config: EvalConfig,
    dynamic: DynamicConfig,
    records: Records | None,
    *,
    mask_empty_memory: bool = False,
    jit: str = "auto",
) -> AdaptingReader:
    """Returns a reader whose weights learn.

    If the rule needs the gradients of the training split, they are gathered from the records.

    Raises:
        UserError: If the config has a temperature, or the rule needs a training split and there
            is none, or it is too short.
    """
    if config.temperature != 1:
        raise UserError(
            "`temperature` must be 1 in dynamic evaluation: add `--temperature 1`, or set it in "
            f"the `evaluation` of the language model. Received: temperature={config.temperature}"
        )
    statistics = None
    if dynamic.has_statistics:
        if records is None or "train" not in records.splits:
            where = records.data_dir if records else "the run"
            raise UserError(
                f"rule={dynamic.rule} needs the gradients of the training split, and {where} has "
                "none: choose rule=sgd"
            )
        split, n_batches = records.split("train"), dynamic.n_batches
        with Bar("gradients of train", unit="segment", total=n_batches) as bar:
            statistics = gather_statistics(
                model, config, split, n_batches, jit=jit, report=bar.update
            )
    return AdaptingReader(
        model, config.span, dynamic, statistics, mask_empty_memory=mask_empty_memory, jit=jit
    )
