"""A copy of a model that learns from each segment after it has scored it."""

import math
from typing import Any, NamedTuple, Self

import tensorflow as tf

from txl_tf.cached_model import clear_rows
from txl_tf.compilation import choose_jit, compile_function
from txl_tf.config import AttentionSpan, EvalConfig
from txl_tf.config.dynamic import DynamicConfig
from txl_tf.errors import UserError
from txl_tf.model import SegmentModel
from txl_tf.scoring.dynamic_rules import WeightStep, prepare_rule
from txl_tf.scoring.gradient_statistics import GradientStatistics
from txl_tf.scoring.segment_gradients import copy_without_dropout, score_with_gradients


class DivergedError(UserError):
    """The loss of a dynamic evaluation is not finite."""


class AdaptingState(NamedTuple):
    """What is carried from one segment to the next, beside the weights.

    Args:
        memory: The memory of the model, a nest of tensors (B, ...).
        n_read: (B,) int32, the number of entries of the memory that hold a token.
    """

    memory: Any
    n_read: tf.Tensor

    def reset(self, rows: tf.Tensor) -> Self:
        """Returns the state with the given rows, (B,) bool, cleared for a new text."""
        return clear_rows(self, rows)


def check_temperature(config: EvalConfig) -> None:
    """Checks that an evaluation has no softmax temperature: the weights learn without one.

    Raises:
        UserError: If it has one.
    """
    if config.temperature != 1:
        raise UserError(
            "`temperature` must be 1 in dynamic evaluation: add `--temperature 1`, or set it in "
            f"the `evaluation` of the language model. Received: temperature={config.temperature}"
        )


class AdaptingModel:
    """A copy of a model that makes a gradient step on each segment after it has scored it.

    The losses are honest: a token is scored before the weights learn from it. The memory holds the
    states that the weights of their time computed; they are not computed again after a step. The
    given model is not changed.

    Args:
        model: The model, whose weights W_0 are those of the first segment.
        span: The attention span.
        config: The rule of the steps.
        statistics: The statistics of the gradients; `None` for a rule without.
        mask_empty_memory: Whether to hide memory entries that hold no token yet.
        jit: How much of the model XLA compiles; one of `JIT_MODES`.
    """

    def __init__(
        self,
        model: SegmentModel,
        span: AttentionSpan,
        config: DynamicConfig,
        statistics: GradientStatistics | None = None,
        *,
        mask_empty_memory: bool = False,
        jit: str = "auto",
    ):
        self.span = span
        self.mask_empty_memory = mask_empty_memory
        self._source = model
        self.model = copy_without_dropout(model)
        self._rate, self._decay = (
            tf.Variable(value, trainable=False, dtype=tf.float32)
            for value in (config.learning_rate, config.decay)
        )
        rule, self._constants = prepare_rule(config, statistics)
        is_compiled = choose_jit(jit, model.compute_dtype) != "none"
        # Weights of one shape share a compiled function.
        self._change = tf.function(rule, jit_compile=is_compiled, autograph=False)
        self._score = compile_function(self._score_with_gradients, jit, model.compute_dtype)
        self._read = tf.function(self._read_and_step, autograph=False)

    def set_rates(self, learning_rate: float, decay: float) -> None:
        """Changes the learning rate and the decay without compiling anything again."""
        self._rate.assign(learning_rate)
        self._decay.assign(decay)

    def check_loss(self, nats: float) -> None:
        """Checks that the loss of what was read, in nats, is finite.

        Raises:
            DivergedError: If it is not.
        """
        if not math.isfinite(nats):
            raise DivergedError(
                "the loss is not finite: the weights diverge. Received: "
                f"learning_rate={self._rate.numpy():g}"
            )

    def restart(self) -> None:
        """Sets the weights to those of the given model."""
        for weight, source in zip(self.model.weights, self._source.weights, strict=True):
            weight.assign(source)

    def initial_state(self, n_rows: int) -> AdaptingState:
        """Returns the state of B rows before the first segment."""
        memory = self.model.initial_memory(n_rows, self.span.mem_len)
        return AdaptingState(memory, tf.zeros(n_rows, tf.int32))

    def read(
        self,
        ids: tf.Tensor,
        targets: tf.Tensor,
        mask: tf.Tensor,
        state: AdaptingState,
        document_starts: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, AdaptingState]:
        """Scores a segment, and then makes a step on the mean loss of the targets that count.

        Args:
            ids: (B, T) int32, the inputs.
            targets: (B, T) int32, the tokens that follow them.
            mask: (B, T) bool, the targets that count. If there are none, the weights only return
                towards W_0.
            state: The value of `initial_state` or of the previous call.
            document_starts: (B, T) bool, where `ids` starts a document; `None` if none begins.

        Returns:
            -log p of each target in nats, (B, T) float32, 0 where the mask is false; the new state.
        """
        return self._read(ids, targets, mask, state, document_starts)

    def _score_with_gradients(
        self,
        ids: tf.Tensor,
        targets: tf.Tensor,
        mask: tf.Tensor,
        state: AdaptingState,
        document_starts: tf.Tensor | None,
    ) -> tuple[tf.Tensor, list[tf.Tensor], Any]:
        return score_with_gradients(
            self.model,
            ids,
            targets,
            mask,
            state.memory,
            span=self.span,
            document_starts=document_starts,
            filled=state.n_read if self.mask_empty_memory else None,
        )

    def _read_and_step(
        self,
        ids: tf.Tensor,
        targets: tf.Tensor,
        mask: tf.Tensor,
        state: AdaptingState,
        document_starts: tf.Tensor | None,
    ) -> tuple[tf.Tensor, AdaptingState]:
        nats, gradients, memory = self._score(ids, targets, mask, state, document_starts)
        rate, decay = self._rate.value(), self._decay.value()
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
            weight.assign(self._change(WeightStep(now, start, gradient, rate, decay), *constants))
        n_read = tf.minimum(state.n_read + ids.shape[1], self.span.mem_len)
        return nats, AdaptingState(memory, n_read)
