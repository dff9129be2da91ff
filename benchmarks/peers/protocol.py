"""What a program that measures a peer reads and prints; it needs only the standard library.

A work is written as its kind, a colon, and layers, d_model, heads, d_inner, T, M, B, V; cutoffs and
div_val, if any, follow another colon: "train:6,256,8,1024,128,128,8,20000:2000,10000/1". The answer
is a line "NAME WORK: median 2,427.9 tokens/s, not compiled".
"""

import argparse
import re
import statistics
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

KINDS = ("train", "eval", "generate")
_LINE = re.compile(r"^(\S+) (\w+:\S+): median ([\d,.]*\d)(?:.*, ((?:not )?compiled))?", re.M)


class Shape(NamedTuple):
    """A model and a batch.

    >>> Shape(6, 256, 8, 1024, 128, 128, 8, 20000, (2000, 10000)).spec
    '6,256,8,1024,128,128,8,20000:2000,10000/1'
    """

    n_layer: int
    d_model: int
    n_head: int
    d_inner: int
    tgt_len: int
    mem_len: int
    batch_size: int
    n_token: int
    cutoffs: tuple[int, ...] = ()
    div_val: int = 1

    @property
    def n_tokens(self) -> int:
        """The number of tokens in a segment, over all rows."""
        return self.batch_size * self.tgt_len

    @property
    def spec(self) -> str:
        """The shape as text: eight numbers, then cutoffs and `div_val` if there are cutoffs."""
        numbers = ",".join(map(str, self[:8]))
        cutoffs = ",".join(map(str, self.cutoffs))
        return f"{numbers}:{cutoffs}/{self.div_val}" if cutoffs else numbers


class Work(NamedTuple):
    """A task whose speed is compared: one of `KINDS`, and the model and the batch.

    >>> Work.parse("eval:6,256,8,1024,64,640,4,60000:5000,40000/4").shape.cutoffs
    (5000, 40000)
    """

    kind: str
    shape: Shape

    @classmethod
    def parse(cls, spec: str) -> "Work":
        """Returns the work that a text stands for.

        Raises:
            ValueError: If the text does not have this form.
        """
        kind, numbers, *bins = spec.split(":")
        sizes = tuple(map(int, numbers.split(",")))
        if kind not in KINDS or len(sizes) != 8 or len(bins) > 1:
            raise ValueError(spec)
        if bins:
            cutoffs, div_val = bins[0].split("/")
            return cls(kind, Shape(*sizes, tuple(map(int, cutoffs.split(","))), int(div_val)))
        return cls(kind, Shape(*sizes))

    @property
    def spec(self) -> str:
        """The work as text."""
        return f"{self.kind}:{self.shape.spec}"


def parse_peers(text: str) -> dict[str, dict[str, float]]:
    """Returns the speeds in the lines of a text, by work and name of the peer.

    >>> parse_peers("2019 train:6,256,8,1024,128,128,8,27: median 2,427.9 tokens/s, not compiled")
    {'train:6,256,8,1024,128,128,8,27': {'2019, not compiled': 2427.9}}
    """
    found: dict[str, dict[str, float]] = {}
    for name, work, speed, compiled in _LINE.findall(text):
        column = f"{name}, {compiled}" if compiled else name
        found.setdefault(work, {})[column] = float(speed.replace(",", ""))
    return found


def repeat(call: Callable[[], object], seconds: float, *, warm: int = 2, least: int = 5) -> float:
    """Calls `warm` times, then for some seconds; returns the median duration of the latter."""
    for _ in range(warm):
        call()
    durations: list[float] = []
    while sum(durations) < seconds or len(durations) < least:
        start = time.perf_counter()
        call()
        durations.append(time.perf_counter() - start)
    return statistics.median(durations)


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Returns the parser of a peer's command line; programs may add their own arguments."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=description, formatter_class=style)
    parser.add_argument("--seconds", type=float, default=10.0, help="Time to measure each.")
    parser.add_argument("works", nargs="+", type=Work.parse, metavar="WORK")
    return parser


def print_speeds(
    name: str,
    options: argparse.Namespace,
    make_call: Callable[[Work], Callable[[], object]],
    *,
    compiled: bool,
) -> None:
    """Prints the line of each work; the function from `make_call` computes one segment."""
    for work in options.works:
        try:
            call = make_call(work)
        except NotImplementedError as error:
            print(f"{name} {work.spec}: {error}", file=sys.stderr)
            continue
        speed = work.shape.n_tokens / repeat(call, options.seconds)
        state = "compiled" if compiled else "not compiled"
        print(f"{name} {work.spec}: median {speed:,.1f} tokens/s, {state}", flush=True)
