"""Reads the TensorFlow 1 checkpoints of the 2019 release."""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import keras
import numpy as np
import tensorflow as tf

from txl_tf.config import ModelConfig
from txl_tf.errors import UserError, explain_errors
from txl_tf.model import TransformerXL
from txl_tf.runs.checkpoint_reader import RELEASE_SCOPE as SCOPE

GLOBAL_STEP = "global_step"
SLOTS = ("Adam", "Adam_1")  # first and second moment
# What TensorFlow raises at files that are no checkpoints.
_UNREADABLE = (IndexError, TypeError, ValueError, RuntimeError, tf.errors.OpError)
# What a training checkpoint holds beside the weights.
OPTIMIZER_STATE = re.compile(r".*/Adam(_1)?$|beta[12]_power$|global_step$")


class Entry(NamedTuple):
    """One weight: where the release keeps it, where it goes, and how it is changed.

    Args:
        source: name in the checkpoint, without `transformer/`.
        target: variable of the model.
        transform: from the source's array to the target's.
    """

    source: str
    target: Any
    transform: Callable[[np.ndarray], np.ndarray] = np.asarray


def list_entries(model: TransformerXL) -> Iterator[Entry]:
    """Yields where every weight of a model comes from: the whole mapping of the release."""
    yield Entry("r_w_bias", model.content_bias)
    yield Entry("r_r_bias", model.position_bias)
    yield from _list_embedding_entries(model)
    for index, layer in enumerate(model.decoder_layers):
        scope = f"layer_{index}/rel_attn"
        yield Entry(f"{scope}/qkv/kernel", layer.attention.qkv_kernel)
        yield Entry(f"{scope}/r/kernel", layer.attention.r_kernel)
        yield Entry(f"{scope}/o/kernel", layer.attention.o_kernel)
        yield Entry(f"{scope}/LayerNorm/gamma", layer.attention_norm.gamma)
        yield Entry(f"{scope}/LayerNorm/beta", layer.attention_norm.beta)
        scope = f"layer_{index}/ff"
        yield Entry(f"{scope}/layer_1/kernel", layer.feed_forward.inner.kernel)
        yield Entry(f"{scope}/layer_1/bias", layer.feed_forward.inner.bias)
        yield Entry(f"{scope}/layer_2/kernel", layer.feed_forward.outer.kernel)
        yield Entry(f"{scope}/layer_2/bias", layer.feed_forward.outer.bias)
        yield Entry(f"{scope}/LayerNorm/gamma", layer.feed_forward_norm.gamma)
        yield Entry(f"{scope}/LayerNorm/beta", layer.feed_forward_norm.beta)
    yield from _list_softmax_entries(model)


def _list_embedding_entries(model: TransformerXL) -> Iterator[Entry]:
    embedding = model.embedding
    pairs = zip(embedding.tables, embedding.projections, strict=True)
    for index, (table, projection) in enumerate(pairs):
        scope = "adaptive_embed" + (f"/cutoff_{index}" if model.config.div_val > 1 else "")
        yield Entry(f"{scope}/lookup_table", table)
        if projection is not None:
            yield Entry(f"{scope}/proj_W", projection)


def _list_softmax_entries(model: TransformerXL) -> Iterator[Entry]:
    softmax, scope = model.softmax, "adaptive_softmax"
    if not model.config.cutoffs:
        yield Entry(f"{scope}/bias", softmax.biases[0])
        return
    yield Entry(f"{scope}/cutoff_0/cluster_W", softmax.cluster_weight)
    yield Entry(f"{scope}/cutoff_0/cluster_b", softmax.cluster_bias)
    for index, (bias, projection) in enumerate(
        zip(softmax.biases, softmax.projections, strict=True)
    ):
        yield Entry(f"{scope}/cutoff_{index}/b", bias)
        if projection is not None:
            yield Entry(f"{scope}/cutoff_{index}/proj", projection)


def load_model(path: str, config: ModelConfig) -> TransformerXL:
    """Makes a model with the weights of a checkpoint of the 2019 release.

    Args:
        path: of the checkpoint without `.index`, as in "model.ckpt-0".
        config: the model's; it must agree with the checkpoint in every weight.

    Returns:
        The model, with every weight of the checkpoint; optimizer slots are left out.

    Raises:
        UserError: the checkpoint cannot be read, lacks a weight of the model, holds one that
            the model has no place for, or one of another shape; each is named.
    """
    with open_release_checkpoint(path) as reader:
        model = TransformerXL(config)
        entries = list(list_entries(model))
        needed = {SCOPE + entry.source: list(entry.target.shape) for entry in entries}
        check_shapes(path, needed, read_weight_shapes(reader))
        for source, target, transform in entries:
            target.assign(transform(reader.get_tensor(SCOPE + source)))
    return model


def list_other_weights(path: str, model: TransformerXL) -> list[str]:
    """Returns the names of a checkpoint's weights whose bits a model of its config has not."""
    with open_release_checkpoint(path) as reader:
        return [
            SCOPE + source
            for source, target, transform in list_entries(model)
            if not np.array_equal(
                transform(reader.get_tensor(SCOPE + source)), target.numpy(), equal_nan=True
            )
        ]


def read_weight_shapes(reader: Any) -> dict[str, list[int]]:
    """Returns the shapes of what an open checkpoint holds, but for the optimizer's state."""
    shapes = reader.get_variable_to_shape_map()
    return {name: shape for name, shape in shapes.items() if not OPTIMIZER_STATE.match(name)}


def read_global_step(path: str) -> int:
    """Returns how many steps made a checkpoint: what it says, else its name, else 0."""
    with open_release_checkpoint(path) as reader:
        if reader.get_variable_to_shape_map().get(GLOBAL_STEP) == []:
            return int(reader.get_tensor(GLOBAL_STEP))
    named = re.search(r"-(\d+)$", path)
    return int(named[1]) if named else 0


class AdamOptimizer(Protocol):
    """The part of an optimizer that a checkpoint of the release holds."""

    @property
    def iterations(self) -> keras.Variable:
        """The number of steps."""
        ...

    @property
    def slots(self) -> Sequence[Any]:
        """The `weight`, the `momentum` and the `velocity` of each weight, as attributes."""
        ...


def load_optimizer(path: str, model: TransformerXL, optimizer: AdamOptimizer) -> None:
    """Gives an optimizer the state that a training checkpoint of the release has.

    TensorFlow 1 keeps the powers of beta; here they are computed from the number of steps.

    Args:
        path: of the checkpoint without `.index`.
        model: with the checkpoint's config.
        optimizer: Adam, built for the model's trainable variables.

    Raises:
        UserError: the checkpoint cannot be read, or lacks a part of the state, which is named.
    """
    moments = {id(each.weight): (each.momentum, each.velocity) for each in optimizer.slots}
    with open_release_checkpoint(path) as reader:
        shapes = reader.get_variable_to_shape_map()
        for source, target, transform in list_entries(model):
            for slot, moment in zip(SLOTS, moments[id(target)], strict=True):
                name = f"{SCOPE}{source}/{slot}"
                if shapes.get(name) != list(target.shape):
                    raise UserError(
                        f"{path} does not hold the state of Adam: {name} is "
                        f"{shapes.get(name, 'missing')}, not {list(target.shape)}"
                    )
                moment.assign(transform(reader.get_tensor(name)))
        if shapes.get(GLOBAL_STEP) != []:
            raise UserError(f"{path} does not hold the state of Adam: {GLOBAL_STEP} is missing")
        optimizer.iterations.assign(int(reader.get_tensor(GLOBAL_STEP)))


@contextlib.contextmanager
def open_release_checkpoint(path: str) -> Iterator[Any]:
    """Opens a checkpoint, of V1 or V2 of the format, to read tensors by name.

    Raises:
        UserError: it cannot be read, now or while it is open.
    """
    with explain_errors(f"No TensorFlow checkpoint can be read at {path}", *_UNREADABLE):
        yield tf.train.load_checkpoint(path)


def escape(name: str) -> str:
    """Returns the start of a name in a file of others as plain characters of one line."""
    return name[:200].encode("unicode_escape").decode("ascii")


def check_shapes(
    path: str, needed: Mapping[str, list[int]], found: Mapping[str, list[int]]
) -> None:
    """Checks that what was saved is the weights of a model, no more and no less.

    Args:
        path: for the message.
        needed: shape of each weight of the model, by the name that it was saved under.
        found: shape of each that was saved.

    Raises:
        UserError: one is missing, has no place in the model or is of another shape; each is named.
    """
    faults = [f"{name} is missing" for name in sorted(needed.keys() - found.keys())]
    for name in sorted(found.keys() - needed.keys()):
        faults.append(f"{escape(name)} {found[name]} has no place in the model")
    for name, shape in needed.items():
        if name in found and found[name] != shape:
            faults.append(f"{name} is {found[name]}, the model needs {shape}")
    if faults:
        more = f" (and {len(faults) - 8} more)" if len(faults) > 8 else ""
        raise UserError(f"{path} does not fit the config: {'; '.join(faults[:8])}{more}")
