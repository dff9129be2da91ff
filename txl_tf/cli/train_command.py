"""The command line of train_gpu.py and train_tpu.py: flags, then training, then evaluation.

tensorflow is imported after the flags have been read: a wrong one is answered at once.
"""

import contextlib
import dataclasses
import functools
import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from absl import flags

from txl_tf import presets
from txl_tf.cli.config_flags import answer_as_flags, define_config_flags, override
from txl_tf.cli.data_formats import DATA_FORMATS, RECORDS, RELEASE, check_data_format, open_data_set
from txl_tf.cli.legacy_flags import TRAINING_FLAGS, define_legacy_flags, describe_legacy_flags
from txl_tf.cli.program import define_flag
from txl_tf.cli.run_flags import (
    PLACE_FLAGS,
    check_warm_start,
    explain_other_config,
    find_data,
    find_run,
    find_warm_start,
    make_model_config,
)
from txl_tf.config import EvalConfig, ModelConfig, TrainConfig
from txl_tf.config.run_options import RunOptions
from txl_tf.data.data_set import DataSet
from txl_tf.data.files import check_folder, is_remote
from txl_tf.errors import UserError
from txl_tf.runs.lock import lock_run
from txl_tf.training.cluster import is_chief

if TYPE_CHECKING:
    import tensorflow as tf

    from txl_tf.runs.data_place import DataPlace
    from txl_tf.runs.folder import RunConfig
    from txl_tf.training.job import SamplerMaker

# Where things lie, which hosts may know by other paths.
_PLACES = (*PLACE_FLAGS, "model_dir")


def define_flags() -> flags.FlagValues:
    """Returns the flags of the 2019 release's training program, and ours, not yet read."""
    options = flags.FlagValues()

    def define(name: str, kind: type, default: Any, text: str, **rules: Any) -> None:
        define_flag(options, name, kind, default, text, **rules)

    define("data_dir", str, None, "Folder of the records. [default: the run's own]", is_path=True)
    define("data_format", str, RECORDS, f"What it holds: {' or '.join(DATA_FORMATS)}.")
    define(
        "record_info_dir", str, None, "release2019: where its record_info-*.json are.", is_path=True
    )
    define(
        "corpus_info_path", str, None, "release2019: where its corpus-info.json is.", is_path=True
    )
    define("model_dir", str, None, "Folder of the run.", required=True, is_path=True)
    define("preset", str, None, f"Recipe to start from: {', '.join(presets.names())}.")
    define("do_train", bool, True, "Whether to train.")
    define("do_eval", bool, False, "Whether to evaluate, after training if there is any.")
    define("do_eval_only", bool, False, "Evaluate all checkpoints that are kept, the newest 5.")
    define("eval_split", str, "valid", "Split to evaluate on.")
    define(
        "eval_ckpt_path", str, None, "Checkpoint to evaluate. [default: the newest]", is_path=True
    )
    define("start_eval_steps", int, 10_000, "First checkpoint for --do_eval_only.")
    define("max_eval_batch", int, -1, "Batches to evaluate; -1 for all.", lower_bound=-1)
    define(
        "warm_start_path",
        str,
        None,
        "Checkpoint whose weights a new run starts from.",
        is_path=True,
    )
    define("use_ema", bool, True, "Take averaged weights where a checkpoint has them; see --ema.")
    define("tie_weight", bool, True, "Embedding and softmax share weights: always true.")
    define("dry_run", bool, False, "Print what would be done and what it takes; do nothing.")
    define("jit", bool, True, "Compile the model with XLA.")
    define("deterministic", bool, False, "Use only operations that give the same bits each time.")
    for config in (RunOptions, ModelConfig, TrainConfig, EvalConfig):
        define_config_flags(options, config)
    define_legacy_flags(options, TRAINING_FLAGS)
    return options


def run(
    options: flags.FlagValues,
    make_strategy: Callable[[flags.FlagValues], "tf.distribute.Strategy"],
    count_replicas: Callable[[flags.FlagValues], int | None] = lambda _: None,
) -> None:
    """Trains and evaluates as the flags say.

    Args:
        options: the flags, read.
        make_strategy: makes the strategy to train with, from the flags.
        count_replicas: tells, for a dry run, how many replicas that strategy would have; `None`
            where that cannot be known.

    Raises:
        flags.Error: flags that contradict each other.
        UserError: an input that cannot be used.
    """
    with contextlib.ExitStack() as stack:
        _run(options, make_strategy, count_replicas, stack)


def _run(
    options: flags.FlagValues,
    make_strategy: Callable[[flags.FlagValues], "tf.distribute.Strategy"],
    count_replicas: Callable[[flags.FlagValues], int | None],
    stack: contextlib.ExitStack,
) -> None:
    """Does what `run` does; what the stack holds is given back in the end."""
    do_train = options.do_train and not options.do_eval_only
    do_eval = options.do_eval or options.do_eval_only
    _check_flags(options, do_train=do_train, do_eval=do_eval)
    preset = answer_as_flags(presets.get, options.preset) if options.preset else None
    for line in describe_legacy_flags(options, TRAINING_FLAGS):
        print(line)
    _check_places(options, do_train=do_train)
    found = find_run(options.model_dir)
    place = find_data(options, found)
    records = _open_data_set(options, place, preset, found)
    needs_eval = do_eval or (do_train and options.eval_every > 0)
    for split in ["train"] * do_train + [options.eval_split] * needs_eval:
        records.split(split)  # raises if it is missing
    if do_train:
        start = None if found else _find_start(options, records)
        configs = answer_as_flags(make_configs, options, records, preset, found, start)
        run_options = answer_as_flags(override, RunOptions(), options)
        # A TPU is driven by one process, whatever TF_CONFIG is set to.
        if ("tpu" in options or is_chief()) and not options.dry_run:
            stack.enter_context(lock_run(options.model_dir))

    from txl_tf.evaluation.checkpoints import check_documents
    from txl_tf.runs.folder import OtherConfigError, RunConfig
    from txl_tf.training import job

    if options.deterministic:
        job.make_deterministic(options.seed)
    if not do_train:
        if not is_chief():
            print("Nothing to do for this process: the chief evaluates.")
            return
        _evaluate(options, records, _read_config(options, preset))
        return
    config = RunConfig(records.dataset, *configs)
    if needs_eval and config.evaluation.reset_at_documents:
        check_documents(records, options.eval_split)  # now, not after the training
    try:
        if options.dry_run:
            _print_dry_run(options, records, config, run_options, count_replicas(options))
            return
        strategy = make_strategy(options)
        job.train(
            strategy,
            records,
            config,
            run_options,
            model_dir=options.model_dir,
            eval_split=options.eval_split,
            warm_start_path=options.warm_start_path,
            use_ema=options.use_ema,
            jit_compile=options.jit,
            settings=_write_settings(options),
            data_place=place,
            make_sampler=_choose_sampler(options, records, config.evaluation),
        )
    except OtherConfigError as error:
        raise UserError(explain_other_config(options, error, preset, config, place)) from error
    if do_eval:
        with job.wait_for_chief(strategy) as evaluates:
            if evaluates:
                _evaluate(options, records, config)


def _print_dry_run(
    options: flags.FlagValues,
    records: DataSet,
    config: "RunConfig",
    run_options: RunOptions,
    n_replicas: int | None,
) -> None:
    """Prints what the flags would have done."""
    from txl_tf.cli.dry_run import Job, describe_job

    job = Job(
        records,
        config,
        run_options,
        options.model_dir,
        options.eval_split,
        options.warm_start_path,
        evaluates_after=options.do_eval,
        n_replicas=n_replicas,
    )
    for line in describe_job(job):
        print(line)


def _choose_sampler(
    options: flags.FlagValues, records: DataSet, evaluation: EvalConfig
) -> "SamplerMaker | None":
    """Returns what makes the sampler of the evaluations in training; `None` for no samples."""
    if records.vocabulary is None or not (options.sample_tokens and options.eval_every):
        return None
    if "tpu" in options:  # one token at a time is nothing for a TPU
        return None
    from txl_tf.inference.live_sample import PROMPT_TOKENS, LiveSample

    split = records.split(options.eval_split)
    return functools.partial(
        LiveSample,
        vocabulary=records.vocabulary,
        evaluation=evaluation,
        prompt=split.read(0, min(PROMPT_TOKENS, len(split))),
        n_new=options.sample_tokens,
    )


def _write_settings(options: flags.FlagValues) -> str:
    """Returns all flags but those that say where things lie, as a text."""
    values = options.flag_values_dict()
    return json.dumps({name: values[name] for name in values if name not in _PLACES})


def _check_flags(options: flags.FlagValues, *, do_train: bool, do_eval: bool) -> None:
    """Checks flags that no config holds.

    Raises:
        flags.Error: they contradict each other.
    """
    if not options.tie_weight:
        raise flags.Error("--tie_weight=false: the softmax always has the embedding's weights")
    if not do_train and not do_eval:
        raise flags.Error("--do_train=false: pass --do_eval or --do_eval_only too")
    if options.do_eval_only and options.eval_ckpt_path:
        raise flags.Error("--eval_ckpt_path is for --do_eval: --do_eval_only takes all checkpoints")
    if options.dry_run and not do_train:
        raise flags.Error("--dry_run is for training: pass --do_train too")
    if options.max_eval_batch == 0:
        raise flags.Error("--max_eval_batch must be -1, for all, or positive. Received: 0")
    answer_as_flags(check_data_format, options.data_format)


def _check_places(options: flags.FlagValues, *, do_train: bool) -> None:
    """Checks the run folder and the checkpoints, before anything slow is done.

    Raises:
        UserError: the run folder is a file, or a checkpoint that is needed is missing or one of
            the 2019 release.
    """
    check_folder(options.model_dir)
    folder = os.path.join(options.model_dir, "checkpoints")
    # A run that goes on needs no warm start, and what is trained first may save the other one.
    is_new = not os.path.isdir(folder) or not any(n.endswith(".index") for n in os.listdir(folder))
    needed = [options.warm_start_path if is_new else None] if do_train else [options.eval_ckpt_path]
    for path in filter(None, needed):
        if not is_remote(path) and not os.path.exists(f"{path}.index"):
            hint = ". It is a folder: name one of its files ckpt-STEP.index, without .index"
            raise UserError(
                f"checkpoint {path} cannot be restored: {path}.index is missing"
                f"{hint if os.path.isdir(path) else ''}"
            )
    for path in filter(None, (options.eval_ckpt_path, options.warm_start_path)):
        from txl_tf.runs.checkpoint_reader import check_not_release

        check_not_release(path)


def _open_data_set(
    options: flags.FlagValues,
    place: "DataPlace",
    preset: presets.Preset | None,
    found: "RunConfig | None",
) -> DataSet:
    """Returns the data set in a place, cut as the flags say if its records are of 2019."""
    base = preset or found
    training = base.training if base else TrainConfig()
    evaluation = base.evaluation if base else EvalConfig()
    sizes = {
        name: options[name].value if options[name].present else getattr(config, name)
        for name, config in (
            ("train_batch_size", training),
            ("eval_batch_size", evaluation),
            ("tgt_len", training),
        )
    }
    if place.data_format != RELEASE:
        for name in ("record_info_dir", "corpus_info_path"):
            if options[name].value:
                print(f"--{name}: not needed, it is for --data_format={RELEASE}.")
    return open_data_set(
        place.data_dir,
        place.data_format,
        record_info_dir=place.record_info_dir,
        corpus_info_path=place.corpus_info_path,
        **sizes,
    )


def _find_start(options: flags.FlagValues, records: DataSet) -> ModelConfig | None:
    """Returns the model of the run whose weights a new one starts from, if that is known.

    Raises:
        UserError: that run has another vocabulary.
    """
    folder = find_warm_start(options.warm_start_path) if options.warm_start_path else None
    start = find_run(folder) if folder else None
    if folder is None or start is None:
        return None
    check_warm_start(folder, records)
    if not options.preset:
        print(f"The model is that of {folder}, but for flags given here.")
    return start.model


def _read_config(options: flags.FlagValues, preset: presets.Preset | None) -> "RunConfig":
    """Returns the config of a run that is there, to be evaluated as the flags say."""
    from txl_tf.runs.folder import read_run_config

    found = read_run_config(options.model_dir)
    base = found.model
    if preset:
        # What no preset can know, and no weight shows.
        names = ("n_token", "cutoffs", "layer_norm_epsilon")
        own = {name: getattr(found.model, name) for name in names}
        base = dataclasses.replace(preset.model, **own)
    model = answer_as_flags(override, base, options)
    evaluation = answer_as_flags(
        make_eval_config, options, preset.evaluation if preset else found.evaluation
    )
    # A model with other weights than the run's is refused when these are loaded.
    return dataclasses.replace(found, model=model, evaluation=evaluation)


def _evaluate(options: flags.FlagValues, records: DataSet, config: "RunConfig") -> None:
    """Evaluates the checkpoints that the flags name."""
    from txl_tf.evaluation.checkpoints import evaluate_checkpoints

    evaluate_checkpoints(
        records,
        config,
        model_dir=options.model_dir,
        split=options.eval_split,
        checkpoint=options.eval_ckpt_path,
        first_step=options.start_eval_steps if options.do_eval_only else None,
        max_segments=options.max_eval_batch if options.max_eval_batch > 0 else None,
        use_ema=options.use_ema,
        jit_compile=options.jit,
    )


def make_configs(
    options: flags.FlagValues,
    records: DataSet,
    preset: presets.Preset | None,
    found: "RunConfig | None" = None,
    start: ModelConfig | None = None,
) -> tuple[ModelConfig, TrainConfig, EvalConfig]:
    """Returns the configs of a run: the flags given by hand, and for the rest the preset's.

    Args:
        options: the flags.
        records: they decide the number of tokens; and the cutoffs, where nothing else does.
        preset: the one that the flags name; `None` for none.
        found: the run that is there, which stands in for a preset; `None` for a new one.
        start: the model of the run whose weights a new one starts from, where that is known.

    Raises:
        flags.Error: the text of a flag cannot be read.
        UserError: a value is out of its range.
    """
    model = make_model_config(options, records, preset, found.model if found else start)
    base = preset or found
    if base:
        return model, override(base.training, options), make_eval_config(options, base.evaluation)
    training = override(TrainConfig(), options)
    evaluation = EvalConfig(
        tgt_len=training.tgt_len,
        reset_at_documents=training.reset_at_documents,
        **dataclasses.asdict(training.span),
    )
    return model, training, make_eval_config(options, evaluation)


def make_eval_config(options: flags.FlagValues, config: EvalConfig) -> EvalConfig:
    """Returns the config with the flags given by hand: --eval_X, or --X where nothing is trained.

    The release has one set of flags for both, and is called anew with others to evaluate.
    """
    if not options.do_train or options.do_eval_only:
        config = override(config, options, prefix="")
    return override(config, options)
