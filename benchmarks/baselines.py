"""What simple models make of a text, to stand beside a trained language model.

python -m benchmarks.baselines --data_dir data/pydoc --model_dir runs/demo

Two kinds: a count of what followed the last few symbols, and the compressor xz. Every figure is in
bits per symbol, as is the bpc of a model on the same records.
"""

import json
import lzma
import os
import sys
from pathlib import Path

import numpy as np
from absl import flags
from numpy.typing import NDArray

from txl_tf.cli.flags import define_flag
from txl_tf.cli.program import run_program
from txl_tf.data import open_records, read_ids
from txl_tf.errors import UserError

ORDERS = (0, 3, 5)  # symbols of context in the Witten-Bell models of the table


def witten_bell_bpc(
    train_ids: NDArray[np.integer],
    test_ids: NDArray[np.integer],
    order: int,
    n_symbols: int,
) -> float:
    """Measures a Witten-Bell smoothed model of `order` preceding symbols, in bits per symbol.

    The targets are `test_ids[1:]`, those of a language model that reads the same ids.

    Args:
        train_ids: 1-D integer array, the text to count in.
        test_ids: 1-D integer array of at least two ids, the text to predict.
        order: How many preceding symbols the model looks at, 0 or more.
        n_symbols: Size of the vocabulary; every id is in [0, n_symbols).

    Returns:
        The mean of -log2 p over the targets, in bits per symbol.

    Raises:
        ValueError: an argument is out of range, or n_symbols ** (order + 1) exceeds int64.

    Example:
        >>> text = np.array([0, 1] * 500)
        >>> round(witten_bell_bpc(text, text, order=0, n_symbols=2), 3)
        1.0
        >>> round(witten_bell_bpc(text, text, order=1, n_symbols=2), 3)
        0.001
    """
    if np.size(test_ids) < 2:
        raise ValueError(f"`test_ids` must hold at least 2 ids. Received: {np.size(test_ids)}")
    probabilities = predict_symbols(train_ids, test_ids, order, n_symbols)
    return float(-np.log2(probabilities[1:]).mean())


def predict_symbols(
    train_ids: NDArray[np.integer],
    test_ids: NDArray[np.integer],
    order: int,
    n_symbols: int,
) -> NDArray[np.float64]:
    """Computes the probability of every test symbol after the symbols before it.

    Interpolated Witten-Bell smoothing. With n(h, c) occurrences of symbol c after context h in the
    training text, N(h) their sum over c and T(h) the number of different c:

        p_k(c | h) = (n(h, c) + T(h) p_{k-1}(c | h')) / (N(h) + T(h))

    where h' is h without its oldest symbol, p_k = p_{k-1} after a context that training never met,
    and p_{-1} = 1 / n_symbols. The test text is never counted.

    No context reaches over the start of its text. Level k counts training symbols from position k
    on, so level 0 counts them all; test symbol i < order is given its p_i, which uses the i symbols
    that there are.

    Memory peaks at 4 int64 arrays of the length of the training text on docstrings at order 5,
    and at 12 on noise.

    Args:
        train_ids: 1-D integer array, the text to count in.
        test_ids: 1-D integer array, the text to predict.
        order: How many preceding symbols the model looks at, 0 or more.
        n_symbols: Size of the vocabulary; every id is in [0, n_symbols).

    Returns:
        float64 array of the shape of `test_ids`, every entry above 0.

    References:
        Witten and Bell (1991), The zero-frequency problem, IEEE Transactions on Information Theory
        37(4), method C; interpolated as in Chen and Goodman (1998), section 2.5.
    """
    _check_sizes(order, n_symbols)
    train_ids = _check_ids("train_ids", train_ids, n_symbols)
    test_ids = _check_ids("test_ids", test_ids, n_symbols)

    probabilities = np.full(len(test_ids), 1 / n_symbols)
    train_grams = test_grams = np.zeros(0, np.int64)
    for level in range(order + 1):
        if level >= min(len(train_ids), len(test_ids)):
            break  # one of the texts has no symbol with this much before it
        train_grams = _extend_grams(train_grams, train_ids, level, n_symbols)
        test_grams = _extend_grams(test_grams, test_ids, level, n_symbols)
        probabilities[level:] = _interpolate_level(
            probabilities[level:], train_grams, test_grams, n_symbols
        )
    return probabilities


def xz_bpc(train: bytes, test: bytes) -> float:
    """Measures what `xz -9` needs for a text once it has seen another, in bits per byte.

    That is the growth of the compressed training text when the test text is appended. All bytes of
    the test text count, the first included: a compressor gives no price of a single byte. xz looks
    back 64 MiB at this preset, so of a longer training text only the end helps.

    Args:
        train: The text to see first; may be empty.
        test: The text to compress, at least one byte.

    Returns:
        Bits per byte of `test`. xz rounds sizes up to 4 bytes, so a short text is priced coarsely.

    Raises:
        ValueError: `test` is empty.
    """
    if not test:
        raise ValueError("`test` must hold at least 1 byte. Received: 0")
    growth = len(lzma.compress(train + test, preset=9)) - len(lzma.compress(train, preset=9))
    return 8 * growth / len(test)


def measure_baselines(data_dir: str | os.PathLike[str], split: str = "test") -> dict[str, float]:
    """Measures every baseline on one split of a folder of records, trained on its training split.

    Args:
        data_dir: Folder of records with a vocabulary of bytes or characters.
        split: Name of the split to predict.

    Returns:
        Bits per symbol by name: `order-0`, `order-3`, `order-5` and `xz -9`.

    Raises:
        UserError: the vocabulary is too large for order 5, as one of words is.
    """
    vocabulary = open_records(data_dir).vocabulary
    _check_sizes(max(ORDERS), len(vocabulary))
    train_ids, test_ids = read_ids(data_dir, "train"), read_ids(data_dir, split)
    results = {
        f"order-{order}": witten_bell_bpc(train_ids, test_ids, order, len(vocabulary))
        for order in ORDERS
    }
    if vocabulary.level == "byte":
        train, test = vocabulary.decode_bytes(train_ids), vocabulary.decode_bytes(test_ids)
    else:
        train, test = vocabulary.decode(train_ids).encode(), vocabulary.decode(test_ids).encode()
    # A character may take several bytes in UTF-8; the table has one unit, bits per symbol.
    results["xz -9"] = xz_bpc(train, test) * len(test) / len(test_ids)
    return results


def _check_sizes(order: int, n_symbols: int) -> None:
    """Raises ValueError unless every run of `order` + 1 symbols has a number of its own."""
    if order < 0:
        raise ValueError(f"`order` must be at least 0. Received: order={order}")
    if n_symbols < 1:
        raise ValueError(f"`n_symbols` must be at least 1. Received: n_symbols={n_symbols}")
    # Python integers: the power must not overflow while it is checked.
    if int(n_symbols) ** (int(order) + 1) > np.iinfo(np.int64).max:
        raise UserError(
            f"`n_symbols` ** (`order` + 1) must fit in int64. "
            f"Received: n_symbols={n_symbols}, order={order}"
        )


def _check_ids(name: str, ids: NDArray[np.integer], n_symbols: int) -> NDArray[np.int64]:
    """Returns `ids` as int64, or raises ValueError unless they are a text of the vocabulary."""
    ids = np.asarray(ids)
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(
            f"`{name}` must be a 1-D integer array. Received: shape={ids.shape}, dtype={ids.dtype}"
        )
    if ids.size and not 0 <= ids.min() <= ids.max() < n_symbols:
        raise ValueError(
            f"`{name}` must lie in [0, `n_symbols`). "
            f"Received: {ids.min()} to {ids.max()}, n_symbols={n_symbols}"
        )
    return ids.astype(np.int64)


def _extend_grams(
    grams: NDArray[np.int64], ids: NDArray[np.int64], level: int, n_symbols: int
) -> NDArray[np.int64]:
    """Numbers each run of `level` + 1 symbols, given the numbers of the runs one shorter.

    A number is the run read in base `n_symbols`, oldest symbol first: divided by `n_symbols` it is
    the number of its context, and sorted grams lie together by context.
    """
    if level == 0:
        return ids
    return grams[1:] + ids[:-level] * n_symbols**level


def _interpolate_level(
    lower: NDArray[np.float64],
    train_grams: NDArray[np.int64],
    test_grams: NDArray[np.int64],
    n_symbols: int,
) -> NDArray[np.float64]:
    """Mixes the counts of one level into `lower`, the probabilities of the level below."""
    grams, gram_counts = np.unique(train_grams, return_counts=True)
    contexts, first_gram, followers = np.unique(
        grams // n_symbols, return_index=True, return_counts=True
    )
    totals = np.add.reduceat(gram_counts, first_gram)

    n = _look_up(grams, gram_counts, test_grams)
    test_contexts = test_grams // n_symbols
    big_n = _look_up(contexts, totals, test_contexts)
    big_t = _look_up(contexts, followers, test_contexts)
    return np.divide(n + big_t * lower, big_n + big_t, out=lower.copy(), where=big_n > 0)


def _look_up(
    keys: NDArray[np.int64], values: NDArray[np.int64], queries: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Returns the value of each query, 0 where it is not among the sorted `keys`."""
    index = np.minimum(np.searchsorted(keys, queries), len(keys) - 1)
    return np.where(keys[index] == queries, values[index], 0)


def read_model_bpc(model_dir: str, split: str) -> tuple[str, float]:
    """Returns a name for a run's model and its bpc on a split, from its last evaluation there.

    Raises:
        UserError: the run has not been evaluated on all of the split.
    """
    path = Path(model_dir) / "evaluations.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    records = map(json.loads, lines)
    found = [record for record in records if record["split"] == split and record["is_whole"]]
    if not found:
        raise UserError(f"`{model_dir}` has no evaluation on {split}: run train_gpu.py --do_eval")
    bits = found[-1].get("bpc")  # `None` where characters were unknown, as they are here
    dynamic = ", dynamic evaluation" if found[-1].get("dynamic") else ""
    return (
        f"Transformer-XL, {found[-1]['step']} steps{dynamic}",
        found[-1]["bits_per_token"] if bits is None else bits,
    )


def print_table(options: flags.FlagValues) -> None:
    """Prints the baselines for the records, and a run's result if the flags name one."""
    results = measure_baselines(options.data_dir, options.split)
    if options.model_dir:
        results |= [read_model_bpc(options.model_dir, options.split)]
    width = max(map(len, results))
    print(f"{'model':<{width}}  {'bpc':>6}")
    for name, bpc in results.items():
        print(f"{name:<{width}}  {bpc:>6.3f}")


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define_flag(
        options, "data_dir", str, None, "Folder of the records.", required=True, is_path=True
    )
    define_flag(options, "split", str, "test", "Split to predict.")
    define_flag(
        options,
        "model_dir",
        str,
        None,
        "Folder of a run whose last evaluation is shown too.",
        is_path=True,
    )
    return run_program(__doc__, options, print_table, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
