"""The base class of models that read a text in segments and carry a memory."""

import random

import keras
from keras import ops

from txl_tf.config import ModelConfig
from txl_tf.config.training import MAX_SEED
from txl_tf.errors import UserError, check_integer
from txl_tf.layers import AdaptiveEmbedding, AdaptiveSoftmax, Dropout, DropoutSeeds, WordDropout
from txl_tf.layers.memory import clear_rows
from txl_tf.layers.packed_kernel import PackedPolicy

SEED_STATE = "dropout_seed"  # name of the state of the generator in a `.keras` file


def refuse(message):
    """Returns a method that raises a `UserError`, to replace one that Keras gives all models."""

    def raise_error(self, *_, **__):
        raise UserError(message.format(type(self).__name__))

    return raise_error


class SegmentModel(keras.Model):
    """Base class of models that read a text in segments and carry a memory.

    It provides all but the layers between embedding and softmax: these two, dropout masks that a
    training loop sets by step and replica, and saving. All weights exist after construction. The
    caller carries the memory, a nest of tensors with the batch axis first, from segment to segment.
    A subclass defines `_make_layer(index)`, `n_draws` (an upper bound on the number of dropout
    masks drawn in one call), `layer_kernels` (the matrices of the layers),
    `initial_memory(batch_size, mem_len, mask_empty)` and `call`.

    Args:
        config: The `ModelConfig`.
        seed: Seed of the initial weights and the dropout masks; `None` for a random one.
        remat: Whether to use gradient checkpointing; see `TransformerXL`.

    Attributes:
        decoder_layers: The layers between embedding and softmax.
    """

    def __init__(self, config, *, seed=None, remat=False, **kwargs):
        try:
            keras.dtype_policies.get(kwargs.get("dtype"))
        except ValueError as error:
            rule = "a float dtype or a policy of Keras, such as 'float32' or 'mixed_bfloat16'"
            raise UserError(f"`dtype` must be {rule}. Received: {kwargs['dtype']!r}") from error
        super().__init__(**kwargs)
        self.config = check_config(config)
        self.remat = remat
        seed = random.randrange(2**31) if seed is None else seed
        self.seed = check_integer("seed", seed, 0, MAX_SEED)
        self.seed_generator = DropoutSeeds(self.seed, name=SEED_STATE)
        # One stream for all weights: streams with the same seed would repeat the same values.
        seeds = keras.random.SeedGenerator(self.seed)
        self._initializer = _make_initializer(config, config.init_std, seeds)
        proj_initializer = _make_initializer(config, config.proj_init_std, seeds)
        self.embedding = AdaptiveEmbedding(
            config,
            kernel_initializer=self._initializer,
            proj_initializer=proj_initializer,
            name="embedding",
            dtype=self.dtype_policy,
        )
        self.decoder_layers = [self._make_layer(index) for index in range(config.n_layer)]
        dropping = {"seed": self.seed_generator, "dtype": self.dtype_policy}
        self.word_dropout = WordDropout(config.word_dropout, name="word_dropout", **dropping)
        locking = dropping | {"is_locked": config.locked_dropout}
        self.input_dropout = Dropout(config.input_rate, name="input_dropout", **locking)
        self.output_dropout = Dropout(config.output_rate, name="output_dropout", **locking)
        self.softmax = AdaptiveSoftmax(config, kernel_initializer=proj_initializer, name="softmax")
        self.build((None, None))
        for group, weights in self.weight_groups.items():
            for weight in weights:
                weight.group = group  # for the optimizer

    def build(self, ids_shape):
        self.embedding.build(ids_shape)
        hidden_shape = self.output_shape
        for layer in self.decoder_layers:
            layer.build(hidden_shape)
        for layer in (self.word_dropout, self.input_dropout, self.output_dropout):
            layer.build(hidden_shape)
        self.softmax.build(hidden_shape)
        self.built = True

    @property
    def output_shape(self):
        """The shape of the hidden states, for `summary`."""
        return (None, None, self.config.d_model)

    def __call__(self, ids, memory=None, *args, **kwargs):
        check_ids(ids)  # here: Keras would add lines to an error within `call`
        check_memory(memory, ids.shape[0])
        return super().__call__(ids, memory, *args, **kwargs)

    @property
    def weight_groups(self):
        """The trainable weights by kind, a dict of lists; each weight is in one group.

        The groups are "tables", of the embedding, which the softmax shares; "kernels", the matrices
        of the layers (the attribute `n_joint` of a kernel is the number of matrices that it joins
        side by side); "projections", the other matrices, for bins and positions; and "vectors",
        biases and gains, including the biases of attention.
        """
        tables, kernels = list(self.embedding.tables), list(self.layer_kernels)
        known = {id(weight) for weight in (*tables, *kernels)}
        others = [weight for weight in self.trainable_weights if id(weight) not in known]
        return {
            "tables": tables,
            "kernels": kernels,
            "projections": [weight for weight in others if not _is_vector(weight)],
            "vectors": [weight for weight in others if _is_vector(weight)],
        }

    def embed(self, ids, training=False):
        """Returns the embeddings (B, T, D) of ids (B, T), with word dropout in training."""
        return self.word_dropout(self.embedding(ids), ids, training=training)

    def reset_memory(self, memory, rows):
        """Returns the memory with some rows reset to zeros.

        Args:
            memory: The memory that a call returned.
            rows: (B,) bool, true where a new document begins.

        Returns:
            A memory of the same shapes and dtype.

        Raises:
            ValueError: If `rows` is not (B,) bool; numbers of rows would select others.
        """
        rows = ops.convert_to_tensor(rows)
        dtype = keras.backend.standardize_dtype(rows.dtype)
        is_mask = dtype == "bool" and len(rows.shape) == 1
        tensors = [rows, *keras.tree.flatten(memory)]
        if not is_mask or len({tensor.shape[0] for tensor in tensors} - {None}) > 1:
            raise ValueError(
                f"`rows` must be (B,) bool. Received: shape={tuple(rows.shape)}, dtype={dtype}"
            )
        return clear_rows(memory, rows)

    # Keras' loops do not support a memory that the caller carries.
    fit = evaluate = predict = train_on_batch = test_on_batch = predict_on_batch = refuse(
        "`{}` does not support Keras' loops: for a TransformerXL, use them with "
        "txl_tf.CausalLM(model, batch_size=B)"
    )
    export = quantize = refuse(
        "a `{}` must be exported or quantized as a run: txl_tf.load(RUN).export(FOLDER)"
    )

    def set_dropout_seed(self, step, *, stream=0):
        """Sets the dropout masks of the next call in training, as a function of step and stream.

        A training loop that calls this before every step can resume at any step with the same
        masks. Each replica needs a different stream: otherwise all drop the same entries.

        Args:
            step: An integer or () integer tensor.
            stream: An integer or () integer tensor, such as the index of the replica.
        """
        state = self.seed_generator.state
        seeds = [self.seed + 1_000_003 * ops.cast(stream, state.dtype)]
        seeds.append(self.n_draws * ops.cast(step, state.dtype))
        state.assign(ops.stack(seeds))

    def nll(self, hidden, targets, *, temperature=1.0):
        """Returns -log p of each target in nats, (B, T) float32.

        Args:
            hidden: (B, T, D) that a call returned.
            targets: (B, T) integers in [0, V). Not checked: other values give wrong losses.
            temperature: The divisor of the logits; must be 1 with cutoffs.

        Raises:
            ValueError: If the targets have another shape than the hidden states.
        """
        if len(hidden.shape) != len(targets.shape) + 1 or differ(hidden.shape, targets.shape):
            raise ValueError(
                "`targets` must have the shape (B, T) of `hidden` (B, T, D). "
                f"Received: {tuple(targets.shape)} and {tuple(hidden.shape)}"
            )
        return self.softmax(hidden, targets, embedding=self.embedding, temperature=temperature)

    def log_probs(self, hidden):
        """Returns log p of every token of the vocabulary in nats, (B, T, V) float32.

        Args:
            hidden: (B, T, D) that a call returned.
        """
        return self.softmax.log_probs(hidden, self.embedding)

    def save_own_variables(self, store):
        # Keras does not save the state of seed generators.
        super().save_own_variables(store)
        store[SEED_STATE] = ops.convert_to_numpy(self.seed_generator.state)

    def load_own_variables(self, store):
        own = {name: store[name] for name in store.keys()}  # noqa: SIM118  not a dict
        self.seed_generator.state.assign(own.pop(SEED_STATE))
        super().load_own_variables(own)

    def _trackable_children(self, save_type="checkpoint", **kwargs):
        # For `tf.train.Checkpoint`, from which Keras hides the weights of layers in lists.
        children = super()._trackable_children(save_type, **kwargs)
        if save_type == "checkpoint":
            children |= self.name_weights() | {SEED_STATE: self.seed_generator.state}
        return children

    def name_weights(self):
        """Returns the weights by their paths without the name of the model."""
        return {x.path.split(f"{self.name}/", 1)[-1]: x for x in self.weights}

    def get_config(self):
        return {
            "config": self.config.to_json(),
            "seed": self.seed,
            "remat": self.remat,
            "name": self.name,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            "frozen": [name for name, x in self.name_weights().items() if not x.trainable],
        }

    @classmethod
    def from_config(cls, config):
        fields = config | {"config": ModelConfig.from_json(config["config"])}
        frozen = fields.pop("frozen", ())  # older files have none
        model = cls(**fields)
        for name in frozen:
            model.name_weights()[name].trainable = False
        # Setting it to true would unfreeze all weights within.
        for layer in (*model.layers, model):
            if layer.weights and not layer.trainable_weights:
                layer.trainable = False
        return model


def check_config(config):
    """Returns the config; raises a `UserError` if it is not a `ModelConfig`."""
    if not isinstance(config, ModelConfig):
        raise UserError(
            "`config` must be a ModelConfig, such as txl_tf.presets.model(NAME). "
            f"Received: {config!r}"
        )
    return config


def check_trainable(model):
    """Raises a `UserError` for a quantized model, whose kernels do not learn."""
    if isinstance(model.dtype_policy, PackedPolicy):
        raise UserError("a quantized model cannot be trained: load the run without `precision`")


def differ(shape, other):
    """Returns whether two shapes differ in an axis that both have, and whose sizes are known."""
    pairs = zip(shape, other, strict=False)
    return any(None not in pair and pair[0] != pair[1] for pair in pairs)


def check_ids(ids):
    """Checks that the ids of a call are integers of a static shape (B, T).

    Raises:
        UserError: If they are not integers of two axes.
        ValueError: If their shape is unknown in a traced function.
    """
    dtype = keras.backend.standardize_dtype(ids.dtype) if hasattr(ids, "dtype") else None
    if dtype is None or "int" not in dtype or len(ids.shape) != 2:
        received = f"shape={tuple(ids.shape)}, dtype={dtype}" if dtype else type(ids).__name__
        raise UserError(f"`ids` must be an array (B, T) of integers. Received: {received}")
    if None in ids.shape:
        raise ValueError(  # a class that TensorFlow preserves while tracing
            "`ids` must have a fixed shape (B, T), as those of a tf.data.Dataset after "
            f".batch(B, drop_remainder=True). Received: {tuple(ids.shape)}"
        )


def check_memory(memory, n_rows):
    """Checks that the memory of a call has as many rows as its ids."""
    rows = {tensor.shape[0] for tensor in keras.tree.flatten(memory) if tensor is not None}
    wrong = rows - {n_rows, None}
    if wrong or not rows:
        received = f"{wrong.pop()} rows" if wrong else repr(memory)
        raise UserError(
            "`memory` must be what `initial_memory` or the previous call returned, with the "
            f"{n_rows} rows of `ids`. Received: {received}"
        )


def _is_vector(weight):
    # The biases of attention have several axes, but are not matrices.
    return len(weight.shape) < 2 or weight.name.endswith("_bias")


def _make_initializer(config, std, seeds):
    if config.init == "uniform":
        return keras.initializers.RandomUniform(-config.init_range, config.init_range, seed=seeds)
    return keras.initializers.RandomNormal(0.0, std, seed=seeds)
