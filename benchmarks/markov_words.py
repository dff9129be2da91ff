"""Writes a synthetic corpus with the sizes of Penn Treebank, and prints the perplexity to reach.

python -m benchmarks.markov_words --data_dir data/markov
python train_gpu.py --preset ptb --data_dir data/markov --model_dir runs/markov

A Markov chain draws the words: each word is one of a few favorites of the word before, or drawn by
the class of that word. So the best perplexity that any model can reach is known, and so is that of
a model that only knows how frequent each word is.
"""

import bisect
import sys
from typing import NamedTuple

import numpy as np
from absl import flags

from txl_tf.data.records.writing import write_records
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import run_program

SIZES = {"train": 929_589, "valid": 73_760, "test": 82_430}  # of Penn Treebank
N_WORDS = 10_000
N_CLASSES, N_FAVOURITES, FAVOURITE_SHARE = 50, 5, 0.4


class Chain(NamedTuple):
    """A Markov chain over words, by their classes.

    Args:
        favorites: (V, F), words that follow each word, all equally often, in a share of cases.
        of_class: (V,), the class of each word.
        words: (C, V / C), the words of each class.
        frequencies: (V / C,), how often the words of a class are drawn, by Zipf's law.
        classes: (C, C), how often a class follows each class.
    """

    favorites: np.ndarray
    of_class: np.ndarray
    words: np.ndarray
    frequencies: np.ndarray
    classes: np.ndarray

    @classmethod
    def draw(cls, rng: np.random.Generator, n_words: int) -> "Chain":
        """Draws a chain; the number of words must be divisible by that of the classes."""
        of_class = np.arange(n_words) % N_CLASSES
        return cls(
            rng.choice(n_words, size=(n_words, N_FAVOURITES), p=follow_zipf(n_words)),
            of_class,
            np.arange(n_words).reshape(-1, N_CLASSES).T,
            follow_zipf(n_words // N_CLASSES),
            rng.dirichlet(5 * follow_zipf(N_CLASSES), size=N_CLASSES),
        )

    def generate(self, rng: np.random.Generator, n_tokens: int) -> np.ndarray:
        """Returns the ids of a text, (n_tokens,) int32."""
        is_favourite = (rng.random(n_tokens) < FAVOURITE_SHARE).tolist()
        columns = rng.integers(N_FAVOURITES, size=n_tokens).tolist()
        ranks = np.searchsorted(np.cumsum(self.frequencies), rng.random(n_tokens)).tolist()
        draws = rng.random(n_tokens).tolist()
        # Lists: one word follows from the one before, and arrays are slow one element at a time.
        sums = np.cumsum(self.classes, axis=1).tolist()
        favorites, of_class = self.favorites.tolist(), self.of_class.tolist()
        words = self.words.tolist()
        last_class, last_rank = N_CLASSES - 1, len(self.frequencies) - 1
        before, ids = int(rng.integers(len(of_class))), []
        for index in range(n_tokens):
            if is_favourite[index]:
                before = favorites[before][columns[index]]
            else:  # sums that are rounded may end below 1
                next_class = min(bisect.bisect(sums[of_class[before]], draws[index]), last_class)
                before = words[next_class][min(ranks[index], last_rank)]
            ids.append(before)
        return np.array(ids, np.int32)

    def score(self, ids: np.ndarray) -> np.ndarray:
        """Returns -log p of each token but the first, given the one before it, (n - 1,) nats."""
        before, after = ids[:-1], ids[1:]
        rank = after // N_CLASSES
        by_class = self.classes[self.of_class[before], self.of_class[after]]
        by_favourite = (self.favorites[before] == after[:, None]).mean(axis=1)
        share = 1 - FAVOURITE_SHARE
        return -np.log(share * by_class * self.frequencies[rank] + FAVOURITE_SHARE * by_favourite)


def follow_zipf(count: int) -> np.ndarray:
    """Returns probabilities (count,) that are proportional to 1 / rank."""
    weights = 1 / np.arange(1, count + 1)
    return weights / weights.sum()


def write_corpus(options: flags.FlagValues) -> None:
    """Writes the records, and prints the perplexities to compare with."""
    rng = np.random.default_rng(options.seed)
    chain = Chain.draw(rng, N_WORDS)
    splits = {split: chain.generate(rng, size) for split, size in SIZES.items()}
    vocabulary = Vocabulary("word", tuple(f"w{index}" for index in range(N_WORDS)))
    write_records(
        options.data_dir,
        dataset="markov",
        vocabulary=vocabulary,
        splits={split: [ids] for split, ids in splits.items()},
        made_from={"program": "benchmarks.markov_words", "seed": options.seed},
        overwrite=options.overwrite,
    )
    counts = np.bincount(splits["train"], minlength=N_WORDS) + 1
    for split in ("valid", "test"):
        ids = splits[split]
        frequency = np.exp(-np.log(counts / counts.sum())[ids[1:]].mean())
        print(
            f"{split}: perplexity {np.exp(chain.score(ids).mean()):.1f} by the chain itself, "
            f"{frequency:.0f} by how frequent each word is"
        )


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define_flag(options, "data_dir", str, "data/markov", "Folder to write.", is_path=True)
    define_flag(options, "seed", int, 0, "Seed of the chain and the text.", lower_bound=0)
    define_flag(options, "overwrite", bool, False, "Replace existing records.")
    return run_program(__doc__, options, write_corpus, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
