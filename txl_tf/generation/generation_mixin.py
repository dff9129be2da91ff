"""The part of `LanguageModel` that generates texts."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from txl_tf.config import DEFAULT_TEMPERATURE, DEFAULT_TOP_K, EvalConfig
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError
from txl_tf.generation.generator import Generator
from txl_tf.generation.sampling import SamplingConfig
from txl_tf.generation.session import Session
from txl_tf.generation.text_encoder import TextEncoder, check_list
from txl_tf.models.architecture import check_transformer
from txl_tf.models.cached_model import make_cached
from txl_tf.models.compilation import Recent
from txl_tf.models.segment_model import SegmentModel


class GenerationMixin:
    """The methods of `LanguageModel` that generate texts."""

    model: SegmentModel
    vocabulary: Vocabulary | None
    evaluation: EvalConfig
    _encoder: TextEncoder
    _generators: Recent[tuple[EvalConfig, bool], Generator]

    def generate(
        self,
        prompt: str | bytes | np.ndarray | Sequence[str | bytes | np.ndarray],
        *,
        max_new_tokens: int = 200,
        seed: int | Sequence[int] = 0,
        temperature: float = DEFAULT_TEMPERATURE,
        top_k: int | None = DEFAULT_TOP_K,
        top_p: float | None = None,
        repetition_penalty: float = 1.0,
        banned: str | Iterable[str] | None = None,
        stops: str | Iterable[str] = (),
        mask_empty_memory: bool = True,
    ) -> Any:
        """Continues one or more prompts of any lengths.

        Args:
            prompt: A text of at least one token, its ids (n,), or a list of texts and ids.
            max_new_tokens: Number of tokens to add to each prompt.
            seed: A seed for all prompts, or a list with one for each. A text depends only on its
                own seed, not on the other texts. Of a quantized model, more than four texts are
                computed in another way than fewer, and may differ: see docs/generating.md.
            temperature: See `start`, as for the following arguments.
            top_k: See `start`.
            top_p: See `start`.
            repetition_penalty: See `start`.
            banned: See `start`.
            stops: See `start`.
            mask_empty_memory: See `start`.

        Returns:
            The text added to the prompt, or ids (n,) int32 if the prompt is ids; a list for a list.

        Raises:
            UserError: If a prompt is empty or contains a symbol that the vocabulary cannot encode,
                or if an argument is out of range.
        """
        is_list = isinstance(prompt, (list, tuple)) and not all(
            isinstance(item, (int, np.integer)) for item in prompt
        )
        prompts: Any = prompt if is_list else [prompt]
        session = self.start(
            prompts,
            seed=seed,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            repetition_penalty=repetition_penalty,
            banned=banned,
            stops=stops,
            mask_empty_memory=mask_empty_memory,
        )
        for _ in session.draw_pieces(max_new_tokens):
            pass
        return session.added if is_list else session.added[0]

    def stream(
        self,
        prompt: str,
        *,
        max_new_tokens: int = 200,
        seed: int = 0,
        temperature: float = DEFAULT_TEMPERATURE,
        top_k: int | None = DEFAULT_TOP_K,
        top_p: float | None = None,
        repetition_penalty: float = 1.0,
        banned: str | Iterable[str] | None = None,
        stops: str | Iterable[str] = (),
        mask_empty_memory: bool = True,
    ) -> Iterator[str]:
        """Returns an iterator over the text of `generate`, which yields it while it is generated.

        Raises:
            UserError: See `generate`.
        """
        if not isinstance(prompt, str):
            raise UserError(f"`prompt` must be a text. Received: {type(prompt).__name__}")
        session = self.start(
            [prompt],
            seed=seed,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            repetition_penalty=repetition_penalty,
            banned=banned,
            stops=stops,
            mask_empty_memory=mask_empty_memory,
        )
        return session.stream(max_new_tokens)

    def start(
        self,
        prompts: str | bytes | Sequence[str | bytes | np.ndarray],
        *,
        seed: int | Sequence[int] = 0,
        temperature: float = DEFAULT_TEMPERATURE,
        top_k: int | None = DEFAULT_TOP_K,
        top_p: float | None = None,
        repetition_penalty: float = 1.0,
        banned: str | Iterable[str] | None = None,
        stops: str | Iterable[str] = (),
        mask_empty_memory: bool = True,
    ) -> Session:
        """Reads prompts and returns a session, which keeps the memory and can be continued.

        Args:
            prompts: Texts of at least one token, or their ids.
            seed: A seed for all prompts, or a list with one for each.
            temperature: Divisor of the log-probabilities; 0 always takes the most likely token
                (greedy decoding).
            top_k: Draw from this many of the most likely tokens; 0 or `None` for all.
            top_p: Nucleus sampling: draw from the most likely tokens that together have this
                probability; `None` for all.
            repetition_penalty: Factor of the log-probabilities of tokens that the text already
                contains; 1 for none.
            banned: Symbols, or texts of one token, that are never drawn; a `str` is a single one.
                `None` for the unknown symbol, if there is one.
            stops: Symbols, or texts of any length, that end a text; a `str` is a single stop. Only
                the added text is searched. The text keeps the stop as its end: a subword is cut
                after it, a word is not.
            mask_empty_memory: Whether to hide memory entries that hold no token yet. The 2019
                release attends to them.

        Raises:
            UserError: See `generate`.
        """
        check_transformer(self.model.config, "generation")
        if not isinstance(prompts, str | bytes):
            check_list("prompts", prompts)
        prompts = [prompts] if isinstance(prompts, str | bytes) else list(prompts)
        ids = [self._encoder.encode(prompt) for prompt in prompts]
        seeds: Any = [seed] * len(ids) if np.ndim(seed) == 0 else seed
        if len(seeds) != len(ids):
            raise UserError(f"`seed` must be one seed, or {len(ids)}. Received: {len(seeds)}")
        unknown = self.vocabulary.unknown if self.vocabulary else None
        if banned is None:
            banned = [unknown] if unknown else []
        banned = [banned] if isinstance(banned, str) else banned
        check_list("banned", banned, has_order=False)
        found_stops = self._encoder.make_stops(stops)
        sampling = SamplingConfig(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            repetition_penalty=repetition_penalty,
            banned=tuple(map(self._encoder.find_id, banned)),
            stops=found_stops.ids if found_stops else (),
        )
        return Session(
            self._get_generator(mask_empty_memory),
            ids,
            sampling,
            seeds,
            vocabularies=[self.vocabulary if isinstance(p, str | bytes) else None for p in prompts],
            stops=found_stops,
        )

    def _get_generator(self, mask_empty_memory: bool) -> Generator:
        key = (self.evaluation, mask_empty_memory)
        return self._generators.get_or_make(
            key,
            lambda: Generator(
                make_cached(self.model, self.evaluation, mask_empty_memory=mask_empty_memory)
            ),
        )
