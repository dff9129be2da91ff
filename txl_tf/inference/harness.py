"""Runs as models of EleutherAI's lm-evaluation-harness; needs the extra `harness`."""

import itertools
from collections.abc import Sequence
from typing import Any, Self

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.utils import simple_parse_args_string

from txl_tf.cached_model import CachedModel
from txl_tf.data.vocabulary import Vocabulary
from txl_tf.errors import UserError
from txl_tf.inference.continuations import ContinuationScorer, encode_continuation
from txl_tf.inference.language_model import LanguageModel
from txl_tf.inference.scoring import BATCH_SIZE

_MODEL_ARGS = ("run", "checkpoint", "batch_size", "prefix")
MAX_NEW_TOKENS = 256  # where a task does not say, as the harness has it for its own models


@register_model("txl_tf")
class TxlLM(LM):
    """A run, as the harness asks for it: `lm_eval.simple_evaluate(model="txl_tf", ...)`.

    A text is read with memory, whatever its length: nothing is cut off, and no window is slid over
    it. Places of the memory that nothing was read into are hidden.

    Args:
        run: the run folder, or a `LanguageModel`.
        checkpoint: as in `txl_tf.load`.
        batch_size: how many requests are read at once.
        prefix: read before a text that has no context; `None`: a line break, or a space where the
            vocabulary has no line break.

    Raises:
        UserError: the run cannot be read, it has no vocabulary, or an argument is out of its range.
    """

    def __init__(
        self,
        run: str | LanguageModel,
        *,
        checkpoint: str | None = None,
        batch_size: int | str = BATCH_SIZE,
        prefix: str | None = None,
    ):
        super().__init__()
        if not isinstance(run, LanguageModel):
            run = LanguageModel.load(run, checkpoint=checkpoint)
        self.lm = run
        if self.lm.vocabulary is None:
            raise UserError("`run` must have a vocabulary: the harness's requests are texts")
        if not str(batch_size).isdecimal() or int(batch_size) < 1:
            raise UserError(f"`batch_size` must be positive. Received: batch_size={batch_size!r}")
        self.vocabulary = self.lm.vocabulary
        self.batch_size = int(batch_size)
        self.prefix = choose_prefix(self.vocabulary) if prefix is None else prefix
        cached = CachedModel(
            self.lm.model, self.lm.span, self.lm.evaluation.tgt_len, mask_empty_memory=True
        )
        self._scorer = ContinuationScorer(cached, self.batch_size)

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: dict[str, Any] | None = None
    ) -> Self:
        """Makes the model of arguments as `create_from_arg_obj`, given as `run=...,prefix=...`."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> Self:
        """Makes the model of the harness's arguments.

        Args:
            arg_dict: those of `model_args`: the class's.
            additional_config: those of the harness. Only `batch_size` is used, if `arg_dict` has
                none: TensorFlow chooses the device.

        Raises:
            UserError: `run` is missing, or an argument is unknown.
        """
        if "run" not in arg_dict or not set(arg_dict) <= set(_MODEL_ARGS):
            raise UserError(
                f"`model_args` must be run=FOLDER, and may be {', '.join(_MODEL_ARGS[1:])}. "
                f"Received: {', '.join(arg_dict) or 'none'}"
            )
        batch_size = (additional_config or {}).get("batch_size")
        return cls(**({} if batch_size is None else {"batch_size": batch_size}) | arg_dict)

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Returns log p of each continuation in nats, and whether it is the likeliest throughout.

        Args:
            requests: each with a context and a continuation.
        """
        texts = [request.args for request in requests]
        encoded = [
            encode_continuation(self.vocabulary, context, continuation, self.prefix)
            for context, continuation in texts
        ]
        scores = [tuple(score) for score in self._scorer.score(encoded)]
        return self._remember("loglikelihood", texts, scores)

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Returns log p of each text in nats, all of its tokens, read from its start to its end.

        Args:
            requests: each with a text.
        """
        texts = [request.args for request in requests]
        scores = self.lm.score(
            [text for (text,) in texts], prefix=self.prefix, batch_size=self.batch_size
        )
        found = [-score.total_nats for score in scores]
        return self._remember("loglikelihood_rolling", texts, found)

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Returns what each context goes on with, up to the first of its stops.

        Args:
            requests: each with a context and settings: `until`, `max_gen_toks`, `do_sample`,
                `temperature`, `top_k`, `top_p`. Without sampling the likeliest token is taken.

        Raises:
            UserError: a setting is none of these, or out of its range.
        """
        texts = [request.args for request in requests]
        found = [""] * len(texts)
        keys = [repr(sorted(settings.items())) for _, settings in texts]
        order = sorted(range(len(texts)), key=lambda place: keys[place])
        for _, group in itertools.groupby(order, key=lambda place: keys[place]):
            places = list(group)
            for start in range(0, len(places), self.batch_size):
                batch = places[start : start + self.batch_size]
                contexts = [texts[place][0] or self.prefix for place in batch]
                added = self._generate(contexts, batch, **read_settings(texts[batch[0]][1]))
                for place, text in zip(batch, added, strict=True):
                    found[place] = text
        return self._remember("generate_until", texts, found)

    def _generate(
        self,
        contexts: Sequence[str],
        seeds: Sequence[int],
        *,
        until: Sequence[str],
        max_new_tokens: int,
        **choice: Any,
    ) -> list[str]:
        """Returns what contexts go on with, all with the same settings."""
        session = self.lm.start(list(contexts), seed=list(seeds), **choice)
        for _ in session.draw_pieces(max_new_tokens):
            if until and all(any(stop in text for stop in until) for text in session.added):
                break
        return [cut_at(str(text), until) for text in session.added]

    def _remember(self, name: str, texts: Sequence[tuple], found: list) -> list:
        """Hands the answers to the harness's cache, and returns them."""
        for arguments, answer in zip(texts, found, strict=True):
            self.cache_hook.add_partial(name, arguments, answer)
        return found


def choose_prefix(vocabulary: Vocabulary) -> str:
    """Returns a line break or a space, whichever the vocabulary has first; empty for neither."""
    for prefix in ("\n", " "):
        encoded = vocabulary.codec.encode(prefix.encode("utf-8"))
        if len(encoded.ids) and not encoded.unknown:
            return prefix
    return ""


def cut_at(text: str, stops: Sequence[str]) -> str:
    r"""Returns a text up to the first of some stops.

    >>> cut_at("one. two\n", ["\n", "."])
    'one'
    """
    ends = [text.find(stop) for stop in stops]
    return text[: min((end for end in ends if end >= 0), default=len(text))]


def read_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of `TxlLM._generate` for the settings of a request.

    Raises:
        UserError: one is unknown.
    """
    rest = dict(settings)
    until = rest.pop("until", None) or []
    max_new_tokens = int(rest.pop("max_gen_toks", MAX_NEW_TOKENS))
    temperature = float(rest.pop("temperature", 1.0 if rest.get("do_sample") else 0.0))
    if not rest.pop("do_sample", temperature > 0):
        temperature = 0.0
    choice: dict[str, Any] = {k: rest.pop(k) for k in ("top_k", "top_p") if k in rest}
    if rest:
        raise UserError(
            "settings of a generation must be among until, max_gen_toks, do_sample, temperature, "
            f"top_k, top_p. Received: {', '.join(rest)}"
        )
    if temperature == 0:
        choice = {}  # the likeliest token is the same with all of them
    stops = [until] if isinstance(until, str) else [stop for stop in until if stop]
    return {"until": stops, "max_new_tokens": max_new_tokens, "temperature": temperature} | choice
