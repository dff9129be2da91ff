"""Goes on with a text, token by token, with the memory of all before it.

python examples/sample.py --model_dir runs/demo --prompt "Return the" --length 300
"""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from absl import flags

from txl_tf.errors import UserError
from txl_tf.program import define_flag, run_program

if TYPE_CHECKING:
    from txl_tf.config import AttentionSpan
    from txl_tf.model import TransformerXL


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, not yet read."""
    options = flags.FlagValues()
    define_flag(options, "model_dir", str, None, "Folder of the run.", required=True)
    define_flag(options, "prompt", str, "Return ", "Text to go on with.")
    define_flag(options, "length", int, 300, "Tokens to add.", lower_bound=1)
    define_flag(options, "temperature", float, 0.8, "Below 1: likelier.", lower_bound=1e-3)
    define_flag(options, "seed", int, 0, "The same seed, the same text.", lower_bound=0)
    return options


def print_sample(options: flags.FlagValues) -> None:
    """Loads the newest checkpoint of a run and prints a text that begins with the prompt."""
    from txl_tf.model import TransformerXL
    from txl_tf.training.checkpoint_files import find_checkpoint
    from txl_tf.training.checkpoint_weights import load_weights
    from txl_tf.training.run_folder import read_run_config, read_run_vocabulary

    config = read_run_config(options.model_dir)
    vocabulary = read_run_vocabulary(options.model_dir)
    if vocabulary is None:
        raise UserError(f"`{options.model_dir}` holds a run without a vocabulary: it knows no text")
    prompt = vocabulary.encode(options.prompt)
    if not prompt.size:
        raise UserError("`prompt` must hold at least one token. Received: an empty text")
    model = TransformerXL(config.model)
    if load_weights(model, find_checkpoint(options.model_dir)):
        print("With the averaged weights:")
    tokens = sample_tokens(
        model,
        config.evaluation.span,
        prompt,
        temperature=options.temperature,
        generator=np.random.default_rng(options.seed),
    )
    ids = [next(tokens) for _ in range(options.length)]
    print(vocabulary.decode(np.concatenate([prompt, ids])))


def sample_tokens(
    model: "TransformerXL",
    span: "AttentionSpan",
    prompt: np.ndarray,
    *,
    temperature: float,
    generator: np.random.Generator,
) -> Iterator[int]:
    """Yields token after token, each drawn from the model's distribution and then read by it.

    Args:
        model: the model.
        span: what it sees; the memory holds `span.mem_len` states of each layer.
        prompt: (n,) int32, the ids before the first token drawn.
        temperature: the log-probabilities are divided by it.
        generator: draws the tokens.
    """
    import tensorflow as tf

    @tf.function(autograph=False)
    def read(ids: tf.Tensor, memory: tuple) -> tuple[tf.Tensor, tuple]:
        hidden, memory = model(ids, memory, span=span)
        return model.log_probs(hidden[:, -1:])[0, 0], memory

    memory = model.initial_memory(batch_size=1, mem_len=span.mem_len)
    ids = prompt
    while True:
        log_probs, memory = read(tf.constant(ids[None]), memory)
        weights = np.exp(log_probs.numpy().astype(np.float64) / temperature)
        ids = generator.choice(len(weights), size=1, p=weights / weights.sum()).astype(np.int32)
        yield int(ids[0])


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    return run_program(str(__doc__), define_flags(), print_sample, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
