"""The adapter for EleutherAI's lm-evaluation-harness; needs the extra `harness`."""

import itertools
from collections.abc import Sequence
from typing import Any, Self

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.utils import simple_parse_args_string

from txl_tf import LanguageModel
from txl_tf.data.text.vocabulary import choose_prefix
from txl_tf.errors import UserError
from txl_tf.generation.stops import match_case
from txl_tf.scoring.continuations import ContinuationScorer, encode_continuation
from txl_tf.scoring.scorer import SCORING_BATCH_SIZE

_MODEL_ARGS = ("run", "checkpoint", "batch_size", "prefix")
MAX_NEW_TOKENS = 256  # the default of the harness for its own models
# The names that tasks have for it; the first one given counts.
_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


@register_model("txl_tf")
class TxlLM(LM):
    """A run as a model of the harness: `lm_eval.simple_evaluate(model="txl_tf", ...)`.

    Texts of any length are read with memory: nothing is truncated, and there is no sliding window.
    The empty memory is masked.

    Args:
        run: The run folder, or a `LanguageModel`.
        checkpoint: The checkpoint; as in `LanguageModel.load`.
        batch_size: Number of requests to read at once.
        prefix: Text to read before a text without context; `None` for a line break, or for a space
            if the vocabulary has no line break.

    Raises:
        UserError: If the run cannot be read or has no vocabulary, or an argument is out of range.
    """

    def __init__(
        self,
        run: str | LanguageModel,
        *,
        checkpoint: str | None = None,
        batch_size: int | str = SCORING_BATCH_SIZE,
        prefix: str | None = None,
    ):
        super().__init__()
        if not isinstance(run, LanguageModel):
            run = LanguageModel.load(run, checkpoint=checkpoint)
        self.lm = run
        if self.lm.vocabulary is None:
            raise UserError("`run` must have a vocabulary: the harness requests texts")
        if not str(batch_size).isdecimal() or int(batch_size) < 1:
            raise UserError(f"`batch_size` must be positive. Received: batch_size={batch_size!r}")
        self.vocabulary = self.lm.vocabulary
        self.batch_size = int(batch_size)
        self.prefix = choose_prefix(self.vocabulary) if prefix is None else prefix
        self._scorer = ContinuationScorer(self.lm.model, self.lm.evaluation, self.batch_size)

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: dict[str, Any] | None = None
    ) -> Self:
        """Creates the model like `create_from_arg_obj`, from arguments `run=...,prefix=...`."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> Self:
        """Creates the model from `model_args`, and the harness's `batch_size` if they have none."""
        if "run" not in arg_dict or not set(arg_dict) <= set(_MODEL_ARGS):
            raise UserError(
                f"`model_args` must be run=FOLDER and optionally {', '.join(_MODEL_ARGS[1:])}. "
                f"Received: {', '.join(arg_dict) or 'none'}"
            )
        for name in {"run", "prefix"} & set(arg_dict):  # the harness reads run=2024 as a number
            if isinstance(arg_dict[name], int | float):
                arg_dict = arg_dict | {name: str(arg_dict[name])}
        batch_size = (additional_config or {}).get("batch_size")
        return cls(**({} if batch_size is None else {"batch_size": batch_size}) | arg_dict)

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Returns log p of each continuation in nats, and whether greedy decoding generates it."""
        texts = [request.args for request in requests]
        encoded = [
            encode_continuation(self.vocabulary, context, continuation, self.prefix)
            for context, continuation in texts
        ]
        return [(score.log_prob, score.is_greedy) for score in self._scorer.score(encoded)]

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Returns log p of all tokens of each text in nats."""
        texts = [request.args for request in requests]
        scores = self.lm.score(
            [text for (text,) in texts], prefix=self.prefix, batch_size=self.batch_size
        )
        return [-score.total_nats for score in scores]

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Returns the generated continuation of each context, up to its first stop.

        The settings of a request are `until`, `max_gen_toks` and its other names, `do_sample`,
        `temperature`, `top_k`, `top_p`, and `num_beams` of 1. Without sampling, decoding is greedy.
        """
        texts = [request.args for request in requests]
        answers = [""] * len(texts)
        keys = [repr(sorted(settings.items())) for _, settings in texts]
        order = sorted(range(len(texts)), key=lambda index: keys[index])
        for _, group in itertools.groupby(order, key=lambda index: keys[index]):
            indices = list(group)
            for start in range(0, len(indices), self.batch_size):
                batch = indices[start : start + self.batch_size]
                contexts = [texts[index][0] or self.prefix for index in batch]
                added = self._generate(contexts, batch, **read_settings(texts[batch[0]][1]))
                for index, text in zip(batch, added, strict=True):
                    answers[index] = text
        return answers

    def _generate(
        self,
        contexts: Sequence[str],
        seeds: Sequence[int],
        *,
        until: Sequence[str],
        max_new_tokens: int,
        **sampling: Any,
    ) -> list[str]:
        """Returns the continuations of contexts that have the same settings."""
        until = [match_case(self.vocabulary, stop) for stop in until]
        session = self.lm.start(list(contexts), seed=list(seeds), **sampling)
        for _ in session.draw_pieces(max_new_tokens):
            if until and all(any(stop in text for stop in until) for text in session.added):
                break
        return [cut_at(str(text), until) for text in session.added]


def cut_at(text: str, stops: Sequence[str]) -> str:
    r"""Returns a text up to its first stop.

    >>> cut_at("one. two\n", ["\n", "."])
    'one'
    """
    ends = [text.find(stop) for stop in stops]
    return text[: min((end for end in ends if end >= 0), default=len(text))]


def read_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Converts the settings of a request to the arguments of `TxlLM._generate`."""
    rest = dict(settings)
    until = rest.pop("until", None) or []
    lengths = [rest.pop(name, None) for name in _LENGTHS]
    max_new_tokens = int(next((n for n in lengths if n is not None), MAX_NEW_TOKENS))
    if rest.get("num_beams") == 1:  # no beam search
        del rest["num_beams"]
    temperature = float(rest.pop("temperature", 1.0 if rest.get("do_sample") else 0.0))
    if not rest.pop("do_sample", temperature > 0):
        temperature = 0.0
    filters: dict[str, Any] = {"top_k": rest.pop("top_k", None) or None}  # 0 for all
    if "top_p" in rest:
        filters["top_p"] = rest.pop("top_p")
    if rest:
        raise UserError(
            f"generation settings must be among until, {', '.join(_LENGTHS)}, do_sample, "
            f"temperature, top_k, top_p, num_beams=1. Received: {', '.join(rest)}"
        )
    if temperature == 0:
        filters = {}  # they do not change the most likely token
    stops = [until] if isinstance(until, str) else [stop for stop in until if stop]
    return {
        "until": stops,
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
    } | filters
