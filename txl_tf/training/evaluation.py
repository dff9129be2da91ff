"""The evaluation of a run's checkpoints."""

import functools

from tqdm import tqdm

from txl_tf.config import EvalConfig
from txl_tf.data.data_set import DataSet
from txl_tf.errors import UserError
from txl_tf.model import TransformerXL
from txl_tf.training.checkpoint_files import find_checkpoint, list_checkpoints, read_step
from txl_tf.training.checkpoint_weights import load_weights
from txl_tf.training.cluster import Cluster
from txl_tf.training.evaluator import Evaluator, Score
from txl_tf.training.log import format_score, write_evaluation
from txl_tf.training.run_folder import RunConfig, check_vocabulary


def evaluate(
    records: DataSet,
    config: RunConfig,
    *,
    model_dir: str,
    split: str,
    checkpoint: str | None = None,
    first_step: int | None = None,
    max_segments: int | None = None,
    use_ema: bool = True,
    jit_compile: bool = True,
) -> list[Score]:
    """Evaluates checkpoints of a run, prints their scores and adds them to `evaluations.jsonl`.

    Args:
        records: the data set.
        config: the run's.
        model_dir: run folder.
        split: split to score.
        checkpoint: path of the checkpoint; `None` for the newest.
        first_step: evaluate every checkpoint from this step on.
        max_segments: segments of each lane to score; `None` for all.
        use_ema: take the averages of the weights where a checkpoint has them.
        jit_compile: whether XLA compiles the model.

    Returns:
        The scores, in the order of the steps.

    Raises:
        UserError: the run has another vocabulary or model, there is no such checkpoint, the split
            knows no documents, or a record is damaged.
    """
    check_vocabulary(model_dir, records.vocabulary)
    if config.evaluation.reset_at_documents:
        check_documents(records, split)
    if first_step is None:
        path = checkpoint or find_checkpoint(model_dir)
        checkpoints = [(read_step(path), path)]
    else:
        checkpoints = [pair for pair in list_checkpoints(model_dir) if pair[0] >= first_step]
        if not checkpoints:
            raise UserError(f"`{model_dir}` holds no checkpoint from step {first_step} on")
    print(f"Scores {split} with {describe_evaluation(config.evaluation)}.")
    model = TransformerXL(config.model)
    evaluator = Evaluator(model, config.evaluation, jit_compile=jit_compile)
    tokens = records.split(split)
    scores = []
    for step, path in checkpoints:
        is_averaged = load_weights(model, path, use_averages=use_ema)
        with tqdm(desc=split, unit="segment", disable=None) as bar:
            report = functools.partial(_show_score, bar)
            score = evaluator.score(tokens, max_segments=max_segments, report=report)
        is_whole = score.tokens == len(tokens) - 1
        cut = "" if is_whole else f" of {len(tokens) - 1:,}"
        weights = ", averaged weights" if is_averaged else ""
        print(f"{split} at step {step}{weights}: {format_score(score)}{cut}")
        write_evaluation(
            model_dir,
            score,
            config.evaluation,
            split=split,
            checkpoint=path,
            step=step,
            is_whole=is_whole,
            is_averaged=is_averaged,
        )
        scores.append(score)
    return scores


def check_documents(records: DataSet, split: str) -> None:
    """Checks that a split knows where its documents begin.

    Raises:
        UserError: it does not, or there is no such split.
    """
    records.split(split)  # raises if there is none
    if not records.n_documents(split):
        raise UserError(
            "`reset_at_documents` needs a data set with document boundaries; "
            f"{records.data_dir} has none in split {split}"
        )


def describe_evaluation(config: EvalConfig) -> str:
    """Returns how a split is scored, for people.

    >>> describe_evaluation(EvalConfig(80, 2100, clamp_len=820, eval_batch_size=2))
    'tgt_len 80, mem_len 2100, same_length false, clamp_len 820, 2 lanes'
    >>> describe_evaluation(EvalConfig(128, 1600, same_length=True, counts_self=True))
    'tgt_len 128, mem_len 1600, same_length true, counts_self true, clamp_len -1, 60 lanes'
    """
    own = ", counts_self true" if config.same_length and config.counts_self else ""
    reset = ", reset_at_documents true" if config.reset_at_documents else ""
    return (
        f"tgt_len {config.tgt_len}, mem_len {config.mem_len}, "
        f"same_length {str(config.same_length).lower()}{own}, clamp_len {config.clamp_len}, "
        f"{config.eval_batch_size} lanes{reset}"
    )


def is_chief() -> bool:
    """Tells whether this process is the one that evaluates, of those that TF_CONFIG names."""
    cluster = Cluster.from_environment()
    return cluster is None or cluster.index == 0


def _show_score(bar: tqdm, done: int, total: int, score: Score) -> None:
    bar.total = total
    bar.set_postfix_str(f"bpc {score.bpc:.4f}", refresh=False)
    bar.update(done - bar.n)
