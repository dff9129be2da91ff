"""Samples as one page that needs no network: context, generated text and reference in columns."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from txl_tf.apps.pages.html_page import escape, make_html, name_text_class, read_asset

_STYLE = read_asset("samples_page.css")


class Sample(NamedTuple):
    """A context of a split, its continuation by the model and the text that really followed."""

    start: int  # the position of the context in the split, in tokens
    seed: int
    context: str
    generated: str
    reference: str  # of as many tokens as were generated
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
        """Yields the names and the values of the facts that people read."""
        settings = self.settings
        top_k = f"top_k {settings['top_k']}" if settings["top_k"] else "all tokens"
        draft = f", draft_len {settings['draft_len']}" if settings["draft_len"] else ""
        drawn = f"drawn at random with seed {settings['seed']}, not selected"
        sampling = f"{top_k}, temperature {settings['temperature']:g}, {settings['precision']}"
        yield "run", f"{self.run}, step {self.step:,}"
        yield "span", self.span
        yield "data", f"{self.dataset}, split {self.split}: {self.split_tokens:,} {self.level}s"
        yield "contexts", f"{self.context_len:,} consecutive tokens, {drawn}"
        yield "generation", f"{settings['length']:,} tokens, {sampling}{draft}"

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


def make_page(job: Job, samples: Sequence[Sample]) -> str:
    """Returns a page of HTML with the settings and the samples, which loads and runs nothing."""
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
