"""The optimizers of the training programs as a Keras optimizer."""

from typing import Any, Self

import keras
from keras import ops

from txl_tf.config import TrainConfig
from txl_tf.config.training import OPTIMIZERS
from txl_tf.errors import UserError
from txl_tf.training.keras_replicas import add_over_replicas, find_replica
from txl_tf.training.muon import MOMENTUM, compute_muon_changes
from txl_tf.training.schedule import make_schedule

# Training settings that neither a Keras optimizer nor `fit` supports.
_UNKNOWN = (
    *(
        "accumulate_steps",
        "l2",
        "embed_lr_ratio",
        "reduce_dtype",
        "average_from",
        "half_loss",
        "ar",
        "tar",
        "extra_len",
    ),
    *("tgt_len_schedule", "tgt_len_std", "half_len_rate"),
)


class ConfigSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """The learning rate of a `TrainConfig` as a function of the step."""

    def __init__(self, training: TrainConfig):
        super().__init__()
        self._compute_rate = make_schedule(training)

    def __call__(self, step: Any) -> Any:
        return self._compute_rate(step)


@keras.saving.register_keras_serializable(package="txl_tf")
class ConfigOptimizer(keras.optimizers.Adam):
    """Adam, AdamW or Muon with the schedule, clipping and weight decay of a `TrainConfig`.

    The update rules are those of `txl_tf.training.make_optimizer`. With Muon, the matrices of the
    layers (the group "kernels" of the model's `weight_groups`) are orthogonalized, and AdamW
    updates all other weights. Weight decay applies to all groups but "vectors". Batch size,
    precision and `remat` are not part of the optimizer: those of the model apply. Steps with
    non-finite gradients are not skipped, and with `ema`, the average replaces the weights when
    `fit` ends.

    Args:
        training: The `TrainConfig`.

    Raises:
        UserError: If the config has settings that a Keras optimizer does not support.
    """

    def __init__(self, training: TrainConfig, *, name: str = "config_optimizer"):
        usual = TrainConfig()
        unknown = [x for x in _UNKNOWN if getattr(training, x) != getattr(usual, x)]
        if not OPTIMIZERS[training.optimizer].works_in_fit:
            unknown.append(f"optimizer={training.optimizer}")
        if unknown:
            raise UserError(f"`fit` does not support {', '.join(unknown)}: use `txl train`")
        super().__init__(
            learning_rate=ConfigSchedule(training),
            epsilon=1e-8,
            weight_decay=training.weight_decay or None,
            use_ema=training.ema > 0,
            ema_momentum=training.ema or 0.99,
            name=name,
        )
        self.training = training

    def build(self, variables: Any) -> None:
        if self.built:
            return
        groups = [getattr(variable, "group", None) for variable in variables]
        pairs = list(zip(groups, variables, strict=True))
        # Weights of other layers have no group.
        fixed = [x for group, x in pairs if group == "vectors" or (not group and len(x.shape) < 2)]
        self.exclude_from_weight_decay(var_list=fixed)
        super().build(variables)
        # By index, because TensorFlow hands its own variables to `update_step`.
        self._n_joint = {
            self._get_variable_index(x): getattr(x, "n_joint", 1)
            for group, x in pairs
            if group == "kernels" and self.training.optimizer == "muon"
        }

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        if trainable_variables is not None:
            with keras.name_scope(self.name):
                self.build(trainable_variables)
        n_replicas = find_replica()[1]
        if any(x is None for x in grads):  # with another loss, those of the softmax
            variables = trainable_variables or self._trainable_variables
            grads, trainable_variables = self._filter_empty_gradients(grads, variables)
        # 1) Clip the sum over the replicas: Keras would clip the gradients of each replica.
        sums = add_over_replicas(list(grads))
        norm = ops.sqrt(sum(ops.sum(ops.square(x)) for x in sums))
        factor = self.training.clip / ops.maximum(norm, self.training.clip)
        steps = [x * factor for x in sums]
        # 2) Compute the changes of all matrices together: those of one shape share products.
        indices = map(self._get_variable_index, trainable_variables or self._trainable_variables)
        places = {place: index for place, index in enumerate(indices) if index in self._n_joint}
        gradients = [steps[place] for place in places]
        momentums = [self._momentums[index] for index in places.values()]
        for momentum, gradient in zip(momentums, gradients, strict=True):
            self.assign_add(momentum, (1 - MOMENTUM) * (gradient - momentum))
        n_joint = [self._n_joint[index] for index in places.values()]
        changes = compute_muon_changes(gradients, momentums, n_joint)
        for place, change in zip(places, changes, strict=True):
            steps[place] = change
        # 3) Decay and change the weights. Keras sums over the replicas once more.
        super().apply([x / n_replicas for x in steps], trainable_variables)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        if self._get_variable_index(variable) in self._n_joint:  # the change that `apply` computed
            self.assign_sub(variable, learning_rate * gradient)
        else:
            super().update_step(gradient, variable, learning_rate)

    def get_config(self) -> dict[str, Any]:
        return {"training": self.training.to_json(), "name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        return cls(**config | {"training": TrainConfig.from_json(config["training"])})
