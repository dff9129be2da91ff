"""What simple models make of a text, to stand beside a trained language model.

python -m benchmarks.baselines --data_dir data/pydoc --model_dir runs/demo

Two kinds: a count of what followed the last few symbols, and the compressor xz. Every figure is in
bits per symbol, as is the bpc of a model on the same records.
"""

import json
import lzma
import sys
from pathlib import Path

import numpy as np
from absl import flags

from txl_tf.data import open_records, read_ids
from txl_tf.errors import UserError
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import run_program

ORDERS = (0, 3, 5)  # symbols of context in the Witten-Bell models of the table


def witten_bell_bpc(
    train_ids: np.ndarray, test_ids: np.ndarray, order: int, n_symbols: int
) -> float:
    """Returns the bits per symbol of a Witten-Bell smoothed model of `order` preceding symbols.

    With n(h, c) occurrences of symbol c after context h in the training text, N(h) their sum over c
    and T(h) the number of different c:

        p_k(c | h) = (n(h, c) + T(h) p_{k-1}(c | h')) / (N(h) + T(h))

    where h' is h without its oldest symbol, p_k = p_{k-1} after a context that training never met,
    and p_{-1} = 1 / n_symbols. Test symbol i < order has only i symbols before it, and gets p_i.
    The targets are `test_ids[1:]`, those of a language model that reads the same ids.

    >>> text = np.array([0, 1] * 500)
    >>> round(witten_bell_bpc(text, text, order=0, n_symbols=2), 3)
    1.0
    >>> round(witten_bell_bpc(text, text, order=1, n_symbols=2), 3)
    0.001

    References:
        Witten and Bell (1991), The zero-frequency problem, IEEE Transactions on Information Theory
        37(4), method C; interpolated as in Chen and Goodman (1998), section 2.5.
    """
    probabilities = np.full(len(test_ids), 1 / n_symbols)
    for level in range(order + 1):
        train_runs, test_runs = (
            _number_runs(ids, level + 1, n_symbols) for ids in (train_ids, test_ids)
        )
        probabilities[level:] = _interpolate_level(
            probabilities[level:], train_runs, test_runs, n_symbols
        )
    return float(-np.log2(probabilities[1:]).mean())


def _number_runs(ids: np.ndarray, length: int, n_symbols: int) -> np.ndarray:
    """Returns the number of each run of symbols: the run in base `n_symbols`, oldest symbol first.

    Divided by `n_symbols` it is the number of the run's context, so sorted numbers lie together by
    context.
    """
    runs = np.lib.stride_tricks.sliding_window_view(ids, length)
    return runs @ n_symbols ** np.arange(length)[::-1]


def _interpolate_level(
    lower: np.ndarray, train_runs: np.ndarray, test_runs: np.ndarray, n_symbols: int
) -> np.ndarray:
    """Mixes the counts of one level into `lower`, the probabilities of the level below."""
    runs, run_counts = np.unique(train_runs, return_counts=True)
    contexts, first_run, followers = np.unique(
        runs // n_symbols, return_index=True, return_counts=True
    )
    totals = np.add.reduceat(run_counts, first_run)

    n = _look_up(runs, run_counts, test_runs)
    test_contexts = test_runs // n_symbols
    big_n = _look_up(contexts, totals, test_contexts)
    big_t = _look_up(contexts, followers, test_contexts)
    return np.divide(n + big_t * lower, big_n + big_t, out=lower.copy(), where=big_n > 0)


def _look_up(keys: np.ndarray, values: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Returns the value of each query, 0 where it is not among the sorted `keys`."""
    index = np.minimum(np.searchsorted(keys, queries), len(keys) - 1)
    return np.where(keys[index] == queries, values[index], 0)


def xz_bpc(train: bytes, test: bytes) -> float:
    """Returns the bits per byte that `xz -9` needs for a text once it has seen another.

    That is the growth of the compressed training text when the test text is appended. xz looks
    back 64 MiB, so only the end of a longer training text helps.
    """
    growth = len(lzma.compress(train + test, preset=9)) - len(lzma.compress(train, preset=9))
    return 8 * growth / len(test)


def measure_baselines(data_dir: str, split: str = "test") -> dict[str, float]:
    """Returns the bits per symbol of each baseline on a split, trained on the training split.

    Raises:
        UserError: If the vocabulary is too large for the highest order, as one of words is.
    """
    vocabulary = open_records(data_dir).vocabulary
    n_symbols, largest = len(vocabulary), max(ORDERS)
    if n_symbols ** (largest + 1) > np.iinfo(np.int64).max:
        raise UserError(
            "`n_symbols` ** (`order` + 1) must fit in int64. "
            f"Received: n_symbols={n_symbols}, order={largest}"
        )
    train_ids, test_ids = read_ids(data_dir, "train"), read_ids(data_dir, split)
    results = {
        f"order-{order}": witten_bell_bpc(train_ids, test_ids, order, n_symbols) for order in ORDERS
    }
    if vocabulary.level == "byte":
        train, test = vocabulary.decode_bytes(train_ids), vocabulary.decode_bytes(test_ids)
    else:
        train, test = vocabulary.decode(train_ids).encode(), vocabulary.decode(test_ids).encode()
    # A character may take several bytes in UTF-8; the table has one unit, bits per symbol.
    results["xz -9"] = xz_bpc(train, test) * len(test) / len(test_ids)
    return results


def read_model_bpc(model_dir: str, split: str) -> tuple[str, float]:
    """Returns a name for a run's model and its bpc on a split, from its last evaluation there.

    Raises:
        UserError: If the run has not been evaluated on all of the split.
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
    text = "Folder of the records."
    define_flag(options, "data_dir", str, None, text, required=True, is_path=True)
    define_flag(options, "split", str, "test", "Split to predict.")
    text = "Folder of a run whose last evaluation is shown too."
    define_flag(options, "model_dir", str, None, text, is_path=True)
    return run_program(__doc__, options, print_table, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
