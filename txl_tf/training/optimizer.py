"""The base class of optimizers: clipping, skipped steps, loss scaling, averages of the weights."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras import ops

from txl_tf.config import TrainConfig
from txl_tf.config.training import OPTIMIZERS
from txl_tf.errors import UserError
from txl_tf.training.schedule import make_schedule

FIRST_SCALE = 2.0**15  # of the loss
GROWTH_STEPS = 2000


class StepFactors(NamedTuple):
    """The factors of a step that all weights share, each () float32.

    In a skipped step, all but the bias corrections are 0.
    """

    clip: tf.Tensor  # of the gradients
    moment_1: tf.Tensor  # the share of the gradient in the first moment
    moment_2: tf.Tensor  # the share of the squared gradient in the second moment
    average: tf.Tensor  # the share of the weight in its average
    rate: tf.Tensor  # the learning rate
    bias_1: tf.Tensor  # the bias corrections of the moments
    bias_2: tf.Tensor


class Slots(NamedTuple):
    """A weight and the variables that the optimizer keeps for it; `None` for those not kept."""

    weight: keras.Variable
    momentum: keras.Variable
    velocity: keras.Variable | None
    average: keras.Variable | None
    group: str  # a key of the model's `weight_groups`
    rate_ratio: float  # its learning rate, as a fraction of that of the step

    @property
    def decays(self) -> bool:
        """Whether weight decay applies to the weight."""
        return self.group != "vectors"


class Optimizer:
    """Base class of optimizers; a subclass defines `change_weight`.

    The gradients must be averaged over the replicas, so that each replica takes the same step. They
    are clipped by their global norm.

    A skipped step changes only the step count and the loss scale. Replicas cannot update variables
    inside a branch, so a skipped step runs the same operations with every change multiplied by 0.

    Like the weights, an optimizer must be created and built in the scope of the strategy.

    How a weight is treated depends on its attribute `group`, its group in the model's
    `weight_groups`: weight decay applies to all groups but the vectors. A weight without a group
    counts as a vector if it has one axis, and otherwise as a projection.

    The average of each weight, if any, starts as the weight, and each step that is not skipped sets
    `average += share * (weight - average)`. There are two kinds. With `ema`, the share is `1 - ema`
    (an exponential moving average). With `average_from`, it is 1 up to that step and then `1 / n`
    (the uniform mean of the n weights since). After 200,000 simulated steps with weights of about
    .05, the error of a mean in float32 was 5e-7 on average.

    With `l2`, that fraction of each weight is added to its clipped gradient, like the gradient of a
    penalty on its square. Unlike weight decay, this enters the moments.

    Args:
        config: The training config.
        jit: What XLA compiles: "whole", "chains", "none" or "kernels".

    Attributes:
        iterations: () int64 variable, the number of steps, including skipped ones.
        loss_scale: The `LossScale`, or `None` unless the precision is float16.
        slots: The variables of each weight, in the order of the weights; empty before `build`.
    """

    beta_1, beta_2 = 0.9, 0.999
    epsilon = 1e-8  # as in the Adam of the 2019 release

    def __init__(self, config: TrainConfig, *, jit: str = "none"):
        self.config = config
        self.schedule = make_schedule(config)
        self.variables: list[keras.Variable] = []
        self.slots: list[Slots] = []
        self._strategy = tf.distribute.get_strategy()
        self.iterations = self._add_variable(
            "iteration", shape=(), dtype="int64", aggregation="only_first_replica"
        )
        self._n_averaged = None
        if config.average_from:
            self._n_averaged = self._add_variable(
                "averaged_steps", shape=(), dtype="int64", aggregation="only_first_replica"
            )
        self.loss_scale = LossScale(self._add_variable) if config.precision == "float16" else None

    def build(self, weights: Sequence[keras.Variable]) -> None:
        """Creates the variables for all weights that the optimizer changes, if not done yet.

        Raises:
            UserError: If the optimizer was built for other weights.
        """
        if not self.slots:
            self.slots = [self._make_slots(weight) for weight in weights]
            self.restart_averages()
        if [id(slots.weight) for slots in self.slots] != [id(weight) for weight in weights]:
            raise UserError(
                "an optimizer must be called with the weights that it was built for. Received: "
                f"{len(weights)} weights, not the {len(self.slots)} of the first call"
            )

    def _make_slots(self, weight: keras.Variable) -> Slots:
        def add(slot: str) -> keras.Variable:
            name = f"{weight.path.replace('/', '_')}_{slot}"
            return self._add_variable(name, shape=weight.shape, dtype=weight.dtype)

        group = getattr(weight, "group", "projections" if len(weight.shape) > 1 else "vectors")
        facts = OPTIMIZERS[self.config.optimizer]
        n_moments = facts.count_moments(is_matrix=group == "kernels")
        return Slots(
            weight,
            momentum=add("momentum"),
            velocity=add("velocity") if n_moments == 2 else None,
            average=add("average") if self.config.has_average else None,
            group=group,
            rate_ratio=self.config.embed_lr_ratio if group == "tables" else 1.0,
        )

    def _add_variable(self, name: str, *, initializer: Any = "zeros", **fields: Any) -> Any:
        with keras.name_scope(self.config.optimizer):  # part of the names in checkpoints
            variable = keras.Variable(initializer, name=name, trainable=False, **fields)
        self.variables.append(variable)
        return variable

    @property
    def learning_rate(self) -> tf.Tensor:
        """The learning rate of the next step, () float32."""
        return self.schedule(self.iterations)

    @property
    def averaged_weights(self) -> list[tuple[keras.Variable, keras.Variable]]:
        """Each weight with its average; empty without `ema` and `average_from`."""
        pairs = ((slots.weight, slots.average) for slots in self.slots)
        return [(weight, average) for weight, average in pairs if average is not None]

    def restart_averages(self) -> None:
        """Sets the average of each weight to the weight, outside any replica."""
        with tf.init_scope():  # once, even if a traced function builds the optimizer
            for weight, average in self.averaged_weights:
                average.assign(weight)

    def apply(
        self,
        gradients: Sequence[tf.Tensor],
        weights: Sequence[keras.Variable],
        *,
        norm: tf.Tensor | None = None,
        rate_factor: tf.Tensor | None = None,
    ) -> None:
        """Takes a step, or skips it if the norm is not finite, inside or outside a replica.

        Args:
            gradients: The gradients of the weights, equal on all replicas.
            weights: The weights that the optimizer was built for; the first call builds it.
            norm: () float32, the global norm of the gradients; `None` to compute it.
            rate_factor: () float32, the factor of the learning rate of this step; `None` for 1.
        """
        self.build(weights)
        if norm is None:
            norm = tf.linalg.global_norm(gradients)
        is_good = tf.math.is_finite(norm)
        factors = self._compute_factors(norm, is_good)
        if rate_factor is not None:
            factors = factors._replace(rate=factors.rate * rate_factor)
        # Each replica's copy of a variable is changed in place. An assignment to the variable as a
        # whole would copy the value of one replica to the others.
        update = self._strategy.extended.update
        for slots, gradient in zip(self.slots, gradients, strict=True):
            change = functools.partial(self._change_slots, slots)
            update(slots.weight.value, change, args=(gradient, factors), group=False)
        if self._n_averaged is not None:
            is_averaged = tf.logical_and(is_good, self.iterations.value >= self.config.average_from)
            more = tf.cast(is_averaged, tf.int64)
            update(self._n_averaged.value, lambda n, x: n.assign_add(x), args=(more,), group=False)
        update(self.iterations.value, lambda count: count.assign_add(1), group=False)
        if self.loss_scale:
            self.loss_scale.adapt(is_good)

    def _compute_factors(self, norm: tf.Tensor, is_good: tf.Tensor) -> StepFactors:
        def mask(factor: Any) -> tf.Tensor:
            return tf.where(is_good, factor, 0.0)

        clip, step = self.config.clip, tf.cast(self.iterations.value + 1, tf.float32)
        return StepFactors(
            # With the order of operations, and so the rounding, of `tf.clip_by_global_norm` in the
            # 2019 code.
            clip=mask(clip * tf.minimum(1.0 / norm, 1.0 / clip)),
            moment_1=mask(1 - self.beta_1),
            moment_2=mask(1 - self.beta_2),
            average=mask(self._compute_share()),
            rate=mask(self.learning_rate),
            bias_1=1 - tf.pow(self.beta_1, step),
            bias_2=1 - tf.pow(self.beta_2, step),
        )

    def _compute_share(self) -> Any:
        """Returns the share of the weight in its average after a step that is not skipped."""
        if self._n_averaged is None:
            return 1 - self.config.ema
        return 1.0 / tf.cast(self._n_averaged.value + 1, tf.float32)

    def _change_slots(
        self, slots: Slots, weight: tf.Variable, gradient: tf.Tensor, factors: StepFactors
    ) -> None:
        """Changes one replica's copy of a weight and of its slots."""
        # In a skipped step this is 0 even for gradients that are not finite.
        gradient = tf.math.multiply_no_nan(gradient, factors.clip)
        if self.config.l2:
            gradient += self.config.l2 * weight  # no effect in a skipped step, like any gradient
        if slots.rate_ratio != 1:
            factors = factors._replace(rate=factors.rate * slots.rate_ratio)
        self.change_weight(slots, weight, gradient, factors)
        if slots.average is not None:
            average = slots.average.value
            average.assign_add(factors.average * (weight - average))

    def change_weight(
        self, slots: Slots, weight: tf.Variable, gradient: tf.Tensor, factors: StepFactors
    ) -> None:
        """Changes one replica's copy of a weight and of its moments, by its clipped gradient."""
        raise NotImplementedError

    def decay(self, slots: Slots, weight: tf.Variable, factors: StepFactors) -> None:
        """Applies the weight decay to one replica's copy of a weight, as AdamW does."""
        if slots.decays and self.config.weight_decay:
            weight.assign_sub(factors.rate * self.config.weight_decay * weight)


def read_step_count(optimizer: Optimizer) -> int:
    """Returns the number of steps of an optimizer, outside any replica."""
    return int(ops.convert_to_numpy(optimizer.iterations))


class LossScale:
    """A dynamic loss scale.

    The loss is multiplied by the scale, and the gradients are divided by it after they have been
    averaged over the replicas. If they are not finite, all replicas skip the step and halve the
    scale; after `GROWTH_STEPS` good steps in a row, the scale is doubled. Because it is a power of
    2, it changes no bit of a gradient that float16 can represent. `add_variable` creates a variable
    that is saved with the optimizer.

    References:
        Micikevicius et al. 2018, https://arxiv.org/abs/1710.03740, section 3.2.
    """

    def __init__(self, add_variable: Callable[..., keras.Variable]):
        shared = {"shape": (), "aggregation": "only_first_replica"}
        self.factor = add_variable(
            name="loss_scale",
            initializer=keras.initializers.Constant(FIRST_SCALE),
            dtype="float32",
            **shared,
        )
        self._n_good = add_variable(name="loss_scale_good_steps", dtype="int32", **shared)

    def read(self) -> tf.Tensor:
        """Returns the scale, () float32."""
        return tf.convert_to_tensor(self.factor)

    def adapt(self, is_good: tf.Tensor) -> None:
        """Updates the scale after a step, inside a replica.

        Args:
            is_good: () bool, false if the step was skipped.
        """
        factor, n_good = self.read(), tf.convert_to_tensor(self._n_good) + 1
        is_grown = tf.logical_and(is_good, n_good >= GROWTH_STEPS)
        grown = tf.where(is_grown, factor * 2, factor)
        self.factor.assign(tf.where(is_good, grown, tf.maximum(factor / 2, 1.0)))
        self._n_good.assign(tf.where(tf.logical_and(is_good, n_good < GROWTH_STEPS), n_good, 0))
