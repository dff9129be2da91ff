"""Continues contexts from a split, and shows what really followed (appendix E of the paper).

txl samples --run runs/wt103 --html samples.html
"""

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from absl import flags

from txl_tf.data.lanes.training_lanes import Tokens
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.data.text.wikitext import detokenize_continuation, detokenize_wikitext, is_wikitext
from txl_tf.errors import UserError
from txl_tf.lab.pages.html_page import escape, make_html, name_text_class, read_asset
from txl_tf.lab.shown_tokens import replace_surrogates
from txl_tf.programs.cli.flags import define_flag, define_second_name
from txl_tf.programs.cli.program import program
from txl_tf.programs.cli.run_flags import (
    check_out_files,
    check_seeds,
    choose_run,
    define_candidate_flags,
    define_precision_flag,
    define_records_flag,
    define_run_flags,
    define_seed_flags,
    open_chosen_run,
    open_run_records,
    warn_of_no_memory,
)
from txl_tf.progress import Bar
from txl_tf.runs.folder import read_run_config

if TYPE_CHECKING:
    from txl_tf.language_model import LanguageModel

_SETTINGS = ("length", "samples", "temperature", "top_k", "seed", "precision")
_STYLE = read_asset("samples_page.css")


class Sample(NamedTuple):
    """A context from a split, its continuation by the model, and the text that really followed."""

    start: int  # the position of the context in the split, in tokens
    seed: int
    context: str
    generated: str
    reference: str  # as many tokens as were generated
    generated_ids: list[int]


class Job(NamedTuple):
    """The source and the settings of samples."""

    run: str
    step: int
    span: str  # the segment length and the attention span, as text
    dataset: str
    level: str
    split: str
    split_tokens: int
    context_len: int  # in tokens
    settings: dict[str, Any]  # the values of the other flags, by name

    def describe(self) -> Iterator[tuple[str, str]]:
        """Yields the names and values of the facts to display."""
        settings = self.settings
        top_k = f"top_k {settings['top_k']}" if settings["top_k"] else "all tokens"
        drawn = f"drawn at random with seed {settings['seed']}, not selected"
        sampling = f"{top_k}, temperature {settings['temperature']:g}, {settings['precision']}"
        yield "run", f"{self.run}, step {self.step:,}"
        yield "span", self.span
        yield "data", f"{self.dataset}, split {self.split}: {self.split_tokens:,} {self.level}s"
        yield "contexts", f"{self.context_len:,} consecutive tokens, {drawn}"
        yield "generation", f"{settings['length']:,} tokens, {sampling}"

    def list_texts(self, sample: Sample) -> Iterator[tuple[str, str, str]]:
        """Yields name, length and text of the three parts of a sample."""
        length = f"{len(sample.generated_ids):,} tokens"
        yield "Context", f"{self.context_len:,} tokens", sample.context
        yield "Generated", length, sample.generated
        yield "What really followed", length, sample.reference

    def locate(self, sample: Sample) -> str:
        """Returns the position of a sample in its split, and its seed, as text."""
        return (
            f"from token {sample.start:,} of {self.split_tokens:,} of split {self.split}, "
            f"seed {sample.seed}"
        )


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, before parsing."""
    options = flags.FlagValues()
    define = functools.partial(define_flag, options)
    define_run_flags(options)
    define_records_flag(options)
    define("split", str, "test", "Split to draw the contexts from.")
    define("context_len", int, 512, "Number of tokens of each context.", lower_bound=1)
    text = "Number of tokens to generate, and to show of the text that really followed."
    define("max_new_tokens", int, 500, text, lower_bound=1)
    define_second_name(options, "length", "max_new_tokens")
    define_candidate_flags(options, temperature=1.0)  # as in the paper
    define_seed_flags(options, samples=3)
    define_precision_flag(options)
    text = "HTML file to write, with the three texts of each sample side by side."
    define("html", str, None, text, is_path=True)
    define("json", str, None, "JSON file to write, with the samples.", is_path=True)
    return options


@program(__doc__, define_flags, positional="run")
def main(options: flags.FlagValues) -> None:
    """Prints samples one by one, and adds each one to the output files."""
    check_seeds(options)
    if options.html and options.html == options.json:
        raise flags.Error(f"--html and --json must name two files. Received: {options.html}")
    check_out_files(options, "html", "json")
    choose_run(options)
    records = open_run_records(options.run, options.data_dir, options.split)

    from txl_tf.data.files import write_json, write_text
    from txl_tf.models.architecture import check_transformer

    tokens = records.split(options.split)
    starts = draw_starts(len(tokens), options)
    check_transformer(read_run_config(options.run).model, "generation")  # before weights are read
    lm = open_chosen_run(options, records=records, split=options.split)
    warn_of_no_memory(lm, options.run)
    job = Job(
        run=options.run,
        step=lm.step,
        span=lm.evaluation.describe(),
        dataset=records.dataset,
        level=records.vocabulary.level,
        split=options.split,
        split_tokens=len(tokens),
        context_len=options.context_len,
        settings={name: options[name].value for name in _SETTINGS},
    )
    for name, value in job.describe():
        print(f"{name:<10}  {value}")
    samples: list[Sample] = []
    for sample in draw_samples(lm, tokens, records.vocabulary, starts, options):
        samples.append(sample)
        print(f"\n=== Sample {len(samples)}: {job.locate(sample)}")
        for name, length, text in job.list_texts(sample):
            print(f"--- {name}, {length}\n{text}")
        if options.json:
            listed = [item._asdict() for item in samples]
            write_json(options.json, {**job._asdict(), "samples": listed})
        if options.html:
            write_text(options.html, make_page(job, samples))


def draw_starts(n_tokens: int, options: flags.FlagValues) -> list[int]:
    """Returns the position at which each context begins.

    All positions that leave room for the context and the text after it are equally likely. With
    more samples, the first positions stay the same.
    """
    n_needed = options.context_len + options.max_new_tokens
    if n_tokens < n_needed:
        raise UserError(
            f"split {options.split} must hold at least --context_len + --max_new_tokens tokens. "
            f"Received: {n_tokens:,} tokens, --context_len={options.context_len} "
            f"--max_new_tokens={options.max_new_tokens}"
        )
    rng = np.random.default_rng(options.seed)
    return [int(rng.integers(n_tokens - n_needed + 1)) for _ in range(options.samples)]


def draw_samples(
    lm: "LanguageModel",
    tokens: Tokens,
    vocabulary: Vocabulary,
    starts: list[int],
    options: flags.FlagValues,
) -> Iterator[Sample]:
    """Yields a sample for each context of the split.

    The model reads the ids of the context, because encoding its text again could give other ids.
    """
    for seed, start in enumerate(starts, options.seed):
        stop = start + options.context_len
        context = tokens.read(start, stop)
        with Bar("generating", total=options.max_new_tokens, unit="token", leave=False) as bar:
            session = lm.start(
                [context],
                seed=seed,
                temperature=options.temperature,
                top_k=options.top_k,
            )
            for _ in session.draw_pieces(options.max_new_tokens):
                bar.update(len(session.added[0]) - bar.n)
        drawn = np.asarray(session.added[0])
        reference = tokens.read(stop, stop + len(drawn))
        yield make_sample(vocabulary, start, seed, context, drawn, reference)


def make_sample(
    vocabulary: Vocabulary,
    start: int,
    seed: int,
    context: np.ndarray,
    generated: np.ndarray,
    reference: np.ndarray,
) -> Sample:
    """Returns a sample with readable texts, given the ids of its three parts."""
    before, drawn, followed = (
        replace_surrogates(vocabulary.decode(ids)) for ids in (context, generated, reference)
    )
    if is_wikitext(vocabulary.symbols):
        drawn, followed = (
            detokenize_continuation(before, text, keep_headings=True).lstrip(" ")
            for text in (drawn, followed)
        )
        before = detokenize_wikitext(before, keep_headings=True)
    return Sample(start, seed, before, drawn, followed, generated.tolist())


def make_page(job: Job, samples: Sequence[Sample]) -> str:
    """Returns a self-contained HTML page, without scripts, with the settings and samples."""
    sections = "\n".join(
        _make_section(job, sample, number) for number, sample in enumerate(samples, 1)
    )
    return make_html(f"Samples of {job.run}", job.describe(), sections, style=_STYLE)


def _make_section(job: Job, sample: Sample, number: int) -> str:
    kind = name_text_class(job.level)
    articles = "\n".join(
        f'<article class="{name.split()[0].lower()}">'
        f"<h3>{name} <small>{length}</small></h3>"
        f'<div class="text {kind}" lang="" dir="auto">{escape(text)}</div></article>'
        for name, length, text in job.list_texts(sample)
    )
    head = f"<h2>Sample {number} <small>{escape(job.locate(sample))}</small></h2>"
    return f'<section>\n{head}\n<div class="columns">\n{articles}\n</div>\n</section>'
