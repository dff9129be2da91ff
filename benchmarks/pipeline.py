"""Speed and memory of preparing words as a pipeline, beside the one-machine program.

python -m benchmarks.pipeline

Each line is a run of `data_prep/make_tfrecords.py` in processes of its own, on a synthetic corpus.
The speed includes the start of all processes. Memory is the largest peak resident set of one.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from absl import flags

from benchmarks.prepare import PROGRAM, make_words, measure_process
from txl_tf.cli.flags import define_flag
from txl_tf.cli.program import run_program
from txl_tf.data.records.reading import read_info

LOCAL = "direct_running_mode=multi_processing"


def print_speeds(options: flags.FlagValues) -> None:
    """Makes the same data set in several ways and prints a line for each."""
    folder = Path(tempfile.mkdtemp(prefix="pipeline-", dir=options.folder))
    try:
        per_file = -(-options.words // options.files)
        for index in range(options.files):
            with (folder / f"{index:03d}.txt").open("wb") as file:
                file.writelines(make_words(per_file))
        n_bytes = sum(path.stat().st_size for path in folder.glob("*.txt"))
        print(f"{n_bytes / 1e6:,.0f} MB in {options.files} files, {os.cpu_count()} CPUs")
        print(f"{'program':<28} {'seconds':>8} {'MB/s':>7} {'CPU s':>7} {'memory, MB':>10}")
        made = {
            "one machine, 1 thread": ["--num_workers=1"],
            "one machine, 2 threads": ["--num_workers=2"],
            "DirectRunner, 1 process": _name_runner(1, options.piece_bytes),
            "DirectRunner, 2 processes": _name_runner(2, options.piece_bytes),
        }
        infos = []
        for name, more in made.items():
            data_dir = folder / "records"
            common = [f"--train={folder}/*.txt", "--level=word", f"--data_dir={data_dir}"]
            common += ["--max_symbols=200000", "--unknown=<unk>", "--dataset=text"]
            measured = measure_process([sys.executable, str(PROGRAM), *common, *more])
            infos.append(read_info(str(data_dir)))
            shutil.rmtree(data_dir)
            print(
                f"{name:<28} {measured.seconds:>8.1f} {n_bytes / 1e6 / measured.seconds:>7.2f} "
                f"{measured.cpu_seconds:>7.1f} {measured.memory / 1e6:>10,.0f}",
                flush=True,
            )
        same = all(info == infos[0] for info in infos)
        print(f"The data sets are {'the same' if same else 'NOT the same'}.")
    finally:
        shutil.rmtree(folder)


def _name_runner(n_workers: int, piece_bytes: int) -> list[str]:
    return [
        "--runner=DirectRunner",
        f"--beam_options={LOCAL},direct_num_workers={n_workers}",
        f"--piece_bytes={piece_bytes}",
    ]


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define_flag(options, "words", int, 20_000_000, "Number of words.", lower_bound=1)
    define_flag(options, "files", int, 8, "Number of files.", lower_bound=1)
    define_flag(options, "piece_bytes", int, 2**24, "Size of a piece.", lower_bound=1)
    folder_help = "Folder for the corpus. [default: /tmp]"
    define_flag(options, "folder", str, None, folder_help, is_path=True)
    return run_program(__doc__, options, print_speeds, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
