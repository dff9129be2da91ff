"""What fixes the weights of a model; import it from `txl_tf.config`, with the other configs."""

import dataclasses
import itertools
from typing import NamedTuple

from txl_tf.config.base import Config

INITIALIZERS = ("normal", "uniform")
# Far beyond what anybody trains: a value above is a slip, and would run out of time or memory.
MAX_LAYERS = 1000
MAX_WIDTH = 2**20
# Fields that only training depends on, not what is computed with trained weights.
TRAINED_WITH = ("dropout", "dropatt", "init", "init_std", "proj_init_std", "init_range")
# Fields on which no shape of a weight depends.
SHAPELESS = (*TRAINED_WITH, "layer_norm_epsilon")


class ParameterCounts(NamedTuple):
    """The trainable parameters of a model by part.

    Args:
        embedding: tables and projections of the embedding; the softmax shares the tables.
        layers: decoder layers, with the biases u and v.
        softmax: what it has of its own: biases, clusters, projections.
    """

    embedding: int
    layers: int
    softmax: int


@dataclasses.dataclass(frozen=True)
class ModelConfig(Config):
    """What fixes the weights of a Transformer-XL, and its dropout and initialisation.

    Args:
        n_token: vocabulary size V.
        n_layer: number of decoder layers L.
        d_model: width of the hidden states D; even, for the sinusoids.
        d_embed: width of the embedding of the first bin E.
        n_head: attention heads N a layer.
        d_head: width H of a head.
        d_inner: width of the feed-forward layer.
        cutoffs: ids at which the second and later bins of the adaptive embedding and softmax
            begin, ascending, without 0 and V; empty for one bin.
        div_val: bin i has embeddings of width E // div_val**i.
        untie_r: each layer has biases u and v of its own (else one pair serves all layers).
        proj_share_all_but_first: the softmax uses the embedding's projections for all bins but
            the first.
        proj_same_dim: bins whose width is D have a projection too (with `div_val` > 1).
        dropout: rate of every dropout but the attention weights'.
        dropatt: rate of the dropout on the attention weights.
        init: "normal" or "uniform".
        init_std: standard deviation of the weights with "normal".
        proj_init_std: the same for the projections of the embedding and the softmax.
        init_range: weights lie in (-init_range, init_range) with "uniform".
        layer_norm_epsilon: added to the variance by LayerNorm; 1e-12 in the 2019 release, 1e-5 in
            Hugging Face transformers.

    Raises:
        UserError: a value is out of its range; the message names it.

    >>> ModelConfig(n_token=27, n_layer=12, d_model=512, d_embed=512, n_head=8, d_head=64,
    ...             d_inner=2048).count_parameters()
    40964635
    """

    n_token: int
    n_layer: int = 6
    d_model: int = 500
    d_embed: int = 500
    n_head: int = 10
    d_head: int = 50
    d_inner: int = 1000
    cutoffs: tuple[int, ...] = ()
    div_val: int = 1
    untie_r: bool = False
    proj_share_all_but_first: bool = False
    proj_same_dim: bool = True
    dropout: float = 0.1
    dropatt: float = 0.1
    init: str = "normal"
    init_std: float = 0.02
    proj_init_std: float = 0.01
    init_range: float = 0.1
    layer_norm_epsilon: float = 1e-12

    def __post_init__(self) -> None:
        if isinstance(self.cutoffs, list):  # as JSON has them
            object.__setattr__(self, "cutoffs", tuple(self.cutoffs))
        self._check_integers(1, "n_token", "div_val")
        self._check_integers(1, "n_layer", maximum=MAX_LAYERS)
        widths = ("d_model", "d_embed", "n_head", "d_head", "d_inner")
        self._check_integers(1, *widths, maximum=MAX_WIDTH)
        self._check_booleans("untie_r", "proj_share_all_but_first", "proj_same_dim")
        self._check(self.d_model % 2 == 0, "`d_model` must be divisible by 2", "d_model")
        is_integers = isinstance(self.cutoffs, tuple) and all(
            type(cutoff) is int for cutoff in self.cutoffs
        )
        self._check(
            is_integers and all(low < high for low, high in self.bins),
            "`cutoffs` must be ascending ids between 0 and `n_token`",
            "cutoffs",
            "n_token",
        )
        self._check(
            self.div_val ** len(self.cutoffs) <= self.d_embed,
            "`div_val` must leave every bin an embedding of width 1 or more",
            "div_val",
            "cutoffs",
            "d_embed",
        )
        positive = ("init_std", "proj_init_std", "init_range", "layer_norm_epsilon")
        self._check_reals("dropout", "dropatt", *positive)
        for name in ("dropout", "dropatt"):
            self._check(0 <= getattr(self, name) < 1, f"`{name}` must be in [0, 1)", name)
        for name in positive:
            self._check(getattr(self, name) > 0, f"`{name}` must be positive", name)
        self._check_choice("init", INITIALIZERS)

    @property
    def bins(self) -> tuple[tuple[int, int], ...]:
        """First id and end id of each bin of the adaptive embedding and softmax."""
        bounds = (0, *self.cutoffs, self.n_token)
        return tuple(itertools.pairwise(bounds))

    def bin_width(self, index: int) -> int:
        """Returns the embedding width E_i of a bin."""
        return self.d_embed // self.div_val**index

    def has_embedding_projection(self, index: int) -> bool:
        """Tells whether bin `index` of the embedding has a projection [E_i, D].

        With `div_val` = 1 there is one table and at most one projection: that of bin 0.
        """
        if self.div_val == 1:
            return index == 0 and self.d_embed != self.d_model
        return self.bin_width(index) != self.d_model or self.proj_same_dim

    def has_softmax_projection(self, index: int) -> bool:
        """Tells whether bin `index` of the softmax has a projection of its own [E_i, D]."""
        if not self.cutoffs or (self.proj_share_all_but_first and index > 0):
            return False  # the embedding's serves
        needs_none = self.div_val == 1 or not self.proj_same_dim
        return not (needs_none and self.bin_width(index) == self.d_model)

    def count_parameters(self) -> int:
        """Returns the number of trainable parameters, without making them."""
        return sum(self.count_parameters_by_part())

    def count_parameters_by_part(self) -> ParameterCounts:
        """Returns the trainable parameters of embedding, layers and softmax."""
        n_bins = len(self.bins)
        d_heads = self.n_head * self.d_head
        attention = 5 * self.d_model * d_heads + 2 * self.d_model  # q k v r o, LayerNorm
        feed_forward = 2 * self.d_model * self.d_inner + self.d_inner + 3 * self.d_model
        biases_u_v = 2 * d_heads * (self.n_layer if self.untie_r else 1)
        tables = sum(
            (high - low) * self.bin_width(index) for index, (low, high) in enumerate(self.bins)
        )
        of_embedding, of_softmax = (
            sum(self.bin_width(k) * self.d_model for k in range(n_bins) if has_projection(k))
            for has_projection in (self.has_embedding_projection, self.has_softmax_projection)
        )
        clusters = (n_bins - 1) * (self.d_embed + 1)
        return ParameterCounts(
            embedding=tables + of_embedding,
            layers=self.n_layer * (attention + feed_forward) + biases_u_v,
            softmax=of_softmax + clusters + self.n_token,
        )
