"""A Transformer-XL with the interface of Keras: `compile`, `fit`, `evaluate`, and saving."""

import contextlib
import dataclasses
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from txl_tf import presets
from txl_tf.config import AttentionSpan, EvalConfig, ModelConfig, TrainConfig
from txl_tf.data.lanes.segments import LANES, Segments, check_batches, check_ids
from txl_tf.data.temporary_folders import write_aside
from txl_tf.data.text.vocabulary import Vocabulary, check_size
from txl_tf.errors import UserError, check_integer
from txl_tf.models.segment_model import check_trainable, differ, refuse
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.pretrained import find_pretrained
from txl_tf.quiet_start import check_backend
from txl_tf.runs.checkpoint_choice import WEIGHTS_NAME, find_checkpoint, is_weights_file
from txl_tf.runs.folder import RunConfig, make_run_folder, read_run_config
from txl_tf.runs.weights_file import read_weights_file, write_weights_file
from txl_tf.training.keras_optimizer import ConfigOptimizer
from txl_tf.training.keras_replicas import find_replica, read_rows, write_rows
from txl_tf.training.keras_resume import EndEpochs, Resume, read_count

_BY_RUN = "lm.to_run(RUN); txl_tf.load(RUN)"


class Bits(keras.metrics.Mean):
    """The mean of losses in nats, converted to bits."""

    def result(self) -> Any:
        return super().result() / math.log(2)


class Perplexity(keras.metrics.Mean):
    """The exponential of the mean of losses in nats."""

    def result(self) -> Any:
        return ops.exp(super().result())


@keras.saving.register_keras_serializable(package="txl_tf")
class CausalLM(keras.Model):
    """A language model for `fit` that carries its memory from batch to batch.

    `from txl_tf import CausalLM` also lets `keras.saving.load_model` read its files.

    The memory is part of the state of the model, like the state of
    `keras.layers.LSTM(stateful=True)`. Row b of a batch must therefore continue where row b of the
    previous batch ended; `Segments` makes such batches. The memory of training is carried from
    epoch to epoch. Evaluation and prediction use a separate memory, which is empty when `evaluate`
    or `predict` begins. No gradient flows into the memory.

    The loss is the mean, over all B * T entries, of -log p of the target times its sample weight.
    The metrics `nats`, `bits` and `perplexity` are per token: total loss over total weight of the
    epoch. `val_loss`, which callbacks monitor, is therefore `val_nats` times the fraction of
    entries that are not padding. Only `predict` stores the (B, T, V) probabilities of all tokens.

    It runs on TensorFlow and on JAX. To score or generate texts, to quantize or to export, write a
    run with `to_run`, and load it with `txl_tf.load`.

    Args:
        config: The `ModelConfig`, or an existing `TransformerXL` to train further.
        batch_size: Number of rows B in a batch, over all replicas.
        span: The `AttentionSpan` in training; `None` for that of `TrainConfig`.
        eval_batch_size: Number of rows in evaluations; `None` for `batch_size`.
        eval_span: The `AttentionSpan` in evaluations; `None` for `span`.
        seed: Seed of the initial weights and the dropout masks; `None` for a random one.
        remat: Whether to use gradient checkpointing; see `TransformerXL`.

    Call arguments:
        inputs: The ids, (B, T) integers in [0, V); or a dict of `ids` and `document_starts`,
            (B, T) bool, true where a token begins a document, which sees nothing before it.
        training: Whether to apply dropout and use the memory of training.

    Returns:
        The last hidden states, (B, T, D), for `backbone.nll` and `backbone.log_probs`. `predict`
        returns log p of every next token in nats, (n, T, V) float32.

    Raises:
        UserError: If a batch size is not positive or not divisible by the number of replicas, if a
            batch has another size, if an argument has no effect, or if the model is quantized.

    >>> from txl_tf.config import ModelConfig
    >>> config = ModelConfig(n_token=11, n_layer=1, d_model=6, d_embed=6, n_head=2, d_head=3,
    ...                      d_inner=7)
    >>> lm = CausalLM(config, batch_size=2, span=AttentionSpan(mem_len=5))
    >>> lm.compile("adam")
    >>> segments = Segments([i % 11 for i in range(60)], batch_size=2, tgt_len=4)
    >>> history = lm.fit(segments, epochs=2, verbose=0).history
    >>> sorted(history)
    ['bits', 'loss', 'nats', 'perplexity']
    """

    def __init__(
        self,
        config: ModelConfig | TransformerXL,
        *,
        batch_size: int,
        span: AttentionSpan | None = None,
        eval_batch_size: int | None = None,
        eval_span: AttentionSpan | None = None,
        seed: int | None = None,
        remat: bool = False,
        name: str = "causal_lm",
        **kwargs: Any,
    ):
        batch_size = check_integer("batch_size", batch_size, 1)
        if eval_batch_size is not None:
            eval_batch_size = check_integer("eval_batch_size", eval_batch_size, 1)
        if isinstance(config, TransformerXL):
            if seed is not None or remat or "dtype" in kwargs:
                raise UserError("`seed`, `remat` and `dtype` must be set in the TransformerXL")
            check_trainable(config)
            super().__init__(name=name, dtype=config.dtype_policy, **kwargs)
            self.backbone = config
        else:
            super().__init__(name=name, **kwargs)
            self.backbone = TransformerXL(config, seed=seed, remat=remat, dtype=self.dtype_policy)
        self.batch_size = batch_size
        self.span = span or TrainConfig().span
        self.eval_batch_size = eval_batch_size or batch_size
        self.eval_span = eval_span or self.span
        self._memory = self._make_memory("memory", self.batch_size, self.span)
        self._eval_memory = self._make_memory("eval_memory", self.eval_batch_size, self.eval_span)
        counter = {"initializer": "zeros", "shape": (), "dtype": "int32", "trainable": False}
        # The number of segments read in training, and how many of them were read before the epoch
        # that `BackupAndRestore` saves.
        self.n_read = keras.Variable(**counter, name="n_read", aggregation="only_first_replica")
        self.n_before = keras.Variable(**counter, name="n_before", aggregation="only_first_replica")
        self._token_losses = [
            keras.metrics.Mean(name="nats"),
            Bits(name="bits"),
            Perplexity(name="perplexity"),
        ]
        self._predicts = False
        self._lengths: dict[str, int | None] = {}  # T, by the function that Keras has traced
        self.built = True

    def _make_memory(self, name: str, batch_size: int, span: AttentionSpan) -> list[keras.Variable]:
        """Returns an empty memory as variables; each replica holds its own rows."""
        _, n_replicas = find_replica()
        if batch_size % n_replicas:
            raise UserError(
                "the batch size must be divisible by the number of replicas. "
                f"Received: {batch_size} rows, {n_replicas} replicas"
            )
        memory = self.backbone.initial_memory(batch_size // n_replicas, span.mem_len, True)
        own = {"aggregation": "none", "synchronization": "on_read"}
        return [
            keras.Variable(
                states, dtype=states.dtype, trainable=False, name=f"{name}_{index}", **own
            )
            for index, states in enumerate(memory)
        ]

    @classmethod
    def from_preset(
        cls,
        preset: str,
        *,
        n_token: int | None = None,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> Self:
        """Returns a new model with the size, batch sizes and attention spans of a preset.

        Args:
            preset: The name of a preset, such as "demo".
            n_token: V, the size of the vocabulary; `None` for that of the preset.
            batch_size: The batch size B in training; `None` for that of the preset.
            **kwargs: Other arguments of the constructor.
        """
        settings = presets.get(preset)
        config = settings.model
        if n_token is not None:
            config = dataclasses.replace(config, n_token=n_token)
        spans = _list_spans(settings.training, settings.evaluation, batch_size)
        return cls(config, **spans | kwargs)

    @classmethod
    def from_run(
        cls,
        run: str | os.PathLike[str],
        *,
        checkpoint: str | int | None = None,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> Self:
        """Returns a model with the weights of a run, and an empty memory.

        On JAX, only weights in a file `model.safetensors` can be read; `to_run` and
        `LanguageModel.save(..., safetensors="float32")` write such files.

        Args:
            run: The run folder, or "pydoc", a small model that comes with the package.
            checkpoint: Which weights to read; see `txl_tf.load`.
            batch_size: The batch size B in training; `None` for that of the run.
            **kwargs: Other arguments of the constructor.
        """
        folder = find_pretrained(os.fspath(run))
        config = read_run_config(folder)
        spans = _list_spans(config.training, config.evaluation, batch_size)
        lm = cls(config.model, **spans | kwargs)
        path = find_checkpoint(folder, checkpoint)
        if is_weights_file(path):
            read_weights_file(lm.backbone, path)
            return lm
        check_backend()
        from txl_tf.runs.checkpoint import load_weights

        load_weights(lm.backbone, path)
        return lm

    def to_run(
        self,
        folder: str | os.PathLike[str],
        *,
        vocabulary: Vocabulary | None = None,
        evaluation: EvalConfig | None = None,
    ) -> None:
        """Writes the weights as a run, which `txl_tf.load` and all programs can read.

        Args:
            folder: A folder on this machine, which must be new or empty.
            vocabulary: The vocabulary of the ids; `None` if there is none.
            evaluation: The evaluation config of the run; `None` for one with `eval_span` and
                `eval_batch_size`.

        Raises:
            UserError: If the folder is not empty or cannot be written, or the vocabulary is not
                that of the model.
        """
        model = self.backbone.config
        check_size(vocabulary, model.n_token)

        def choose_lengths(default: int, span: AttentionSpan) -> dict[str, Any]:
            # A table of positions limits how much is read at once.
            longest = model.n_positions - span.mem_len if model.n_positions else default
            return {"tgt_len": max(min(default, longest), 1), **dataclasses.asdict(span)}

        if evaluation is None:
            lengths = choose_lengths(EvalConfig.tgt_len, self.eval_span)
            evaluation = EvalConfig(eval_batch_size=self.eval_batch_size, **lengths)
        lengths = choose_lengths(TrainConfig.tgt_len, self.span)
        training = TrainConfig(train_batch_size=self.batch_size, **lengths)
        config = RunConfig("unknown", model, training, evaluation)
        with write_aside(os.fspath(folder)) as aside:
            make_run_folder(aside, config, vocabulary)
            write_weights_file(self.backbone, os.path.join(aside, WEIGHTS_NAME), step=0)

    @staticmethod
    def make_optimizer(training: TrainConfig | str) -> keras.optimizers.Optimizer:
        """Returns the optimizer of a training config, with its schedule, clipping and weight decay.

        Args:
            training: A `TrainConfig`, or the name of a preset.

        Raises:
            UserError: If `fit` does not support some settings of the config. The message names
                them.
        """
        if isinstance(training, str):
            training = presets.get(training).training
        return ConfigOptimizer(training)

    def compile(
        self,
        optimizer: Any = "adam",
        loss: None = None,
        metrics: None = None,
        weighted_metrics: None = None,
        loss_weights: None = None,
        **kwargs: Any,
    ) -> None:
        """Sets the optimizer; the model defines its own loss and metrics.

        Args:
            optimizer: A Keras optimizer, such as one from `make_optimizer`.
            loss: Must be `None`.
            metrics: Must be `None`.
            weighted_metrics: Must be `None`.
            loss_weights: Must be `None`.
            **kwargs: Other arguments of `keras.Model.compile`, such as `steps_per_execution`.

        Raises:
            UserError: If a loss or metrics are given.
        """
        if any(x is not None for x in (loss, metrics, weighted_metrics, loss_weights)):
            raise UserError("`compile` takes neither a loss nor metrics: the model has its own")
        super().compile(optimizer=optimizer, **kwargs)

    def compile_from_config(self, config: dict[str, Any]) -> None:
        # Keras does not call a `compile` that a subclass overrides.
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        *,
        shuffle: bool = False,
        **kwargs: Any,
    ) -> keras.callbacks.History:
        """Trains the model, like `keras.Model.fit`.

        With `keras.callbacks.BackupAndRestore(..., save_freq=N)`, training on `Segments` that was
        killed within an epoch continues at the next segment, with its memory.

        Args:
            x: `Segments`, or other data in the same order: a `keras.utils.PyDataset`, a
                `tf.data.Dataset`, or an array (with `y`) in which rows i B to (i + 1) B are batch
                i.
            y: The targets, if `x` is an array.
            batch_size: If given, must be that of the model.
            epochs: The number of epochs.
            verbose: How much is printed; see `keras.Model.fit`.
            callbacks: Keras callbacks.
            shuffle: Must be `False`, which, unlike in Keras, is the default.
            **kwargs: Other arguments of `keras.Model.fit`.

        Raises:
            UserError: If `shuffle` or `validation_split` is given, batches have another size, or
                the ids of `Segments` or arrays are not in [0, V), or targets are missing or not
                integers.
        """
        if shuffle or kwargs.get("validation_split"):
            raise UserError(f"`fit` takes neither `shuffle` nor `validation_split`: {LANES}")
        kwargs |= {"epochs": epochs, "verbose": verbose}
        kwargs["batch_size"] = self._check_batches("train", x, y, batch_size)
        valid = kwargs.get("validation_data")
        if valid is not None:
            valid_x, valid_y = (*valid, None)[:2] if isinstance(valid, tuple) else (valid, None)
            valid_size = kwargs.get("validation_batch_size")
            self._check_batches("test", valid_x, valid_y, valid_size)
            # Without one, Keras evaluates with the batch size of training.
            kwargs["validation_batch_size"] = self.eval_batch_size
        callbacks = keras.tree.flatten(callbacks or [])
        backups = [x for x in callbacks if isinstance(x, keras.callbacks.BackupAndRestore)]
        if not backups:
            return super().fit(x, y, callbacks=callbacks, shuffle=False, **kwargs)
        # A restored run may begin in the middle of an epoch.
        self.n_before.assign(read_count(self.n_read))
        segments = x if isinstance(x, Segments) and not kwargs.get("steps_per_epoch") else None
        resume = Resume(
            segments,
            backups,
            initial_epoch=kwargs.get("initial_epoch", 0),
            has_steps=bool(kwargs.get("steps_per_epoch")),
        )
        callbacks = [EndEpochs(), *callbacks, resume]
        try:
            with warnings.catch_warnings():
                if segments is not None:  # its first epoch has fewer segments than the others
                    warnings.filterwarnings("ignore", "Your input ran out of data", UserWarning)
                return super().fit(x, y, callbacks=callbacks, shuffle=False, **kwargs)
        finally:
            self._initial_epoch = None  # otherwise Keras would start the next `fit` there, too
            if segments is not None:
                segments.first = 0

    def _check_batches(self, use: str, x: Any, y: Any, batch_size: int | None) -> int | None:
        """Checks the data of Keras' function "train", "test" or "predict"; see `check_batches`."""
        n_rows = self.batch_size if use == "train" else self.eval_batch_size
        check_ids(x, self.backbone.config.n_token)
        check_ids(y, self.backbone.config.n_token)
        size, tgt_len = check_batches(x, batch_size, n_rows)
        if self._lengths.setdefault(use, tgt_len) != tgt_len:
            # For a second length, TensorFlow would trace a function of any length.
            setattr(self, f"{use}_function", None)
            self._lengths[use] = tgt_len
        return size

    def evaluate(
        self, x: Any = None, y: Any = None, batch_size: int | None = None, **kwargs: Any
    ) -> Any:
        """Evaluates the model, starting with an empty memory; see `keras.Model.evaluate`.

        `nats`, `bits` and `perplexity` are means over tokens; `loss` is a mean over batches.
        """
        batch_size = self._check_batches("test", x, y, batch_size)
        self._clear(self._eval_memory)
        return super().evaluate(x, y, batch_size, **kwargs)

    def predict(self, x: Any, batch_size: int | None = None, **kwargs: Any) -> Any:
        """Returns log p of every next token in nats, (n, T, V) float32.

        It starts with an empty memory. Rows i B to (i + 1) B of the result are those of batch i;
        see `keras.Model.predict`.
        """
        batch_size = self._check_batches("predict", x, None, batch_size)
        self._clear(self._eval_memory)
        with self._predicting():
            return super().predict(x, batch_size, **kwargs)

    def train_on_batch(self, x: Any, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        self._check_batches("train", x, y, None)
        return super().train_on_batch(x, y, *args, **kwargs)

    def test_on_batch(self, x: Any, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        self._check_batches("test", x, y, None)
        return super().test_on_batch(x, y, *args, **kwargs)

    def predict_on_batch(self, x: Any) -> Any:
        """Returns log p of every next token in nats, (B, T, V) float32, and keeps the memory."""
        self._check_batches("predict", x, None, None)
        with self._predicting():
            return super().predict_on_batch(x)

    @contextlib.contextmanager
    def _predicting(self) -> Iterator[None]:
        """Makes `call` return log-probabilities while Keras traces it."""
        self._predicts = True
        try:
            yield
        finally:
            self._predicts = False

    def reset_states(self) -> None:
        """Empties the memory of training and that of evaluation."""
        self._clear(self._memory)
        self._clear(self._eval_memory)

    def _clear(self, memory: list[keras.Variable]) -> None:
        for variable in memory:
            write_rows(self, variable, np.zeros_like(read_rows(self, variable)))

    def call(self, inputs: Any, training: bool = False) -> Any:
        inputs = inputs if isinstance(inputs, dict) else {"ids": inputs}
        memory, span = self._eval_memory, self.eval_span
        n_rows = self.eval_batch_size
        replica, n_replicas = find_replica()
        if training:
            memory, span, n_rows = self._memory, self.span, self.batch_size
            self.backbone.set_dropout_seed(self.n_read, stream=replica)
            self.n_read.assign(self.n_read + 1)
        shape = (n_rows // n_replicas, None)
        rows = {name: _fix_shape(name, x, shape) for name, x in inputs.items()}
        if "document_starts" not in rows:  # empty states are attended to, as in the release
            memory = memory[:-1]
        states = keras.tree.map_structure(lambda variable: variable.value, tuple(memory))
        hidden, states = self.backbone(memory=states, span=span, training=training, **rows)
        for variable, state in zip(memory, states, strict=True):
            variable.assign(state)
        return self.backbone.log_probs(hidden) if self._predicts else hidden

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        shape = tuple(y_pred.shape[:2])
        if y is None:
            raise UserError("targets must be given: the id that follows each id of the data")
        targets = _fix_shape("targets", y, shape)
        if "int" not in keras.backend.standardize_dtype(targets.dtype):
            raise UserError(f"`targets` must be integers. Received: dtype={targets.dtype}")
        nats = self.backbone.nll(y_pred, targets)  # (B, T)
        if sample_weight is None:
            sample_weight = ops.ones(shape)
        weights = ops.cast(_fix_shape("sample weights", sample_weight, shape), nats.dtype)
        for metric in self._token_losses:
            metric.update_state(nats, weights)
        # Keras adds the gradients of the replicas.
        return ops.mean(nats * weights) / find_replica()[1]

    export = refuse(f"a `{{}}` must be exported as a run: {_BY_RUN}.export(FOLDER)")
    quantize = refuse(f"a `{{}}` must be quantized as a run: {_BY_RUN}.quantize('int8')")

    def get_weights(self) -> list[np.ndarray]:
        # Each replica has its own rows of the memory.
        return [
            read_rows(self, x) if self._is_memory(x) else ops.convert_to_numpy(x)
            for x in self.weights
        ]

    def set_weights(self, weights: Sequence[np.ndarray]) -> None:
        for variable, value in zip(self.weights, weights, strict=True):
            if self._is_memory(variable):
                write_rows(self, variable, value)
            else:
                variable.assign(value)

    def _is_memory(self, variable: keras.Variable) -> bool:
        return any(variable is x for x in (*self._memory, *self._eval_memory))

    def save_own_variables(self, store: Any) -> None:
        for variable in self._memory:
            store[variable.name] = read_rows(self, variable)
        store["position"] = np.array([read_count(self.n_read), read_count(self.n_before)])

    def load_own_variables(self, store: Any) -> None:
        for variable in self._memory:
            rows, wanted = store[variable.name], (self.batch_size, *variable.shape[1:])
            if rows.shape != wanted:
                found = f"The memory in the file is {rows.shape}, that of the model {wanted}"
                warnings.warn(f"{found}: it is emptied.", stacklevel=2)
                self._clear(self._memory)
                break
            write_rows(self, variable, rows)
        n_read, n_before = store["position"]
        self.n_read.assign(n_read)
        self.n_before.assign(n_before)

    def get_config(self) -> dict[str, Any]:
        return {
            "backbone": self.backbone.get_config(),
            "batch_size": self.batch_size,
            "span": dataclasses.asdict(self.span),
            "eval_batch_size": self.eval_batch_size,
            "eval_span": dataclasses.asdict(self.eval_span),
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        fields = dict(config)
        backbone = TransformerXL.from_config(fields.pop("backbone"))
        fields |= {name: AttentionSpan(**fields[name]) for name in ("span", "eval_span")}
        return cls(backbone, **fields)


def _list_spans(
    training: TrainConfig, evaluation: EvalConfig, batch_size: int | None
) -> dict[str, Any]:
    return {
        "batch_size": training.train_batch_size if batch_size is None else batch_size,
        "span": training.span,
        "eval_batch_size": evaluation.eval_batch_size,
        "eval_span": evaluation.span,
    }


def _fix_shape(name: str, x: Any, shape: tuple[int | None, ...]) -> Any:
    """Returns a tensor (B, T) with a static shape; `None` in `shape` stands for any size."""
    fixed = [wanted or found for found, wanted in zip(x.shape, shape, strict=False)]
    if len(x.shape) != 2 or differ(x.shape, shape) or None in fixed:
        wanted = f"({shape[0]}, {shape[1] or 'T'})"
        raise UserError(f"`{name}` must be {wanted}. Received: {tuple(x.shape)}; {LANES}")
    return ops.reshape(x, fixed)
