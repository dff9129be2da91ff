"""The optimizers: Adam as in the 2019 release, AdamW and LAMB."""

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
    """The factors that all weights share in a step, each () float32.

    All but the bias corrections are 0 in a skipped step.

    Args:
        clip: The factor of the gradients.
        moment_1: The share of the gradient in the first moment.
        moment_2: The share of the squared gradient in the second moment.
        ema: The share of the weight in its EMA.
        rate: The learning rate.
        bias_1: The bias correction of the first moment.
        bias_2: The bias correction of the second moment.
    """

    clip: tf.Tensor
    moment_1: tf.Tensor
    moment_2: tf.Tensor
    ema: tf.Tensor
    rate: tf.Tensor
    bias_1: tf.Tensor
    bias_2: tf.Tensor


class Slots(NamedTuple):
    """A weight and the variables that the optimizer keeps for it.

    Args:
        weight: The weight.
        momentum: Its first moment.
        velocity: Its second moment.
        ema: Its EMA; `None` if the optimizer keeps none.
        decays: Whether weight decay applies to it.
        rate_ratio: Its learning rate, as a fraction of that of the step.
    """

    weight: keras.Variable
    momentum: keras.Variable
    velocity: keras.Variable
    ema: keras.Variable | None
    decays: bool
    rate_ratio: float


class Optimizer:
    """The base class of the optimizers, which differ in `change_weight`.

    The gradients must be averaged over the replicas, so that each replica makes the same step.
    They are clipped by their global norm.

    A skipped step changes only the step count and the loss scale. Replicas cannot update variables
    inside a branch, so a skipped step runs the same operations with every change multiplied by 0.

    Like the weights, an optimizer is created and built in the scope of the strategy.

    Weight decay applies to matrices only: not to biases, to the gains of LayerNorm or to the biases
    u and v of the relative attention.

    With `ema` the optimizer keeps an exponential moving average (EMA) of each weight. It starts as
    the weight; each step, if not skipped, sets `average = ema * average + (1 - ema) * weight`.

    With `l2` that fraction of each weight is added to its clipped gradient, as the gradient of a
    penalty on its square would be. Unlike weight decay, it is part of what the moments average.

    Args:
        schedule: The learning rate as a function of the step.
        name: The scope of the variables, which is part of their names in checkpoints.
        clip: The largest global norm of the gradients.
        weight_decay: The rate of the weight decay.
        ema: The decay of the EMA; 0 for no EMA.
        scales_loss: Whether the loss is scaled for float16; see `LossScale`.
        l2: The fraction of a weight that is added to its gradient.
        embed_lr_ratio: The learning rate of the tables of the embedding, as a fraction of that of
            the other weights.

    Attributes:
        iterations: () int64 variable, the number of steps, including skipped ones.
        loss_scale: The `LossScale`; `None` without `scales_loss`.
        slots: The variables of each weight, in the order of the weights; empty before `build`.
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
        l2: float = 0.0,
        embed_lr_ratio: float = 1.0,
    ):
        self.schedule = schedule
        self.name = name
        self.clip = clip
        self.weight_decay = weight_decay
        self.ema = ema
        self.l2 = l2
        self.embed_lr_ratio = embed_lr_ratio
        self.variables: list[keras.Variable] = []
        self.slots: list[Slots] = []
        self._strategy = tf.distribute.get_strategy()
        self.iterations = self._add_variable(
            "iteration", shape=(), dtype="int64", aggregation="only_first_replica"
        )
        self.loss_scale = LossScale(self._add_variable) if scales_loss else None

    def build(self, weights: Sequence[keras.Variable]) -> None:
        """Creates the variables of each weight, unless that is done.

        Args:
            weights: All weights that the optimizer will change.

        Raises:
            UserError: If the optimizer was built for other weights.
        """
        if not self.slots:
            self.slots = [self._make_slots(weight) for weight in weights]
            self.restart_ema()
        if [id(slots.weight) for slots in self.slots] != [id(weight) for weight in weights]:
            raise UserError(
                "an optimizer must be called with the weights that it was built for. Received: "
                f"{len(weights)} weights, not the {len(self.slots)} of the first call"
            )

    def _make_slots(self, weight: keras.Variable) -> Slots:
        def add(slot: str) -> keras.Variable:
            name = f"{weight.path.replace('/', '_')}_{slot}"
            return self._add_variable(name, shape=weight.shape, dtype=weight.dtype)

        ema = add("average") if self.ema else None
        rate_ratio = self.embed_lr_ratio if _is_embedding(weight) else 1.0
        return Slots(weight, add("momentum"), add("velocity"), ema, _has_decay(weight), rate_ratio)

    def _add_variable(self, name: str, *, initializer: Any = "zeros", **fields: Any) -> Any:
        with keras.name_scope(self.name):
            variable = keras.Variable(initializer, name=name, trainable=False, **fields)
        self.variables.append(variable)
        return variable

    @property
    def learning_rate(self) -> tf.Tensor:
        """The learning rate of the next step, () float32."""
        return self.schedule(self.iterations)

    @property
    def ema_weights(self) -> list[tuple[keras.Variable, keras.Variable]]:
        """Each weight with its EMA; empty without `ema`."""
        return [(slots.weight, slots.ema) for slots in self.slots if slots.ema is not None]

    def restart_ema(self) -> None:
        """Sets the EMA of each weight to the weight, outside any replica."""
        with tf.init_scope():  # once, even if a traced function builds the optimizer
            for weight, average in self.ema_weights:
                average.assign(weight)

    def apply(
        self,
        gradients: Sequence[tf.Tensor],
        weights: Sequence[keras.Variable],
        *,
        norm: tf.Tensor | None = None,
        is_good: tf.Tensor | None = None,
        rate_factor: tf.Tensor | None = None,
    ) -> None:
        """Makes or skips a step, inside or outside a replica.

        Args:
            gradients: The gradients of the weights, equal on all replicas.
            weights: The weights that the optimizer was built for; the first call builds it.
            norm: () float32, the global norm of the gradients; `None` to compute it.
            is_good: () bool, whether to make the step, equal on all replicas; `None` to make it if
                the norm is finite.
            rate_factor: () float32, the factor of the learning rate of this step; `None` for 1.

        Raises:
            UserError: If the optimizer was built for other weights.
        """
        self.build(weights)
        if norm is None:
            norm = tf.linalg.global_norm(gradients)
        if is_good is None:
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
            ema=mask(1 - self.ema),
            rate=mask(self.learning_rate),
            bias_1=1 - tf.pow(self.beta_1, step),
            bias_2=1 - tf.pow(self.beta_2, step),
        )

    def _change_slots(
        self, slots: Slots, weight: tf.Variable, gradient: tf.Tensor, factors: StepFactors
    ) -> None:
        """Changes one replica's copy of a weight and of its slots."""
        # In a skipped step this is 0 even for gradients that are not finite.
        gradient = tf.math.multiply_no_nan(gradient, factors.clip)
        if self.l2:
            gradient += self.l2 * weight  # of no effect in a skipped step, like any gradient
        if slots.rate_ratio != 1:
            factors = factors._replace(rate=factors.rate * slots.rate_ratio)
        self.change_weight(slots, weight, gradient, factors)
        if slots.ema is not None:
            average = slots.ema.value
            average.assign_add(factors.ema * (weight - average))

    def change_weight(
        self, slots: Slots, weight: tf.Variable, gradient: tf.Tensor, factors: StepFactors
    ) -> None:
        """Changes one replica's copy of a weight and of its moments.

        Args:
            slots: The variables of the weight.
            weight: The copy of the weight.
            gradient: Its clipped gradient.
            factors: The factors of the step.
        """
        raise NotImplementedError


class Adam(Optimizer):
    """Adam as in TensorFlow 1: epsilon is added to the square root before the bias correction.

    TensorFlow's own operation changes a weight and its moments in place, in one pass.

    References:
        Kingma and Ba 2015, https://arxiv.org/abs/1412.6980, the form before section 2.1.
    """

    def change_weight(
        self, slots: Slots, weight: tf.Variable, gradient: tf.Tensor, factors: StepFactors
    ) -> None:
        if slots.decays and self.weight_decay:
            weight.assign_sub(factors.rate * self.weight_decay * weight)
        tf.raw_ops.ResourceApplyAdam(
            var=weight.handle,
            m=slots.momentum.value.handle,
            v=slots.velocity.value.handle,
            beta1_power=0.0,  # the rate has the bias corrections
            beta2_power=0.0,
            lr=factors.rate * tf.sqrt(factors.bias_2) / factors.bias_1,
            beta1=1 - factors.moment_1,
            beta2=1 - factors.moment_2,
            epsilon=self.epsilon,
            grad=gradient,
        )


class AdamW(Adam):
    """Adam with decoupled weight decay: each step subtracts `rate * weight_decay * weight`.

    References:
        Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101; as in Keras, the decay is
        multiplied by the learning rate.
    """


class Lamb(Optimizer):
    """LAMB: the update of Adam plus the weight decay, scaled to the norm of the weight.

    The paper does not fix the function of the weight's norm: here it is the norm capped at 10, as
    in the code of the presets `wt103_base_lamb` and `wt103_large_lamb`. The ratio is 1 if either
    norm is 0. Each variable counts as a layer, so the fused queries, keys and values are one layer,
    and so are the biases u (or v) of all layers.

    Args:
        *args: Of `Optimizer`.
        jit_compile: Whether XLA compiles the update of each weight.
        **kwargs: Of `Optimizer`.

    References:
        You et al. 2020, https://arxiv.org/abs/1904.00962, Algorithm 2. In the `Lamb` of Keras the
        decay is outside the ratio.
    """

    epsilon = 1e-6  # as in the paper
    largest_norm = 10.0

    def __init__(self, *args: Any, jit_compile: bool = False, **kwargs: Any):
        super().__init__(*args, **kwargs)
        # Weights of one shape share a compiled function.
        self._compute = self._compute_update
        if jit_compile:
            self._compute = tf.function(self._compute, jit_compile=True, autograph=False)

    def change_weight(
        self, slots: Slots, weight: tf.Variable, gradient: tf.Tensor, factors: StepFactors
    ) -> None:
        variables = [weight, slots.momentum.value, slots.velocity.value]
        # Tensors: a compiled function would not tell the variables of replicas apart.
        values = map(tf.convert_to_tensor, variables)
        new_values = self._compute(slots.decays, gradient, factors, *values)
        for variable, value in zip(variables, new_values, strict=True):
            variable.assign(value)

    def _compute_update(
        self,
        decays: bool,
        gradient: tf.Tensor,
        factors: StepFactors,
        weight: tf.Tensor,
        momentum: tf.Tensor,
        velocity: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the new values of a weight and its moments."""
        momentum += (gradient - momentum) * factors.moment_1
        velocity += (tf.square(gradient) - velocity) * factors.moment_2
        update = momentum / factors.bias_1
        update /= tf.sqrt(velocity / factors.bias_2) + self.epsilon
        if decays:
            update += self.weight_decay * weight
        weight_norm, update_norm = (tf.sqrt(tf.reduce_sum(tf.square(x))) for x in (weight, update))
        ratio = tf.where(
            tf.logical_and(weight_norm > 0, update_norm > 0),
            tf.minimum(weight_norm, self.largest_norm) / update_norm,
            1.0,
        )
        return weight - factors.rate * ratio * update, momentum, velocity


def _has_decay(weight: keras.Variable) -> bool:
    return len(weight.shape) > 1 and not weight.name.endswith("_bias")  # content_bias is u


def _is_embedding(weight: keras.Variable) -> bool:
    return weight.name.startswith("table_")


def make_optimizer(config: TrainConfig, *, jit_compile: bool = False) -> Optimizer:
    """Returns the optimizer of a run, with its schedule and gradient clipping by global norm."""
    lamb = functools.partial(Lamb, jit_compile=jit_compile)
    optimizers: dict[str, Callable[..., Optimizer]] = {"adam": Adam, "adamw": AdamW, "lamb": lamb}
    return optimizers[config.optimizer](
        make_schedule(config),
        name=config.optimizer,
        clip=config.clip,
        weight_decay=config.weight_decay,
        ema=config.ema,
        scales_loss=config.precision == "float16",
        l2=config.l2,
        embed_lr_ratio=config.embed_lr_ratio,
    )


def read_step_count(optimizer: Optimizer) -> int:
    """Returns the number of steps of an optimizer, outside any replica."""
    return int(ops.convert_to_numpy(optimizer.iterations))
