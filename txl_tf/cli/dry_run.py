"""Describes a dry run: what a training command would do, and the resources it would need."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from absl import flags

from txl_tf.compilation import choose_jit, has_accelerator
from txl_tf.config import KERNEL_DTYPES, LSTM, EvalConfig, ModelConfig, TrainConfig
from txl_tf.config.run_options import RunOptions
from txl_tf.data.reading import Records
from txl_tf.errors import UserError
from txl_tf.evaluation.checkpoints import describe_evaluation
from txl_tf.inference.costs import count_token_flops, estimate_generation_memory
from txl_tf.runs.checkpoint_files import list_checkpoints
from txl_tf.runs.files import exists
from txl_tf.runs.folder import RunConfig, check_run_folder
from txl_tf.training.flops import count_run_flops, count_step_flops_by_part
from txl_tf.training.job import check_steps, describe_changes, describe_epoch, make_lanes
from txl_tf.training.step_memory import estimate_activations, estimate_memory
from txl_tf.training.trainer import check_batch

_SAMPLED_TOKENS = 200_000  # whose bins are counted


def describe_dry_run(
    options: flags.FlagValues,
    run_options: RunOptions,
    records: Records,
    config: RunConfig,
    n_replicas: int | None,
) -> Iterator[str]:
    """Yields lines about what the training would do and need.

    Args:
        options: The flags of the training command.
        run_options: When the run logs, saves, evaluates and stops.
        records: The data set.
        config: The config of the run.
        n_replicas: The number of replicas; `None` if it is known only when training starts.

    Raises:
        UserError: If the training would be refused.
    """
    training, model_dir = config.training, options.model_dir
    found = check_run_folder(model_dir, config, records.vocabulary)
    lanes = make_lanes(records, training)
    check_batch(training, n_replicas or 1)
    checkpoints = list_checkpoints(model_dir)
    first_step = checkpoints[-1][0] if checkpoints else 0
    check_steps(model_dir, first_step, training)
    counts: dict[str, Any] = {
        "n_replicas": n_replicas or 1,
        "bin_shares": measure_bin_shares(records, config.model),
    }
    parts = config.model.count_parameters_by_part()
    yield "A dry run: nothing is trained or written."
    yield (
        f"parameters  {sum(parts):,}: embedding {parts.embedding:,}, layers {parts.layers:,}, "
        f"softmax {parts.softmax:,} without the tables"
    )
    has_estimates = config.model.model_type != LSTM
    flops = {}
    if has_estimates:
        yield from _describe_memory(config.model, training, n_replicas)
        flops = count_step_flops_by_part(config.model, training, **counts)
    else:
        yield "memory      not estimated for an LSTM, nor are operations"
        yield f"            {_describe_replicas(training.train_batch_size, n_replicas)}"
    yield (
        f"step        {training.train_batch_size * training.tgt_len:,} tokens, "
        f"{training.train_batch_size} lanes of {training.tgt_len}"
        + (f" after {training.extra_len} of extra context" if training.extra_len else "")
        + (f"; {_format_flops(sum(flops.values()))} in matrix products" if flops else "")
    )
    yield from _list_shares({name: (count, _format_flops(count)) for name, count in flops.items()})
    n_tokens = lanes.n_lanes * (
        lanes.count_tokens(training.train_steps) - lanes.count_tokens(first_step)
    )
    epochs = n_tokens / (lanes.n_lanes * lanes.lane_len)
    all_flops = ""
    if has_estimates:
        count = count_run_flops(config.model, training, first_step=first_step, **counts)
        all_flops = f"; {_format_flops(count)}"
    yield (
        f"run         step {first_step:,} to {training.train_steps:,}: {n_tokens:,} tokens, "
        f"{epochs:,.2f} epochs, {describe_epoch(lanes)}{all_flops}"
    )
    yield f"start       {_describe_start(options, training, checkpoints)}"
    changes = describe_changes(first_step, found.training, training) if found else {}
    for subject, change in changes.items():
        yield f"{subject:<12}{change}"
    yield f"saves       every {run_options.save_steps:,} steps and at the end, to {model_dir}"
    evaluations = _describe_evaluations(run_options, records, config, at_end=options.do_eval)
    yield f"evaluation  {evaluations}"
    if has_estimates and config.model.can_have_memory:
        yield from _describe_token(config.model, config.evaluation)


def measure_bin_shares(records: Records, model: ModelConfig) -> tuple[float, ...]:
    """Returns the share of each bin in the tokens at the beginning of the training text."""
    split = records.split("train")
    ids = split.read(0, min(len(split), _SAMPLED_TOKENS))
    bins = np.searchsorted(model.cutoffs, ids, side="right")
    counts = np.bincount(bins, minlength=len(model.bins))
    return tuple((counts / counts.sum()).tolist())


def _describe_memory(
    model: ModelConfig, training: TrainConfig, n_replicas: int | None
) -> Iterator[str]:
    """Yields a line and a table about the memory of training on each replica."""
    # Where the number of replicas is not known yet, they are not the devices of this machine.
    is_here = n_replicas is not None
    options: dict[str, Any] = {
        "n_replicas": n_replicas or 1,
        "is_widened": is_here and not has_accelerator(),
    }
    parts = estimate_memory(model, training, **options)._asdict()
    rows = {name.replace("_", " "): size for name, size in parts.items()}
    activations = estimate_activations(model, training, **options)
    rows |= {f"  {name}": size for name, size in activations.items()}
    jit = choose_jit(training.jit, training.precision) if is_here else "whole"
    limit = "" if jit == "whole" else f" for --jit=whole, not for --jit={jit}"
    if model.encoding != "relative":
        limit += f" for --encoding=relative, not for --encoding={model.encoding}"
    total = sum(parts.values())
    yield f"memory      about {_format_bytes(total)}; the activations are an estimate{limit}"
    yield f"            {_describe_replicas(training.train_batch_size, n_replicas)}"
    table = {name: (size, _format_bytes(size)) for name, size in rows.items()}
    yield from _list_shares(table, total=total)


def _describe_token(model: ModelConfig, evaluation: EvalConfig) -> Iterator[str]:
    """Yields lines and tables about a token that is generated with the memory of an evaluation."""
    flops = count_token_flops(model, evaluation.mem_len)
    yield (
        f"token       {_format_flops(sum(flops.values()))} in matrix products to continue a text "
        f"with a memory of {evaluation.mem_len:,}"
    )
    yield from _list_shares({name: (count, _format_flops(count)) for name, count in flops.items()})
    columns = [
        estimate_generation_memory(
            model, evaluation.mem_len, tgt_len=evaluation.tgt_len, dtype=dtype
        )
        for dtype in KERNEL_DTYPES
    ]
    yield _format_row("memory, kernels in", *KERNEL_DTYPES)
    for name in columns[0]:
        yield _format_row(name, *(_format_bytes(column[name]) for column in columns))
    yield _format_row("all", *(_format_bytes(sum(column.values())) for column in columns))


def _list_shares(
    table: Mapping[str, tuple[float, str]], *, total: float | None = None
) -> Iterator[str]:
    """Yields a row for each amount, with its text and its share of the total."""
    total = total or sum(amount for amount, _ in table.values())
    for name, (amount, text) in table.items():
        yield _format_row(name, text, f"{amount / total:.1%}")


def _format_row(name: str, *cells: str) -> str:
    return f"{'':12}{name:<20}" + "".join(f"{cell:>14}" for cell in cells)


def _describe_replicas(n_lanes: int, n_replicas: int | None) -> str:
    if n_replicas is None:
        return f"for all {n_lanes} lanes; the number of replicas is known when training starts"
    rows = n_lanes // n_replicas
    lanes = f"{rows} lane{'s' * (rows > 1)}"
    if n_replicas == 1:
        return f"on 1 replica with {lanes}"
    return f"on each of {n_replicas} replicas with {lanes}"


def _describe_start(
    options: flags.FlagValues, training: TrainConfig, checkpoints: list[tuple[int, str]]
) -> str:
    if checkpoints:
        step, path = checkpoints[-1]
        if step == training.train_steps:
            return f"all {step:,} steps are done, in {path}"
        return f"restores {path}"
    if options.warm_start_path is None:
        return f"new weights, seed {training.seed}"
    if not exists(f"{options.warm_start_path}.index"):
        raise UserError(f"checkpoint {options.warm_start_path} does not exist")
    return f"the weights of {options.warm_start_path}"


def _describe_evaluations(
    options: RunOptions, records: Records, config: RunConfig, *, at_end: bool
) -> str:
    times = []
    if options.eval_every:
        times.append(f"every {options.eval_every:,} steps and at the end")
    if at_end:
        times.append("after training")
    if not times:
        return "none"
    n_tokens = len(records.split(options.eval_split)) - 1
    return (
        f"{', '.join(times)}: {n_tokens:,} tokens of {options.eval_split} with "
        f"{describe_evaluation(config.evaluation)}"
    )


def _format_bytes(size: int) -> str:
    """Returns a size in a readable unit.

    >>> _format_bytes(3 * 2**29)
    '1.5 GiB'
    """
    for unit, unit_size in (("GiB", 2**30), ("MiB", 2**20)):
        if size >= unit_size:
            return f"{size / unit_size:.1f} {unit}"
    return f"{size / 2**10:.1f} KiB"


def _format_flops(flops: float) -> str:
    """Returns a number of operations in a readable unit.

    >>> _format_flops(2.5e15)
    '2.5 PFLOP'
    """
    for unit, size in (("EFLOP", 1e18), ("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9)):
        if flops >= size:
            return f"{flops / size:.3g} {unit}"
    return f"{flops / 1e6:.3g} MFLOP"
