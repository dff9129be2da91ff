"""Wrong commands: each ends with a status and one line, and writes nothing.

`wrong_commands.txt` is the table: `$ PROGRAM ARGUMENTS`, then the status and what the line names:
flags, fields, files and values. A `+` behind the status means that there was output before the
fault was found, usually none. In a line, `...` stands for any words, `{folder}` for the current
folder, and `*` for a checksum.
"""

import contextlib
import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from called_programs import call, forbid_network, list_files

TABLE = Path(__file__).with_name("wrong_commands.txt").read_text(encoding="utf-8")
ROWS = re.findall(r"^\$ (\S+) ?(.*)\n(\d)(\+?) (.*)$", TABLE, flags=re.MULTILINE)
_CHECKSUM = re.compile(r"\b(?:[0-9a-f]{8}|[0-9a-f]{64})\b")

# Packages of extras, and commands that need them.
WITHOUT_PACKAGES = [
    ("apache_beam", "score --run=run --out=new --runner=R texts/test.txt", "--runner", "beam"),
    (
        "apache_beam",
        "prepare --dataset=text --train=texts/test.txt --data_dir=new --runner=R",
        "--runner",
        "beam",
    ),
    ("matplotlib", "attention --run=run", "a figure", "lab"),
    ("lm_eval", "harness --model=txl_tf --model_args=run=run", "the harness", "harness"),
    ("huggingface_hub", "score --run=hf://a/b texts/test.txt", "a model on the Hub", "hub"),
    ("onnx", "export --run=run --out=new --format=onnx", "format=onnx", "onnx"),
    ("uvicorn", "serve --run=run", "the server", "serve"),
    (
        "sentencepiece",
        "prepare --dataset=text --train=texts/train.txt --level=subword --data_dir=new",
        "learning at level 'subword'",
        "subword",
    ),
]

# Every flag of a program that names a file or a folder.
PATHS = {
    "prepare": "data_dir raw_dir temp_dir train valid test vocab_file",
    "train": "data_dir model_dir eval_ckpt_path warm_start_path",
    "train_tpu": "data_dir model_dir eval_ckpt_path warm_start_path",
    "evaluate": "run data_dir checkpoint",
    "score": "run files checkpoint out",
    "generate": "run checkpoint prompt_file",
    "export": "run out checkpoint",
    "serve": "run checkpoint",
    "attention": "run data_dir checkpoint out",
    "context": "run data_dir checkpoint out",
    "page": "run file checkpoint data_dir out",
    "samples": "run checkpoint data_dir html json",
    "inspect": "data_dir",
    "average": "run",
    "import_release": "source raw_dir out",
    "export_release": "run out checkpoint",
    "verify_release": "source run",
}


def edit(path, change):
    content = json.loads(Path(path).read_text())
    change(content)
    Path(path).write_text(json.dumps(content))


def damage_runs():
    """Writes copies of the run with one fault each."""
    names = (
        "damaged incomplete misnamed misvalued future misspelt bare strange gone nodata torn lone"
    )
    for name in (*names.split(), "brackets[1]"):
        shutil.copytree("run", name)
    Path("damaged/config.json").write_text("{")
    edit("incomplete/config.json", lambda config: config.pop("training"))
    edit("misnamed/config.json", lambda config: config["model"].update(n_layers=5))
    edit("misvalued/config.json", lambda config: config["training"].update(tgt_len=0))
    edit("future/config.json", lambda config: config.update(format_version=2))
    edit("strange/vocabulary.json", lambda vocabulary: vocabulary["symbols"].reverse())
    edit("gone/data.json", lambda place: place.update(data_dir="/nowhere/data"))
    Path("misspelt/vocabulary.json").write_text("[]")
    Path("bare/vocabulary.json").unlink()
    Path("nodata/data.json").unlink()
    torn = Path("torn/checkpoints/ckpt-4.data-00000-of-00001")
    torn.write_bytes(torn.read_bytes()[:100])
    for path in Path("lone/checkpoints").glob("ckpt-2.*"):
        path.unlink()


def damage_data():
    """Writes copies of the records with one fault each, and records of another vocabulary."""
    for name in ("cut", "flipped", "old"):
        shutil.copytree("data", name)
    (shard,) = Path("cut").glob("train-*.tfrecords")
    shard.write_bytes(shard.read_bytes()[:-5])
    (shard,) = Path("flipped").glob("train-*.tfrecords")
    content = bytearray(shard.read_bytes())
    content[20] ^= 1
    shard.write_bytes(content)
    edit("old/records.json", lambda records: records.update(format_version=1))
    make("--train=texts/test.txt", "--valid=texts/test.txt", "--data_dir=other")
    texts = ("--train=texts/train.txt", "--valid=texts/valid.txt")
    make(*texts, "--level=char", "--documents=none", "--data_dir=plain")


def make(*flags):
    outcome = call("txl_tf.programs.prepare", "--dataset=text", "--num_workers=1", *flags)
    assert outcome.status == 0, outcome.err


@pytest.fixture(scope="module", autouse=True)
def faults(folder):
    """Writes beside the run all that the table names."""
    with contextlib.chdir(folder):
        damage_runs()
        damage_data()
        assert call("txl_tf.programs.export_release", "--run=run", "--out=release").status == 0
        Path("file").touch()
        Path("x[1]").mkdir()
        Path("tfrecords2019").mkdir()
        Path("tfrecords2019/record_info-train.bsz-4.tlen-8.json").touch()
        Path("texts/empty.txt").touch()
        Path("texts/latin.txt").write_bytes(b"once\nupon \xff\n")
        Path("texts/unknown.txt").write_text("once\nUpon\n")


def check(command, status, line, monkeypatch, *, prints=False):
    """Runs a wrong command and checks what it answers, and that it writes nothing.

    Args:
        command: program and arguments.
        status: exit status.
        line: the line on standard error.
        monkeypatch: the fixture.
        prints: whether there is something on standard output, too.
    """
    forbid_network(monkeypatch)
    program, *arguments = command
    before = list_files()
    outcome = call(f"txl_tf.programs.{program}", *arguments)
    assert list_files() == before
    *_, found = outcome.err.splitlines()
    assert outcome.err == f"{found}\n"  # no other line
    pattern = ".*".join(map(re.escape, line.format(folder=Path.cwd()).split("...")))
    assert re.fullmatch(pattern, _CHECKSUM.sub("*", found)), found
    assert (outcome.status, outcome.out != "") == (status, prints)


@pytest.mark.parametrize(
    ("program", "arguments", "status", "plus", "line"),
    ROWS,
    ids=[" ".join(row[:2]) for row in ROWS],
)
def test_a_wrong_command_is_one_line_and_writes_nothing(
    program, arguments, status, plus, line, here, monkeypatch
):
    command = [program, *shlex.split(arguments)]
    check(command, int(status), line, monkeypatch, prints=plus == "+")


def test_every_row_of_the_table_is_read():
    assert len(ROWS) == TABLE.count("\n$ ") > 200


@pytest.mark.parametrize(
    ("program", "flag"), [(program, flag) for program in PATHS for flag in PATHS[program].split()]
)
def test_no_program_takes_an_empty_path(program, flag, here, monkeypatch):
    others = {"prepare": ["--dataset=text8"], "train_tpu": ["--tpu=local"]}
    paths = [f"--{name}={'' if name == flag else 'x'}" for name in PATHS[program].split()]
    command = [program, *others.get(program, []), *paths]
    check(command, 2, f"{program}: flag --{flag}=...", monkeypatch)


@pytest.mark.parametrize(
    ("package", "command", "feature", "extra"),
    WITHOUT_PACKAGES,
    ids=[f"{row[0]}: {row[1].split()[0]}" for row in WITHOUT_PACKAGES],
)
def test_a_missing_package_is_named_with_its_extra(
    package, command, feature, extra, here, monkeypatch
):
    hide(package, monkeypatch)
    line = (
        f"{command.split()[0]}: {feature} needs the package {package}: pip install -e '.[{extra}]'"
    )
    check(command.split(), 1, line, monkeypatch)


def hide(package, monkeypatch):
    """Has imports of a package fail, as if it were not installed."""
    for name in list(sys.modules):
        if name.startswith(f"{package}."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
