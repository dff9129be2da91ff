"""The properties of each position encoding, including the name of the class that computes it.

The classes need Keras; configs do not.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

ModelConfig = Any  # `txl_tf.config.ModelConfig`, which imports this file


class EncodingFacts(NamedTuple):
    """The properties of a position encoding."""

    place: str  # module and name of its class
    text: str  # description for `--helpfull`
    # The shapes of its weights by name, except for those in the layers. Names of biases end with
    # "_bias", because weight decay does not apply to them.
    list_weights: Callable[[ModelConfig], dict[str, tuple[int, ...]]] = lambda model: {}
    projects_positions: bool = False  # each attention layer has a kernel W_{k,R}
    has_table: bool = False  # it has a learned row for each of `n_positions` positions
    encodes_places: bool = False  # within the segment, so there can be no memory


def _list_biases(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    shape = (*[model.n_layer] * model.untie_r, model.n_head, model.d_head)
    return {"content_bias": shape, "position_bias": shape}


def _list_distance_table(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    return {"distance_table": (model.n_layer, model.n_positions, model.n_head, model.d_head)}


def _list_biased_table(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    return {
        "content_bias": (model.n_layer, model.n_head, model.d_head),
        **_list_distance_table(model),
        "distance_bias": (model.n_layer, model.n_positions, model.n_head),
    }


_LAB = "txl_tf.lab.encodings"  # for the paper's ablations
ENCODINGS = {
    "relative": EncodingFacts(
        "txl_tf.layers.encodings:RelativeEncoding",
        "the paper's",
        _list_biases,
        projects_positions=True,
    ),
    "shaw": EncodingFacts(
        f"{_LAB}:ShawEncoding", "Shaw et al. 2018", _list_distance_table, has_table=True
    ),
    "shaw_biased": EncodingFacts(
        f"{_LAB}:BiasedShawEncoding",
        "the same with biases, as in the 2019 PyTorch code",
        _list_biased_table,
        has_table=True,
    ),
    "sinusoid": EncodingFacts(
        f"{_LAB}:SinusoidEncoding", "Vaswani et al. 2017, without memory", encodes_places=True
    ),
    "learned": EncodingFacts(
        f"{_LAB}:LearnedEncoding",
        "Al-Rfou et al. 2018, without memory",
        lambda model: {"place_table": (model.n_layer, model.n_positions, model.d_model)},
        has_table=True,
        encodes_places=True,
    ),
}
