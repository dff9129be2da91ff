"""The gain of prompt lookup (`draft_len`): tokens per pass, and speed beside plain generation.

python -m benchmarks.speculation --works generate-bytes-large --precisions float32,int8
python -m benchmarks.speculation --run runs/demo --prompt_file text.txt

A model with random weights repeats itself without end when it is decoded greedily, which shows the
largest gain, and does not repeat itself when it is sampled, which shows the cost. With a run, both
ways continue a real text. Speeds are medians of calls that alternate between the draft lengths.
"""

import functools
import itertools
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from benchmarks.compare import WORKS
from benchmarks.inference_calls import PROMPT_LEN, make_model
from benchmarks.tables import define_json_flag, print_table, write_json
from benchmarks.works import measure_apart
from txl_tf.cli.flags import define_flag
from txl_tf.cli.program import run_program
from txl_tf.config import KERNEL_DTYPES, AttentionSpan
from txl_tf.errors import UserError
from txl_tf.quiet_start import quiet_start

TEMPERATURES = {"greedy": 0.0, "sampled": 1.0}
MAX_PROMPT = 10_000  # tokens of the file
REPETITIONS = 3


def measure_work(
    name: str, precision: str, draft_lens: list[int], n_new: int
) -> list[dict[str, Any]]:
    """Measures a work with a model of random weights; see `_measure`."""
    _import_tensorflow()
    from txl_tf.cached_model import CachedModel

    shape = WORKS[name].shape
    span = AttentionSpan(shape.mem_len, same_length=True)
    cached = CachedModel(make_model(shape, precision), span, PROMPT_LEN)
    return _measure(cached, np.zeros(1, np.int32), draft_lens, n_new)


def measure_run(
    run: str, prompt: str, precision: str, draft_lens: list[int], n_new: int
) -> list[dict[str, Any]]:
    """Measures a run that continues a text; see `_measure`."""
    _import_tensorflow()
    import txl_tf
    from txl_tf.cached_model import CachedModel

    lm = txl_tf.load(run, precision=precision)
    if lm.vocabulary is None:
        raise UserError(f"`{run}` has no vocabulary: it cannot encode texts")
    ids = np.asarray(lm.vocabulary.encode(prompt), np.int32)[-MAX_PROMPT:]
    cached = CachedModel(lm.model, lm.span, lm.evaluation.tgt_len)
    return _measure(cached, ids, draft_lens, n_new)


def _import_tensorflow() -> None:
    with quiet_start():
        import tensorflow  # noqa: F401


def _measure(
    cached: Any, prompt: np.ndarray, draft_lens: list[int], n_new: int
) -> list[dict[str, Any]]:
    """Returns a row for each way of drawing and draft length.

    Args:
        cached: The model.
        prompt: (n,) int32.
        draft_lens: The draft lengths.
        n_new: The number of tokens to draw.
    """
    from txl_tf.generation.generator import Generator
    from txl_tf.generation.sampling import SamplingConfig
    from txl_tf.generation.session import Session

    generator, rows = Generator(cached), []
    for text, temperature in TEMPERATURES.items():

        def draw(draft_len: int, temperature: float = temperature) -> tuple[np.ndarray, int, float]:
            sampling = SamplingConfig(temperature)
            session = Session(generator, [prompt], sampling, [0], draft_len=draft_len)
            start = time.perf_counter()
            (tokens,) = session.draw(n_new)
            return np.asarray(tokens), session.n_passes, time.perf_counter() - start

        drawn = {draft_len: draw(draft_len) for draft_len in draft_lens}  # compiles the loops
        seconds: dict[int, list[float]] = {draft_len: [] for draft_len in draft_lens}
        for _, draft_len in itertools.product(range(REPETITIONS), draft_lens):
            seconds[draft_len].append(draw(draft_len)[2])
        for draft_len, (tokens, n_passes, _) in drawn.items():
            rows.append(
                {
                    "text": text,
                    "draft_len": draft_len,
                    "tokens_per_pass": n_new / n_passes,
                    "tokens_per_second": n_new / statistics.median(seconds[draft_len]),
                    "same_text": bool((tokens == drawn[0][0]).all()),
                }
            )
    return rows


def measure_all(options: flags.FlagValues) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yields what is measured, and its rows."""
    draft_lens, n_new = [0, *map(int, options.draft_lens)], options.tokens
    for precision in options.precisions:
        if options.run:
            prompt = Path(options.prompt_file).read_text(encoding="utf-8")
            rows = measure_apart(measure_run, options.run, prompt, precision, draft_lens, n_new)
            yield f"{options.run}, {precision}", rows
            continue
        for work in options.works:
            rows = measure_apart(measure_work, work, precision, draft_lens, n_new)
            yield f"{work}, {precision}", rows


def measure(options: flags.FlagValues) -> None:
    """Measures what the flags name, prints it and writes it to a file if wanted."""
    if (options.run is None) != (options.prompt_file is None):
        raise flags.Error("--run and --prompt_file go together")
    found = {}

    def make_rows() -> Iterator[Sequence[object]]:
        for label, rows in measure_all(options):
            found[label] = rows
            for row in rows:
                if row["draft_len"] == 0:
                    plain = row["tokens_per_second"]
                speed = row["tokens_per_second"]
                yield (
                    *(label, row["text"], row["draft_len"], f"{row['tokens_per_pass']:.2f}"),
                    *(f"{speed:,.0f}", f"{speed / plain:.2f}", "yes" if row["same_text"] else "no"),
                )

    print_table(
        ("model", "drawn", "draft_len", "tokens per pass", "tokens/s", "gain", "same text"),
        make_rows(),
    )
    write_json(options, found)


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define = functools.partial(define_flag, options)
    works = [name for name in WORKS if name.startswith("generate")]
    define("works", list, works[:2], "Works of benchmarks.compare.", choices=works)
    define("run", str, None, "Trained run to measure in place of the works.", is_path=True)
    define("prompt_file", str, None, "UTF-8 text that the run continues.", is_path=True)
    define("precisions", list, ["float32"], "Precisions of the kernels.", choices=KERNEL_DTYPES)
    define("draft_lens", list, ["3", "7", "15"], "Numbers of tokens to draft.")
    define("tokens", int, 256, "Number of tokens to draw.", lower_bound=1)
    define_json_flag(options)
    return run_program(__doc__, options, measure, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
