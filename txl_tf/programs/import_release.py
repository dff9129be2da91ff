"""Imports a model of the 2019 release or of Hugging Face transformers as a run folder.

txl import_release --source pretrained_xl/tf_wt103 --out runs/wt103
txl import_release --download tf_wt103 --out runs/wt103
"""

import dataclasses
import functools
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from txl_tf import presets
from txl_tf.config import TRAINED_WITH, EvalConfig, ModelConfig, TrainConfig
from txl_tf.data.download import PublishedFile, fetch
from txl_tf.data.temporary_folders import check_new_folder
from txl_tf.errors import UserError
from txl_tf.programs.cli.config_flags import SPAN_FIELDS, define_config_flags, override
from txl_tf.programs.cli.flags import define_flag, refuse_flags
from txl_tf.programs.cli.program import program
from txl_tf.programs.cli.run_flags import check_source
from txl_tf.runs.folder import RunConfig

if TYPE_CHECKING:
    from txl_tf.release.importing import Release

SERVER = "http://curtis.ml.cmu.edu/datasets/pretrained_xl"
# For each published model, the names that its folder has had on the server, and its checkpoint.
PUBLISHED_MODELS = {
    "tf_enwik8": (("tf_enwiki8", "tf_enwik8"), "model.ckpt-0"),
    "tf_text8": (("tf_text8",), "model.ckpt-0"),
    "tf_wt103": (("tf_wt103",), "model.ckpt-0"),
    "tf_lm1b": (("tf_lm1b",), "model.ckpt-1191000"),
}


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, before parsing."""
    options = flags.FlagValues()
    define = functools.partial(define_flag, options)
    text = (
        "Folder of the 2019 release (with model/), its model folder, a checkpoint, or a model "
        "folder of Hugging Face transformers."
    )
    define("source", str, None, text, is_path=True)
    text = "Published model to download, instead of --source."
    define("download", str, None, text, choices=PUBLISHED_MODELS)
    define("raw_dir", str, "pretrained_xl", "Folder for downloads.", is_path=True)
    define("out", str, None, "Run folder to create.", required=True, is_path=True)
    define("dataset", str, None, "Name of the data set. [default: the name in the source's data/]")
    text = "Preset of the model. [default: the one with the same sizes, if any]"
    define("preset", str, None, text, choices=presets.names())
    define("splits", list, ["valid", "test"], "Splits to make records of, if the source has them.")
    define("with_optimizer", bool, False, "Keep the state of Adam, so that training can continue.")
    define_config_flags(options, EvalConfig, SPAN_FIELDS)
    others = {field.name for field in dataclasses.fields(EvalConfig)} - {*SPAN_FIELDS}
    for config, names in ((ModelConfig, TRAINED_WITH), (TrainConfig, None), (EvalConfig, others)):
        define_config_flags(options, config, names, rare=True)
    return options


@program(__doc__, define_flags)
def main(options: flags.FlagValues) -> None:
    """Imports the source as a run folder, and prints its properties and the next command."""
    if (options.source is None) == (options.download is None):
        raise flags.Error("pass either --source or --download")
    if not options.download:
        refuse_flags(options, "raw_dir", reason="without --download")
    check_new_folder(options.out)  # before reading, which may take minutes
    source = options.source
    if options.download:
        source = str(fetch_model(options.download, Path(options.raw_dir)))
    check_source(source)

    from txl_tf.release.importing import read_release, write_run

    release = read_release(source, dataset=options.dataset)
    _describe_release(release)
    published = presets.find(release.model.config, release.dataset)
    name = options.preset or published
    preset = presets.get(name) if name else None
    config = _make_config(options, release, preset)
    splits = tuple(dict.fromkeys(split for split in options.splits if split in release.splits))
    missing = [split for split in options.splits if split not in release.splits]
    if missing and options["splits"].present:
        available = ", ".join(release.splits) or "none"
        raise UserError(f"`{source}` has no split {missing[0]!r}; it has {available}")
    _describe_evaluation(config.evaluation, release, name)
    write_run(options.out, release, config, splits=splits, keep_optimizer=options.with_optimizer)
    parts = ["weights"] + ["the state of Adam"] * options.with_optimizer
    parts += ["vocabulary"] * (release.vocabulary is not None)
    parts += [f"records of {' and '.join(splits)}"] if splits else []
    print(f"Wrote {options.out}: {', '.join(parts)}.")
    if "test" in splits:
        is_published = published and config.evaluation == presets.get(published).evaluation
        preset_flag = " --preset sota" if is_published else ""
        print("To evaluate it:")
        print(f"txl evaluate --run {shlex.quote(options.out)}{preset_flag}")
    elif release.vocabulary is None:
        print("The source has no vocabulary: the run can process ids, but not text.")


def list_files(name: str) -> tuple[str, ...]:
    """Returns the files of a published model, as paths relative to its folder."""
    checkpoint = PUBLISHED_MODELS[name][1]
    parts = ("checkpoint", f"{checkpoint}.index", f"{checkpoint}.data-00000-of-00001")
    return ("data/cache.pkl", "data/corpus-info.json", *(f"model/{part}" for part in parts))


def fetch_model(name: str, raw_dir: Path, *, server: str = SERVER) -> Path:
    """Downloads a published model to a folder in `raw_dir`, which it returns; keeps old files.

    Their SHA-256 is not published: it is recorded at the first download and checked later.
    """
    for path in list_files(name):
        file = raw_dir / name / path
        urls = tuple(f"{server}/{remote}/{path}" for remote in PUBLISHED_MODELS[name][0])
        fetch(PublishedFile(file.name, urls), file.parent)
    return raw_dir / name


def _make_config(
    options: flags.FlagValues, release: "Release", preset: presets.Preset | None
) -> RunConfig:
    """Returns the config of the run, from the model, its preset and the flags."""
    model = release.model.config
    evaluation = release.evaluation or EvalConfig()
    training = TrainConfig()
    if preset:
        trained_with = {name: getattr(preset.model, name) for name in TRAINED_WITH}
        model = dataclasses.replace(model, **trained_with)
        training, evaluation = preset.training, release.evaluation or preset.evaluation
    return RunConfig(
        release.dataset or "unknown",
        override(model, options),
        override(training, options),
        override(evaluation, options),
    )


def _describe_release(release: "Release") -> None:
    from txl_tf.release.infer import describe_config

    config, vocabulary = release.model.config, release.vocabulary
    print(f"{release.path}: {config.count_parameters():,} parameters, step {release.step:,}")
    print(f"  {describe_config(config)}")
    if vocabulary is not None:
        sizes = "".join(f", {name} {len(ids):,}" for name, ids in release.splits.items())
        print(f"  {release.dataset or 'unknown data set'}: {vocabulary.level}s{sizes}")


def _describe_evaluation(config: EvalConfig, release: "Release", name: str | None) -> None:
    """Prints how the run will be evaluated, and where these settings come from."""
    from txl_tf.scoring.evaluator import describe_evaluation

    base = release.evaluation
    if base:
        origin = "stated in its folder"
    elif name:
        published, base = presets.get(name).published, presets.get(name).evaluation
        origin = f"preset {name}" + (f", published {published}" if published else "")
    else:
        origin = "no preset has these sizes; --eval_mem_len and similar flags change this"
    origin += ", changed by flags" if base and config != base else ""
    print(f"  evaluated with {describe_evaluation(config)} ({origin})")
