"""Finds the layer and the term in which an imported model differs from the 2019 release.

txl verify_release --source pretrained_xl/tf_wt103

It computes segments with memory twice, with the model of this package and with a slow one in plain
NumPy that reads the checkpoint's variables. It compares all terms, and exits with 1 if they differ.
"""

import dataclasses
import functools
from typing import TYPE_CHECKING

from absl import flags

from txl_tf.config import SHAPELESS, AttentionSpan, ModelConfig
from txl_tf.config.base import list_differences
from txl_tf.errors import UserError
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import EXIT_FAILED, program
from txl_tf.programs.cli.run_flags import check_run, check_source, define_threads_flag

if TYPE_CHECKING:
    from txl_tf.models.transformer_xl import TransformerXL


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, before parsing."""
    options = flags.FlagValues()
    define = functools.partial(define_flag, options)
    text = "Folder of a release, its folder model/, or a checkpoint such as model/model.ckpt-0."
    define("source", str, None, text, required=True, is_path=True)
    text = "Folder of a run that was imported from the source. [default: import the weights now]"
    define("run", str, None, text, is_path=True)
    define("tgt_len", int, 8, "Segment length T.", lower_bound=1)
    define("mem_len", int, 12, "Memory length M; 0 for no memory.", lower_bound=0)
    define("same_length", bool, None, "Let every query see M + 1 keys. [default: compare both]")
    text = "Clamp larger distances to this value; -1 for no limit. [default: half of --mem_len "
    define("clamp_len", int, None, text + "with --same_length, otherwise -1]")
    define_threads_flag(options)
    return options


@program(__doc__, define_flags, positional="source")
def main(options: flags.FlagValues) -> int:
    """Compares the model with the reference, prints the result, and returns 1 if they differ."""
    spans = list_spans(options)
    check_source(options.source)
    if options.run:
        check_run(options.run)

    import numpy as np
    import tensorflow as tf

    from txl_tf.lab.verify import comparison
    from txl_tf.release import load_model
    from txl_tf.release.infer import describe_config, infer_config
    from txl_tf.release.names import SCOPE, list_entries
    from txl_tf.release.transformers_folder import is_transformers_folder
    from txl_tf.release.weights import find_release_checkpoint, read_weights

    if is_transformers_folder(options.source):
        raise UserError(
            f"`{options.source}` is of Hugging Face transformers: only checkpoints of the 2019 "
            "release can be compared"
        )
    tf.config.experimental.enable_tensor_float_32_execution(False)  # it has only 10 bits
    path = find_release_checkpoint(options.source)
    config = infer_config(path)
    print(f"Comparing {options.run or 'the imported model'} with {path}:")
    print(f"  {describe_config(config)};")
    print(f"  {'; '.join(map(comparison.describe_attention_span, spans))}.")
    model = load_run(options.run, config) if options.run else load_model(path, config)
    variables = read_weights(path)
    checks = comparison.compare_model(model, variables, tgt_len=options.tgt_len, spans=spans)
    pairs = [(f"{SCOPE}{source}", target.numpy()) for source, target in list_entries(model)]
    differing = [x for x, value in pairs if not np.array_equal(variables[x], value, equal_nan=True)]
    if differing:  # the drawn ids need not use all of them
        more = f" and {len(differing) - 5} more" if len(differing) > 5 else ""
        print(f"Weights that differ from the checkpoint: {', '.join(differing[:5])}{more}.\n")
    print("Largest differences, relative to the largest value of the term; ! marks disagreement:\n")
    for line in (*comparison.format_table(checks), "", *comparison.describe_verdict(checks)):
        print(line.rstrip())
    agrees = comparison.find_first(checks) is None and not differing
    return 0 if agrees else EXIT_FAILED


def list_spans(options: flags.FlagValues) -> list[AttentionSpan]:
    """Returns the attention spans that the flags ask for."""
    spans = []
    both = (False, True) if options.mem_len else (False,)  # without memory, it has no effect
    for same_length in both if options.same_length is None else (options.same_length,):
        clamp_len = max(1, options.mem_len // 2) if same_length else -1
        clamp_len = clamp_len if options.clamp_len is None else options.clamp_len
        spans.append(AttentionSpan(options.mem_len, same_length, clamp_len))
    return spans


def load_run(model_dir: str, config: ModelConfig) -> "TransformerXL":
    """Returns the model of a run, with the weights of its newest checkpoint."""
    from txl_tf.language_model import load
    from txl_tf.models.architecture import check_transformer
    from txl_tf.runs.folder import read_run_config

    own = read_run_config(model_dir).model
    check_transformer(own, "the 2019 release")
    shapeless = {name: getattr(own, name) for name in SHAPELESS}
    wanted = dataclasses.replace(config, **shapeless)
    if own != wanted:
        differences = list_differences(own.to_json(), wanted.to_json())
        raise UserError(
            f"`{model_dir}` has another model than the checkpoint: {'; '.join(differences)}"
        )
    return load(model_dir, checkpoint="newest").model
