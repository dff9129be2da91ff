"""The optimizers: Adam as the 2019 release trains, AdamW, LAMB."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras import ops

from txl_tf.config import TrainConfig
from txl_tf.errors import UserError
from txl_tf.training.loss_scale import LossScale
from txl_tf.training.schedule import make_schedule


class StepFactors(NamedTuple):
    """The numbers that all weights of a step share, each () float32.

    Those that a change is multiplied by are 0 in a step that is skipped.

    Args:
        clip: factor of the gradients.
        moment_1: share of the gradient in the first moment.
        moment_2: share of the squared gradient in the second moment.
        average: share of the weight in its moving average.
        rate: the learning rate.
        bias_1: the sum of the shares of all gradients in the first moment, with which it is
            corrected.
        bias_2: the same for the second moment.
    """

    clip: tf.Tensor
    moment_1: tf.Tensor
    moment_2: tf.Tensor
    average: tf.Tensor
    rate: tf.Tensor
    bias_1: tf.Tensor
    bias_2: tf.Tensor


class Slots(NamedTuple):
    """A weight and the variables that the optimizer keeps for it.

    Args:
        weight: the weight.
        momentum: its first moment.
        velocity: its second moment.
        average: its moving average, if the optimizer keeps any.
        decays: whether it takes weight decay.
    """

    weight: keras.Variable
    momentum: keras.Variable
    velocity: keras.Variable
    average: keras.Variable | None
    decays: bool


class Optimizer:
    """The part that all optimizers of training share; `change_weight` is left to each of them.

    The gradients are those of all replicas, averaged, so that each replica makes the same step.
    They are clipped by their global norm.

    A skipped step changes the step count and the loss scale only. Replicas cannot update variables
    inside a branch, so it runs the same operations, with 0 as the factor of each change.

    Like the weights, an optimizer is made and built in the scope of the strategy.

    Weight decay is for matrices: biases, the gains of LayerNorm and the biases u and v of the
    relative attention are left alone, as is usual.

    With `ema` an average follows each weight: it begins as the weight, and a step that is made has
    `average = ema * average + (1 - ema) * weight`.

    Args:
        schedule: the learning rate as a function of the step.
        name: the scope of the variables; checkpoints have it in their names.
        clip: the largest global norm of the gradients.
        weight_decay: the rate of the decay.
        ema: the share of an average that stays at each step; 0 keeps no averages.
        scales_loss: whether the loss is scaled for float16; see `LossScale`.

    Attributes:
        iterations: () int64 variable, the number of steps, with those that were skipped.
        loss_scale: the `LossScale`; `None` without `scales_loss`.
        slots: what is kept for each weight, in the order of the weights; empty before `build`.
    """

    beta_1, beta_2 = 0.9, 0.999
    epsilon = 1e-8  # as in the Adam of the 2019 release

    def __init__(
        self,
        schedule: Callable[[Any], tf.Tensor],
        *,
        name: str,
        clip: float,
        weight_decay: float = 0.0,
        ema: float = 0.0,
        scales_loss: bool = False,
    ):
        self.schedule = schedule
        self.name = name
        self.clip = clip
        self.weight_decay = weight_decay
        self.ema = ema
        self.variables: list[keras.Variable] = []
        self.slots: list[Slots] = []
        self._strategy = tf.distribute.get_strategy()
        self.iterations = self._add_variable(
            "iteration", shape=(), dtype="int64", aggregation="only_first_replica"
        )
        self.loss_scale = LossScale(self._add_variable) if scales_loss else None

    def build(self, weights: Sequence[keras.Variable]) -> None:
        """Makes the variables of each weight.

        Args:
            weights: all that the optimizer will change. A second call must have the same ones.

        Raises:
            UserError: If the optimizer was built for others.
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

        average = add("average") if self.ema else None
        return Slots(weight, add("momentum"), add("velocity"), average, _takes_decay(weight))

    def _add_variable(self, name: str, *, initializer: Any = "zeros", **fields: Any) -> Any:
        with keras.name_scope(self.name):
            variable = keras.Variable(initializer, name=name, trainable=False, **fields)
        self.variables.append(variable)
        return variable

    @property
    def learning_rate(self) -> tf.Tensor:
        """The rate of the next step, () float32."""
        return self.schedule(self.iterations)

    @property
    def averages(self) -> list[tuple[keras.Variable, keras.Variable]]:
        """Each weight and its average; empty without `ema`."""
        return [(slots.weight, slots.average) for slots in self.slots if slots.average is not None]

    def restart_averages(self) -> None:
        """Sets each average to its weight, outside of any replica."""
        with tf.init_scope():  # in a function that builds, it would be done at every call
            for weight, average in self.averages:
                average.assign(weight)

    def apply(
        self,
        gradients: Sequence[tf.Tensor],
        weights: Sequence[keras.Variable],
        *,
        norm: tf.Tensor | None = None,
        is_good: tf.Tensor | None = None,
    ) -> None:
        """Makes a step, or skips it, in a replica or outside of any.

        Args:
            gradients: of the weights, the same on all replicas.
            weights: those that the optimizer was built for; the first call builds it.
            norm: () float32, the global norm of the gradients; computed where it is not given.
            is_good: () bool, whether the step is made, the same on all replicas; where it is not
                given, a step is made if the norm is finite.

        Raises:
            UserError: If the optimizer was built for other weights.
        """
        self.build(weights)
        if norm is None:
            norm = tf.linalg.global_norm(gradients)
        if is_good is None:
            is_good = tf.math.is_finite(norm)
        factors = self._compute_factors(norm, is_good)
        # Each replica's part of a variable is changed in its place. An assignment to the variable
        # as a whole would copy the values of one replica to the others.
        update = self._strategy.extended.update
        for slots, gradient in zip(self.slots, gradients, strict=True):
            change = functools.partial(self._change_slots, slots)
            update(slots.weight.value, change, args=(gradient, factors), group=False)
        update(self.iterations.value, lambda count: count.assign_add(1), group=False)
        if self.loss_scale:
            self.loss_scale.adapt(is_good)

    def _compute_factors(self, norm: tf.Tensor, is_good: tf.Tensor) -> StepFactors:
        def mask(factor: Any) -> tf.Tensor:
            return tf.where(is_good, factor, 0.0)

        step = tf.cast(self.iterations.value + 1, tf.float32)
        return StepFactors(
            clip=mask(self.clip * tf.minimum(1.0 / norm, 1.0 / self.clip)),
            moment_1=mask(1 - self.beta_1),
            moment_2=mask(1 - self.beta_2),
            average=mask(1 - self.ema),
            rate=mask(self.learning_rate),
            bias_1=1 - tf.pow(self.beta_1, step),
            bias_2=1 - tf.pow(self.beta_2, step),
        )

    def _change_slots(
        self, slots: Slots, weight: tf.Variable, gradient: tf.Tensor, factors: StepFactors
    ) -> None:
        """Changes a replica's part of a weight and of its slots."""
        # A product of 0 and of what is not finite is 0 here.
        gradient = tf.math.multiply_no_nan(gradient, factors.clip)
        m, v = slots.momentum.value, slots.velocity.value
        m.assign_add((gradient - m) * factors.moment_1)
        v.assign_add((tf.square(gradient) - v) * factors.moment_2)
        self.change_weight(slots, weight, factors)
        if slots.average is not None:
            average = slots.average.value
            average.assign_add(factors.average * (weight - average))

    def change_weight(self, slots: Slots, weight: tf.Variable, factors: StepFactors) -> None:
        """Changes a weight by its moments, which have taken in the gradient.

        Args:
            slots: of the weight.
            weight: a replica's part of it.
            factors: of the step.
        """
        raise NotImplementedError


class Adam(Optimizer):
    """Adam, in the form of TensorFlow 1: epsilon is added to the root before bias correction.

    References:
        Kingma and Ba 2015, https://arxiv.org/abs/1412.6980, the form before section 2.1.
    """

    def change_weight(self, slots: Slots, weight: tf.Variable, factors: StepFactors) -> None:
        m, v = slots.momentum.value, slots.velocity.value
        rate = factors.rate * tf.sqrt(factors.bias_2) / factors.bias_1
        weight.assign_sub(m * rate / (tf.sqrt(v) + self.epsilon))


class AdamW(Adam):
    """Adam with decoupled weight decay: each step takes `rate * weight_decay * weight` off.

    References:
        Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101; here, as in Keras, the
        schedule scales the decay by the learning rate itself.
    """

    def change_weight(self, slots: Slots, weight: tf.Variable, factors: StepFactors) -> None:
        if slots.decays:
            weight.assign_sub(factors.rate * self.weight_decay * weight)
        super().change_weight(slots, weight, factors)


class Lamb(Optimizer):
    """LAMB: Adam's update plus the decay, scaled to the norm of the weight that it changes.

    The paper leaves open the function of the weight's norm: here it is the norm up to 10, as in
    the code of the presets `wt103_base_lamb` and `wt103_large_lamb`. A ratio of 1 stands in where
    either norm is 0. Each variable is a layer of its own, so the fused queries, keys and values
    are one, and so are the biases u (or v) of all layers.

    References:
        You et al. 2020, https://arxiv.org/abs/1904.00962, Algorithm 2. In Keras' `Lamb` the decay
        is outside of the ratio.
    """

    epsilon = 1e-6  # as in the paper
    largest_norm = 10.0

    def change_weight(self, slots: Slots, weight: tf.Variable, factors: StepFactors) -> None:
        m, v = slots.momentum.value, slots.velocity.value
        update = m / factors.bias_1 / (tf.sqrt(v / factors.bias_2) + self.epsilon)
        if slots.decays:
            update += self.weight_decay * weight
        weight_norm, update_norm = (tf.sqrt(tf.reduce_sum(tf.square(x))) for x in (weight, update))
        ratio = tf.where(
            tf.logical_and(weight_norm > 0, update_norm > 0),
            tf.minimum(weight_norm, self.largest_norm) / update_norm,
            1.0,
        )
        weight.assign_sub(factors.rate * ratio * update)


def _takes_decay(weight: keras.Variable) -> bool:
    return len(weight.shape) > 1 and not weight.name.endswith("_bias")  # content_bias is u


def make_optimizer(config: TrainConfig) -> Optimizer:
    """Returns the optimizer of a run, with its schedule and clipping by the global norm."""
    optimizers: dict[str, type[Optimizer]] = {"adam": Adam, "adamw": AdamW, "lamb": Lamb}
    return optimizers[config.optimizer](
        make_schedule(config),
        name=config.optimizer,
        clip=config.clip,
        weight_decay=config.weight_decay,
        ema=config.ema,
        scales_loss=config.precision == "float16",
    )


def read_step_count(optimizer: Optimizer) -> int:
    """Returns the number of steps that an optimizer has made, outside of any replica."""
    return int(ops.convert_to_numpy(optimizer.iterations))
