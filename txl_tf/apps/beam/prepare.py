"""Making a data set with many workers: the files of `txl_tf.preparation`, byte for byte."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from txl_tf.apps.beam.counting import CountingStage, learn_from_pieces
from txl_tf.apps.beam.encoding import (
    AssemblyStage,
    EncodingStage,
    plan_shards,
    restore_shard,
    write_documents,
)
from txl_tf.apps.beam.file_ranges import PIECE_BYTES, describe_file, divide_files
from txl_tf.apps.beam.runner import Runner
from txl_tf.apps.beam.storage import (
    WORK_PREFIX,
    BeamStorage,
    exists,
    list_names,
    move_file,
    name_once,
    read_file,
    remove_file,
    remove_folder,
    write_file,
)
from txl_tf.apps.beam.tasks import Task, run_tasks
from txl_tf.data.files import is_remote, join_path, use_storage
from txl_tf.data.records.format import DocumentsFile, RecordsInfo, Shard
from txl_tf.data.records.writing import (
    TOKENS_PER_RECORD,
    TOKENS_PER_SHARD,
    check_replaceable,
    describe_records,
    list_files,
)
from txl_tf.data.text.text_files import TextSource
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.preparation.options import PrepareOptions
from txl_tf.preparation.plan import Plan
from txl_tf.preparation.prepare import (
    SplitCounts,
    check_split,
    list_special,
    make_vocabulary,
    prepare,
    settle_vocabulary,
)
from txl_tf.version import __version__


@dataclass(frozen=True)
class PipelineSettings:
    """How the work is divided.

    Args:
        runner: What runs the pipelines.
        temp_dir: The folder of temporary files, which all workers reach; `None` for the data set's.
        piece_bytes: The size of a piece of text in bytes.
        tokens_per_record: As in `write_records`.
        tokens_per_shard: As in `write_records`.
    """

    runner: Runner
    temp_dir: str | None = None
    piece_bytes: int = PIECE_BYTES
    tokens_per_record: int = TOKENS_PER_RECORD
    tokens_per_shard: int = TOKENS_PER_SHARD


def prepare_with_workers(options: PrepareOptions, settings: PipelineSettings) -> None:
    """Makes a data set, unless it is already made, and prints a summary.

    Texts and folders may be at addresses that Beam knows.

    Raises:
        UserError: As in `prepare`, or if a pipeline fails.
    """
    settings.runner.make_options()
    storage = BeamStorage()

    def execute(plan: Plan, options: PrepareOptions) -> RecordsInfo:
        return _Preparation(plan, options, settings, storage).execute()

    with use_storage(storage):
        prepare(options, execute)


class _Preparation:
    """Carries out a plan with pipelines."""

    def __init__(
        self, plan: Plan, options: PrepareOptions, settings: PipelineSettings, storage: BeamStorage
    ):
        self._plan = plan
        self._options = options
        self._settings = settings
        self._sources = {split: cast(TextSource, plan.sources[split]) for split in plan.sources}
        self._target = options.data_dir.rstrip("/")
        name = f"{WORK_PREFIX}{self._hash(storage)}"
        # Shards are written next to their place: files can be renamed only within one storage.
        self._aside = join_path(self._target, name)
        self._work = join_path(settings.temp_dir or self._target, name)

    def execute(self) -> RecordsInfo:
        """Makes the data set, and removes what is temporary."""
        options = self._options
        check_replaceable(self._target, overwrite=options.overwrite)
        tasks = {
            split: [
                {"split": split, "files": [describe_file(file) for file in files]}
                for files in divide_files(source.files, self._settings.piece_bytes)
            ]
            for split, source in self._sources.items()
        }
        vocabulary = self._plan.vocabulary or self._learn(tasks)
        vocabulary, cutoffs = settle_vocabulary(self._plan, vocabulary)
        made_from = {"arguments": options.describe(), "files": self._plan.files}
        info = RecordsInfo(
            self._plan.corpus.name,
            vocabulary,
            cutoffs,
            self._settings.tokens_per_record,
            {},
            made_from=made_from,
        )
        pieces = self._encode(tasks, vocabulary, info.bytes_per_token)
        shards, places = self._assemble(pieces, info)
        documents: dict[str, DocumentsFile] = {}
        for split, results in pieces.items():
            path = name_once(self._aside, f"{split}-documents")
            if found := write_documents(split, path, results):
                documents[split] = found
                places[found.file] = path
        info = replace(info, splits=shards, documents=documents)
        self._finish(info, places)
        return info

    def _hash(self, storage: BeamStorage) -> str:
        """Returns a name for what is made: of the arguments, the files, their sizes and times."""
        files = [file for source in self._sources.values() for file in source.files]
        made = {
            "version": __version__,
            "arguments": self._options.describe(),
            "files": [
                [str(file), file.stored_size, storage.get_time(str(file.path))] for file in files
            ],
            "splits": {split: len(source.files) for split, source in self._sources.items()},
            "sizes": [
                self._settings.piece_bytes,
                self._settings.tokens_per_record,
                self._settings.tokens_per_shard,
            ],
            "vocabulary": self._plan.vocabulary and self._plan.vocabulary.to_json(),
        }
        text = json.dumps(made, sort_keys=True)
        return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]

    def _learn(self, tasks: Mapping[str, Sequence[Task]]) -> Vocabulary:
        """Learns the vocabulary, unless an earlier call has done so."""
        path = join_path(self._work, "learnt.json")
        if exists(path):
            return Vocabulary.from_json(json.loads(read_file(path)))
        corpus = self._plan.corpus
        (encoding_errors,) = {source.encoding_errors for source in self._sources.values()}
        stage = CountingStage(
            corpus.level, encoding_errors, corpus.learning, self._settings.piece_bytes
        )
        counted = [task for split in corpus.counted for task in tasks[split]]
        folder = join_path(self._work, "counts")
        fields = learn_from_pieces(self._settings.runner, folder, stage, counted)
        vocabulary = make_vocabulary(corpus, fields)
        write_file(path, json.dumps(vocabulary.to_json()).encode("utf-8"))
        return vocabulary

    def _encode(
        self,
        tasks: Mapping[str, Sequence[Task]],
        vocabulary: Vocabulary,
        bytes_per_token: int,
    ) -> dict[str, list[dict[str, Any]]]:
        """Encodes all pieces and checks the splits; returns the results by split."""
        corpus = self._plan.corpus
        path = name_once(self._work, "vocabulary", ".json")
        write_file(path, json.dumps(vocabulary.to_json()).encode("utf-8"))
        stage = EncodingStage(
            self._work,
            path,
            bytes_per_token,
            next(iter(self._sources.values())).encoding_errors,
            corpus.documents,
            corpus.separator,
            list_special(vocabulary, corpus.learning.special),
            self._settings.piece_bytes,
        )
        every_task = [task for split in tasks for task in tasks[split]]
        results = run_tasks(self._settings.runner, self._work, stage, every_task)
        pieces: dict[str, list[dict[str, Any]]] = {split: [] for split in tasks}
        for split in tasks:
            counts = SplitCounts()
            for _ in tasks[split]:
                piece = next(results)
                counts.n_tokens += piece["n_tokens"]
                counts.unknown.update(piece.pop("unknown"))
                counts.literal.update(Counter(piece.pop("literal")))
                pieces[split].append(piece)
            check_split(corpus, vocabulary, split, counts)
        return pieces

    def _assemble(
        self, pieces: Mapping[str, Sequence[Mapping[str, Any]]], info: RecordsInfo
    ) -> tuple[dict[str, tuple[Shard, ...]], dict[str, str]]:
        """Assembles the shards; returns them by split, and the path of each by its name."""
        per_record = info.tokens_per_record
        per_shard = max(1, self._settings.tokens_per_shard // per_record) * per_record
        tasks = [task for split in pieces for task in plan_shards(split, pieces[split], per_shard)]
        stage = AssemblyStage(self._aside, info.bytes_per_token, per_record)
        shards: dict[str, list[Shard]] = {split: [] for split in pieces}
        places = {}
        for result in run_tasks(self._settings.runner, self._work, stage, tasks):
            shard = restore_shard(result)
            shards[result["split"]].append(shard)
            places[shard.file] = result["path"]
        return {split: tuple(found) for split, found in shards.items()}, places

    def _finish(self, info: RecordsInfo, places: Mapping[str, str]) -> None:
        """Moves the files into place, `records.json` last, and removes all others."""
        check_replaceable(self._target, overwrite=self._options.overwrite)
        replaced = list_files(self._target)
        for file in info.iterate_files():
            move_file(places[file.file], join_path(self._target, file.file))
        for name, text in describe_records(info).items():
            path = name_once(self._aside, name)
            write_file(path, text.encode("utf-8"))
            move_file(path, join_path(self._target, name))
        for name in replaced - {file.file for file in info.iterate_files()}:
            remove_file(join_path(self._target, name))
        remove_folder(self._work)
        remove_folder(self._aside)
        for folder in _list_work_folders(self._target):  # also those of other arguments
            remove_folder(folder)


def _list_work_folders(target: str) -> list[str]:
    if is_remote(target):
        # An object store has no folders: their names are in those of the files.
        names = {file.split("/")[0] for file in _list_below(target)}
    else:
        names = set(list_names(target))
    return [join_path(target, name) for name in sorted(names) if name.startswith(WORK_PREFIX)]


def _list_below(target: str) -> list[str]:
    found = BeamStorage().find(join_path(target, f"{WORK_PREFIX}*/**"))
    return [file.removeprefix(target).lstrip("/") for file in found]
