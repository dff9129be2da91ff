"""Transformer-XL: `txl PROGRAM` runs a program, and `txl PROGRAM --help` describes its flags."""

import ast
import importlib
import sys
from pathlib import Path

from absl import flags

from txl_tf.programs.cli.flags import suggest
from txl_tf.programs.cli.program import EXIT_USAGE, print_failure, run_program, start_in_utf8

GROUPS = {
    "Data": ("prepare", "inspect"),
    "Train": ("train", "train_tpu", "average", "check"),
    "Evaluate and analyze": ("evaluate", "context", "attention", "page", "samples", "harness"),
    "Generate and deploy": ("generate", "score", "serve", "export"),
    "Migrate from the 2019 release": ("import_release", "verify_release", "export_release"),
}
SCRIPTS = {"train_gpu": "train", "make_tfrecords": "prepare"}  # the names of 2019
PROGRAMS = [command for commands in GROUPS.values() for command in commands]


def main(argv: list[str] = sys.argv) -> int:
    """Runs the program that the first argument names, and returns its exit status."""
    start_in_utf8(argv)
    if argv[1:2] == ["help"] and len(argv) > 2:
        argv = ["txl", argv[2], "--help"]
    if len(argv) < 2 or argv[1] in ("help", "--help", "-h"):
        argv = ["txl"]
    if len(argv) < 2 or argv[1].startswith("-"):
        return run_program(__doc__, flags.FlagValues(), _show_programs, ["txl", *argv[1:]])
    program = argv[1].replace("-", "_")
    if program not in PROGRAMS:
        hint = suggest(SCRIPTS.get(program, program), PROGRAMS) or " txl lists the programs."
        return print_failure("txl", f"unknown program {argv[1]}.{hint}", EXIT_USAGE)
    run = importlib.import_module(f"txl_tf.programs.{program}").main
    return run([f"txl {program}", *argv[2:]])


def _show_programs(options: flags.FlagValues) -> None:
    print(f"{__doc__}\n\n{list_programs()}")


def list_programs() -> str:
    """Returns the programs by group, each with the first line of its docstring."""
    lines = []
    for group, commands in GROUPS.items():
        lines += [f"{group}:", *(f"  {name:<16}{_describe(name)}" for name in commands), ""]
    return "\n".join(lines).rstrip()


def _describe(command: str) -> str:
    """Returns the first line of the docstring of a program, without importing it."""
    path = Path(__file__).with_name("programs") / f"{command}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return (ast.get_docstring(tree) or "").partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
