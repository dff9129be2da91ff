"""The model behind the server: it scores texts, and continues texts with their memory."""

import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from txl_tf import LanguageModel
from txl_tf.apps.server.api_requests import CompletionRequest, ScoreRequest
from txl_tf.data.text.vocabulary import choose_prefix
from txl_tf.errors import UserError
from txl_tf.generation.sampling import StandardSampler
from txl_tf.generation.session import decode_added
from txl_tf.generation.stops import match_case
from txl_tf.generation.text_encoder import TextEncoder
from txl_tf.scoring.text_scores import TextScore, replace_nans

_MAX_PROGRAMS = 64
_MEASURES = (
    *("tokens", "total_nats", "nats_per_token", "bits_per_token", "perplexity", "bpc"),
    *("bits_per_byte", "word_perplexity", "n_bytes", "n_words", "n_unknown"),
)
_READ_PIECE = 32  # tokens
_SCORE_PIECE = 64  # texts: enough to fill batches of different lengths


class Choice(NamedTuple):
    """The text that a request has added to a prompt."""

    text: str  # since the last piece, as far as it is final
    n_tokens: int  # in all
    finish_reason: str | None  # "length" or "stop" with the last piece


class ServedTexts:
    """The texts of a request, or the text of a session, for one thread at a time."""

    def __init__(self, lm: LanguageModel, request: CompletionRequest):
        assert lm.vocabulary is not None
        self._vocabulary = lm.vocabulary
        self._stops = [match_case(lm.vocabulary, stop) for stop in request.stop]
        self._n_pending = max(map(len, self._stops), default=1) - 1  # of an unfinished stop
        self._encoder = TextEncoder(lm.vocabulary, lm.config.n_token)
        # As ids: they can be counted, and only the new ones are decoded.
        prompts = [self._encoder.encode(prompt) for prompt in request.rows]
        self.n_prompt_tokens = sum(map(len, prompts)) // request.n
        self._session = lm.start(
            prompts,
            seed=[request.seed + index % request.n for index in range(len(prompts))],
            sampler=_make_sampler(lm, request),
            stops=request.stop,
        )
        # The end of each text that was drawn, in which a stop may have begun.
        self._tails = [""] * len(prompts)

    def read(self, text: str) -> Iterator[int]:
        """Reads a text at the end of a session, and yields the number of tokens of each piece."""
        ids = self._encoder.encode(text)
        for start in range(0, len(ids), _READ_PIECE):
            piece = ids[start : start + _READ_PIECE]
            self._session.read(piece)
            yield len(piece)

    def draw(self, max_tokens: int, piece_len: int) -> Iterator[list[Choice]]:
        """Adds tokens to each text; yields the new text after each piece of `piece_len` tokens."""
        session = self._session
        before, n_before = session.ids, [len(ids) for ids in session.added]
        tails = list(self._tails)
        n_shown = [0] * len(n_before)

        def list_choices(is_last: bool) -> list[Choice]:
            choices = []
            for row, ids in enumerate(session.added):
                new = np.asarray(ids)[n_before[row] :]  # the prompts are ids
                has_ended = bool(session.ended[row]) and max_tokens > 0
                drawn = tails[row] + decode_added(self._vocabulary, before[row], new)
                n_settled = max(len(drawn) - self._n_pending, 0)  # the rest may be part of a stop
                final = drawn if is_last else drawn[:n_settled]
                if has_ended:
                    old = decode_added(self._vocabulary, before[row], new[:-1])
                    final = self._remove_stop(drawn, len(tails[row]) + len(old))
                self._tails[row] = "" if has_ended else drawn[n_settled:]
                text = final[len(tails[row]) :]
                reason = ("stop" if has_ended else "length") if is_last else None
                choices.append(Choice(text[n_shown[row] :], len(new), reason))
                n_shown[row] = max(n_shown[row], len(text))
            return choices

        for start in range(0, max_tokens, piece_len):
            for _ in session.draw_pieces(min(piece_len, max_tokens - start), resume=start == 0):
                yield list_choices(is_last=False)
            if session.ended.all():
                break
        yield list_choices(is_last=True)

    def _remove_stop(self, text: str, n_before: int) -> str:
        """Returns a text without the stop with which its last token, after `n_before`, ended it."""
        firsts = [(s, text.find(s, max(n_before - len(s) + 1, 0))) for s in self._stops]
        found = [(start + len(s), start) for s, start in firsts if start >= 0]
        # Otherwise a symbol such as "<eos>" has ended the text, which does not hold its name.
        return text[: min(found)[1]] if found else text


class ModelService:
    """A language model with its name in requests, for use by the computing thread only."""

    def __init__(self, lm: LanguageModel, name: str):
        if lm.vocabulary is None:
            raise UserError(f"`{lm.run or name}` has no vocabulary: it cannot encode texts")
        self.lm = lm
        self.name = name
        self._programs: set[tuple[Any, ...]] = set()
        self.default_prompt = choose_prefix(lm.vocabulary)

    def start(self, request: CompletionRequest) -> ServedTexts:
        """Reads the prompts of a request, unless it would need too many compiled programs."""
        sampler = _make_sampler(self.lm, request)
        # XLA compiles a loop for each combination of these and keeps it until the process ends.
        program = (len(request.rows), sampler.constants, sampler.draws_by_bins)
        if program not in self._programs and len(self._programs) >= _MAX_PROGRAMS:
            raise UserError(
                f"the server keeps {_MAX_PROGRAMS} compiled programs, and this request needs "
                "another one: use a number of prompts and `top_k` of earlier requests"
            )
        texts = ServedTexts(self.lm, request)
        self._programs.add(program)
        return texts

    def score(self, request: ScoreRequest) -> Iterator[list[dict[str, Any]]]:
        """Yields the scores of the next texts, with the field names of `TextScore`."""
        texts, carries = request.texts, request.carry_memory
        n_each = max(len(texts), 1) if carries else _SCORE_PIECE
        for start in range(0, len(texts), n_each):
            piece = texts[start : start + n_each]
            with warnings.catch_warnings():
                # The answer has the number of unknown tokens; Python would keep every warning.
                warnings.simplefilter("ignore", UserWarning)
                scores = self.lm.score(piece, prefix=request.prefix, carry_memory=carries)
            yield [_describe_score(score, request.per_token) for score in scores]


def _make_sampler(lm: LanguageModel, request: CompletionRequest) -> StandardSampler:
    return StandardSampler(
        request.temperature,
        min(request.top_k, lm.config.n_token),
        None if request.top_p == 1 else request.top_p,
        request.repetition_penalty,
    )


def _describe_score(score: TextScore, per_token: bool) -> dict[str, Any]:
    """Returns a score for JSON."""
    described = replace_nans({name: getattr(score, name) for name in _MEASURES})
    if per_token:
        described["ids"] = score.ids.tolist()
        described["nats"] = score.nats.tolist()
    return described
