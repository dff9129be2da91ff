"""Transformer-XL: `txl PROGRAM` runs a program, and `txl PROGRAM --help` describes its flags."""

import ast
import importlib
import os
import sys
from pathlib import Path

from absl import flags

from txl_tf.cli.flags import suggest
from txl_tf.cli.program import EXIT_USAGE, print_failure, run_program, start_in_utf8
from txl_tf.errors import COMMANDS

GROUPS = {
    "Data": ("prepare", "inspect"),
    "Train": ("train", "train_tpu", "average", "check"),
    "Evaluate and analyze": ("evaluate", "context", "attention", "page", "samples", "harness"),
    "Generate and deploy": ("generate", "score", "serve", "export"),
    "Migrate from the 2019 release": ("import_release", "verify_release", "export_release"),
}
_MODULES = {command: module for module, command in COMMANDS.items()}
PROGRAMS = {
    command: f"txl_tf.{_MODULES.get(command, command)}"
    for commands in GROUPS.values()
    for command in commands
}


def main(argv: list[str] = sys.argv) -> int:
    """Runs the program that the first argument names, and returns its exit status."""
    start_in_utf8(argv)
    name = os.path.basename(argv[0])
    name = name if name == "txl" else "python -m txl_tf"
    if argv[1:2] == ["help"] and len(argv) > 2:
        argv = [name, argv[2], "--help"]
    if len(argv) < 2 or argv[1] in ("help", "--help", "-h"):
        argv = [name]
    if len(argv) < 2 or argv[1].startswith("-"):
        return run_program(__doc__, flags.FlagValues(), _show_programs, [name, *argv[1:]])
    program = argv[1].replace("-", "_")
    program = COMMANDS.get(program, program)  # the names of modules are accepted, too
    if program not in PROGRAMS:
        hint = suggest(program, PROGRAMS) or f" {name} lists the programs."
        return print_failure(name, f"unknown program {argv[1]}.{hint}", EXIT_USAGE)
    run = importlib.import_module(PROGRAMS[program]).main
    return run([f"{name} {program}", *argv[2:]])


def _show_programs(options: flags.FlagValues) -> None:
    print(f"{__doc__}\n\n{list_programs()}")


def list_programs() -> str:
    """Returns the programs by group, each with the first sentence of its module."""
    lines = []
    for group, commands in GROUPS.items():
        lines += [f"{group}:", *(f"  {name:<16}{_describe(name)}" for name in commands), ""]
    return "\n".join(lines).rstrip()


def _describe(command: str) -> str:
    """Returns the first line of the docstring of a program, without importing it."""
    module = PROGRAMS[command].removeprefix("txl_tf.")
    path = Path(__file__).with_name(f"{module}.py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return (ast.get_docstring(tree) or "").partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
