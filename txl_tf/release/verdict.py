"""The results of a comparison with the reference, as checks, a table and a verdict."""

from collections.abc import Iterator
from typing import NamedTuple

from txl_tf.config import AttentionSpan

LAYER_TERMS = ("memory", "content", "position", "mask", "output", "LayerNorm", "feed-forward")
EMBEDDING, SOFTMAX, END_TO_END = "embedding bin", "softmax bin", "end to end"
# The usual mistakes in each term, as seen in ports of the release.
HINTS = {
    "memory": "the memory holds the inputs of the layer, not its outputs: the last M of them, over "
    "all segments; before the first segment it is zeros, which are attended to",
    "content": "the columns of the qkv kernel are q, k, v in this order, each head by head; the "
    "content bias u is r_w_bias, the position bias v is r_r_bias; scores are divided by sqrt(H)",
    "position": "all sines come first, then all cosines, not interleaved; the first row of the "
    "table is the largest distance; clamp_len; the left shift; the position bias v is r_r_bias",
    "mask": "query i sees key j if j <= i + M, and with same_length only if j >= i, which leaves "
    "M + 1 keys, not M; the zeros before the first segment are seen",
    "output": "the columns of the values in the qkv kernel; the output projection has no bias; the "
    "residual is added before LayerNorm",
    "LayerNorm": "its epsilon is 1e-12 in the release; it comes after the residual; gamma and beta",
    "feed-forward": "the activation is relu, between layer_1 and layer_2; both have biases",
    EMBEDDING: "embeddings are multiplied by sqrt(D); each bin has a table and a projection of its "
    "own, from E // div_val**i to D; bins begin at the cutoffs",
    SOFTMAX: "bin i has row i - 1 of cluster_W and cluster_b; the projection is the embedding's "
    "(proj_share_all_but_first) or the bin's own, applied as h P^T; the bin's bias",
    END_TO_END: "every term agrees if given the inputs of the reference, so the output of a layer "
    "does not reach the next layer, or the memory does not reach the next segment",
}


class Check(NamedTuple):
    """One comparison of the model with the reference."""

    span: AttentionSpan
    segment: int
    layer: int | None  # `None` outside of the layers
    term: str  # one of `HINTS`; embedding and softmax are followed by the number of a bin
    quantity: str  # the name of the compared values
    difference: float  # relative to the largest value of the reference
    agrees: bool  # whether float32 explains the difference

    @property
    def place(self) -> str:
        """The layer and the term, in words."""
        return self.term if self.layer is None else f"layer {self.layer}, {self.term}"


def find_first(checks: list[Check]) -> Check | None:
    """Returns the first check in the order of the computation that does not agree, if any."""
    return next((check for check in checks if not check.agrees), None)


def describe_verdict(checks: list[Check]) -> Iterator[str]:
    """Yields lines that say whether all terms agree, or where they first differ, and why."""
    first = find_first(checks)
    if first is None:
        largest = max(check.difference for check in checks)
        yield f"All terms agree: the largest difference is {largest:.1e}"
        return
    yield f"They first differ at {first.place}: {first.quantity}, by {first.difference:.1e}"
    yield f"  in segment {first.segment}, {describe_attention_span(first.span)}."
    yield f"  Usual causes: {HINTS[first.term.rstrip('0123456789 ')]}."


def describe_attention_span(span: AttentionSpan) -> str:
    """Returns an attention span in words."""
    clamp = f"clamp_len {span.clamp_len}" if span.clamp_len > 0 else "no clamp_len"
    return f"mem_len {span.mem_len}, {'same_length' if span.same_length else 'plain'}, {clamp}"


def format_table(checks: list[Check]) -> Iterator[str]:
    """Yields a table of the largest difference of each layer and term; `!` marks disagreement."""
    width = max(map(len, LAYER_TERMS)) + 1
    found: dict[tuple[int | None, str], list[Check]] = {}
    for check in checks:
        found.setdefault((check.layer, check.term), []).append(check)

    def format_cell(layer: int | None, term: str) -> str:
        of_place = found[layer, term]
        mark = " " if all(check.agrees for check in of_place) else "!"
        return f"{max(check.difference for check in of_place):.1e}".rjust(width - 1) + mark

    def format_outside(kind: str) -> Iterator[str]:
        terms = [term for layer, term in found if layer is None and term.startswith(kind)]
        return (f"{term:<15}{format_cell(None, term)}" for term in terms)

    yield from format_outside(EMBEDDING)
    yield " " * 15 + "".join(term.rjust(width - 1) + " " for term in LAYER_TERMS)
    for layer in sorted({check.layer for check in checks if check.layer is not None}):
        yield f"layer {layer:<9}" + "".join(format_cell(layer, term) for term in LAYER_TERMS)
    yield from format_outside(SOFTMAX)
    yield from format_outside(END_TO_END)
