"""One tour through the programs: their exit status, what they print, and the files they leave."""

import contextlib
import json

import pytest
from called_programs import call, mask_numbers

# Each command works in the folder that the ones before it have left.
COMMANDS = {
    "dry run": "train --model_dir=run --train_steps=6 --dry_run",
    "resume": "train --model_dir=run --train_steps=6 --do_eval",
    "evaluate": "evaluate --run=run --jit=none",
    "evaluate as JSON": "evaluate run --split=valid --json --jit=none",
    "score": "score --run=run texts/letter.txt texts/test.txt --jit=none",
    "score as JSON": "score --run=run --by=line --format=jsonl --per_token --jit=none "
    "texts/letter.txt",
    "score files": "score --run=run --format=jsonl --jit=none texts/letter.txt",
    "score by SavedModel": "score --run=exported --format=jsonl texts/letter.txt",
    "generate": "generate --run=run --prompt=once --length=5 --samples=2",
    "inspect": "inspect data",
    "average": "average --model_dir=run --last=2",
    "evaluate average": "train --model_dir=run --eval_ckpt_path=run/averaged/ckpt-6 "
    "--do_train=false --do_eval",
    "attention": "attention --run=run --length=10 --tokens=40 --jit=none",
    "context": "context --run=run --first_context=2 --delta=3 --max_context=5 --positions=20 "
    "--eval_tokens=50 --attention_lengths=4",
    "page": "page --run=run texts/letter.txt --out=page.html",
    "samples": "samples --run=run --html=samples.html --json=samples.json --samples=1 "
    "--length=5 --context_len=20",
    "export release": "export_release --run=run --out=release",
    "import release": "import_release --source=release --out=imported",
    "verify release": "verify_release --source=release --run=imported",
}

# The lines that commands print, in this order but not alone; # is a number.
SCORES = "loss # nats | bpc # | perplexity # | # tokens"
VALID = f"valid at step #: {SCORES} | # lanes, warmed by # tokens"
LINES = {
    "prepare": [
        "train: # tokens, documents: #",
        "valid: # tokens, documents: #",
        "test: # tokens, documents: #",
        "vocabulary: # chars",
        "Wrote `data` in # seconds.",
    ],
    "train": [
        "step #/# | loss # | bpc # | ppl # | grad norm # | lr #",
        f"{VALID} | best",
        "Saved run/checkpoints/ckpt-#",
        "step #/# | loss # | bpc # | ppl # | grad norm # | lr # | # tokens/s | #:#:# left",
        f"{VALID} | best",
        "Saved run/checkpoints/ckpt-#",
    ],
    "export": [
        "Wrote exported: a SavedModel of step # with score_ids, initial_memory, step, score_text, "
        "generate_text.",
        "exported/README.md lists their inputs and outputs.",
    ],
    "resume": [
        "Resuming from step #.",
        "step #/# | loss # | bpc # | ppl # | grad norm # | lr #",
        "Saved run/checkpoints/ckpt-#",
        "Scoring valid with tgt_len #, mem_len #, same_length false, clamp_len #, # lanes, "
        "warmed by # tokens.",
        VALID,
    ],
    "evaluate": [
        "data text, split test",
        "checkpoint run/checkpoints/ckpt-#",
        "span tgt_len #, mem_len #, same_length false, clamp_len #",
        "lanes #, warmed by # tokens",
        "tokens #",
        "loss # nats",
        "bpc #",
        "speed # tokens/s: # seconds, compilation included",
    ],
    "score": [
        "tokens nats nats/token bpc perplexity bits/byte word perplexity file",
        "# # # # # # # texts/letter.txt",
        "# # # # # # # texts/test.txt",
        "# # # # # # # total (files: #)",
    ],
    "generate": ["--- seed #", "--- seed #"],
    "inspect": [
        "data: text",
        "vocabulary: # chars",
        "split tokens documents file bytes symbols used",
        "train # # # #",
        "valid # # # #",
        "test # # # #",
        "train begins:",
        "All checksums are correct.",
    ],
    "average": [
        "Averaging the weights of # checkpoints of run: steps #, #.",
        "Saved run/averaged/ckpt-#. To evaluate it:",
        "txl train --model_dir=run --eval_ckpt_path=run/averaged/ckpt-# --do_train=false --do_eval",
    ],
    "evaluate average": [VALID],
    "attention": [
        "head mean distance #% within #% within beyond # empty",
        "# # # # #% #%",
        "# # # # #% #%",
    ],
    "context": [
        "c run",
        "# # # ± #",
        "# # # ± #",
        "standard error ± #",
        "ECL #",
        "RECL, r = # #",
        "RECL, r = # #",
        "RECL, r = # #",
        "init best Attn Len",
        "run # at # # #",
    ],
    "page": [f"texts/letter.txt, # tokens: {SCORES}"],
    "samples": [
        "run run, step #",
        "data text, split test: # chars",
        "=== Sample #: from token # of # of split test, seed #",
        "--- Context, # tokens",
        "--- Generated, # tokens",
        "--- What really followed, # tokens",
    ],
    "import release": [
        "release/model/model.ckpt-#: # parameters, step #",
        "Wrote imported: weights, vocabulary.",
    ],
    "verify release": [
        "embedding bin # #",
        "memory content position mask output LayerNorm feed-forward",
        "layer # # # # # # # #",
        "softmax bin # #",
        "end to end #",
        "All terms agree: the largest difference is #",
    ],
}
# The first words of the lines of a dry run.
DRY_RUN = "parameters memory step run start schedule saves evaluation"

# The keys of the objects that commands print, and write.
SCORE = (
    "kind source number tokens unknown_tokens unknown_share total_nats nats_per_token bpc "
    "perplexity bytes bits_per_byte words word_perplexity"
)
TOTAL = SCORE.replace("source number", "texts")
EVALUATION = (
    "run dataset recipe published published_split split is_whole is_own checkpoint is_averaged "
    "precision step loss_nats bpc perplexity tokens unknown_tokens unknown_share evaluation lanes "
    "warm_len as_release stride dynamic tokens_left_out unit seconds tokens_per_second"
)
KEYS = {
    "run/attention/attention.json": "run dataset split checkpoint step is_averaged evaluation "
    "lanes warm_len targets heads stretch",
    "run/context/context.json": "data targets checkpoints seed threshold ecl_threshold "
    "use_ema measure contexts losses ecl recl attention_lengths",
    "samples.json": "run step span dataset level split split_tokens context_len settings samples",
}

# The files that commands leave; * is a part of the name that is drawn or computed.
FILES = {
    "prepare": """data/records.json data/test-00000-of-00001-*.tfrecords data/test-documents-*.zlib
        data/train-00000-of-00001-*.tfrecords data/train-documents-*.zlib
        data/valid-00000-of-00001-*.tfrecords data/valid-documents-*.zlib data/vocab.txt""",
    "train": """run/checkpoints/ckpt-2.data-00000-of-00001 run/checkpoints/ckpt-2.index
        run/checkpoints/ckpt-2.memory-00000-of-00001.data-00000-of-00001
        run/checkpoints/ckpt-2.memory-00000-of-00001.index
        run/checkpoints/ckpt-4.data-00000-of-00001 run/checkpoints/ckpt-4.index
        run/checkpoints/ckpt-4.memory-00000-of-00001.data-00000-of-00001
        run/checkpoints/ckpt-4.memory-00000-of-00001.index
        run/config.json run/data.json run/events/events.out.tfevents.*
        run/events/train/events.out.tfevents.* run/events/validation/events.out.tfevents.*
        run/log.jsonl run/options.json run/run.json run/validation.jsonl run/vocabulary.json""",
    "export": """exported/README.md exported/assets/vocabulary.json exported/fingerprint.pb
        exported/saved_model.pb exported/txl_tf.json
        exported/variables/variables.data-00000-of-00001 exported/variables/variables.index""",
    "resume": """run/checkpoints/ckpt-6.data-00000-of-00001 run/checkpoints/ckpt-6.index
        run/checkpoints/ckpt-6.memory-00000-of-00001.data-00000-of-00001
        run/checkpoints/ckpt-6.memory-00000-of-00001.index run/evaluations.jsonl
        run/events/events.out.tfevents.* run/events/train/events.out.tfevents.*
        run/events/validation/events.out.tfevents.*""",
    "average": "run/averaged/ckpt-6.data-00000-of-00001 run/averaged/ckpt-6.index",
    "attention": """run/attention/attention-by-distance.png run/attention/attention-by-term.png
        run/attention/attention-of-heads.png run/attention/attention.json
        run/attention/attention.npz""",
    "context": """run/context/attention_lengths.png run/context/context.json
        run/context/context.png run/context/gains.png""",
    "page": "page.html",
    "samples": "samples.html samples.json",
    "export release": """release/data/corpus-info.json release/data/vocabulary.json
        release/model/checkpoint release/model/model.ckpt-6.data-00000-of-00001
        release/model/model.ckpt-6.index""",
    "import release": """imported/checkpoints/ckpt-6.data-00000-of-00001
        imported/checkpoints/ckpt-6.index imported/config.json imported/import.json
        imported/run.json imported/vocabulary.json""",
}
ALL = ("prepare", "train", "export", *COMMANDS)


@pytest.fixture(scope="module")
def outcomes(trained, folder):
    """What all commands have answered."""
    _, found = trained
    with contextlib.chdir(folder):
        for name, command in COMMANDS.items():
            program, *arguments = command.split()
            found = {**found, name: call(f"txl_tf.programs.{program}", *arguments)}
    return found


@pytest.mark.parametrize("name", ALL)
def test_a_command_succeeds_without_a_word_of_error(name, outcomes):
    outcome = outcomes[name]
    assert outcome.status == 0, outcome.err
    if name != "evaluate as JSON":  # it leaves standard output to the object
        assert outcome.err == ""


@pytest.mark.parametrize("name", ALL)
def test_a_command_leaves_these_files(name, outcomes):
    assert outcomes[name].files == sorted(FILES.get(name, "").split())


@pytest.mark.parametrize("name", LINES)
def test_a_command_prints_these_lines(name, outcomes):
    lines = iter(mask_numbers(outcomes[name].out))
    for line in LINES[name]:
        assert line in lines  # goes on behind the line before


def test_a_dry_run_prints_these_rows(outcomes):
    rows = [line.split()[0] for line in outcomes["dry run"].out.splitlines() if line[0] != " "]
    assert rows[1:] == DRY_RUN.split()


def test_an_evaluation_as_json_has_these_keys(outcomes):
    assert list(json.loads(outcomes["evaluate as JSON"].out)) == EVALUATION.split()


@pytest.mark.parametrize(
    ("name", "kind", "more"),
    [("score as JSON", "line", " symbols nats"), ("score files", "file", "")],
)
def test_scores_as_json_have_these_keys(name, kind, more, outcomes):
    *texts, total = map(json.loads, outcomes[name].out.splitlines())
    assert {" ".join(text) for text in texts} == {SCORE + more}
    assert {text["kind"] for text in texts} == {kind}
    assert " ".join(total) == TOTAL
    assert total["kind"] == "total"


@pytest.mark.parametrize("path", KEYS)
def test_a_report_has_these_keys(path, outcomes, here):
    assert list(json.loads((here / path).read_text())) == KEYS[path].split()


def test_a_resumed_run_trains_each_step_once(outcomes, here):
    log = [json.loads(line) for line in (here / "run" / "log.jsonl").read_text().splitlines()]
    assert [record["step"] for record in log] == [1, 2, 3, 4, 5, 6]


def test_a_saved_model_scores_as_the_checkpoint_that_it_was_made_of(outcomes, here):
    command = "--run=run --checkpoint=4 --format=jsonl --jit=none texts/letter.txt"
    expected = json.loads(call("txl_tf.programs.score", *command.split()).out.splitlines()[0])
    found = json.loads(outcomes["score by SavedModel"].out.splitlines()[0])
    assert found.keys() == expected.keys()
    assert found["total_nats"] == pytest.approx(expected["total_nats"], rel=1e-5)  # float32


def test_table_and_object_hold_the_same_score(outcomes):
    row = outcomes["score"].out.splitlines()[1].split()
    record = json.loads(outcomes["score files"].out.splitlines()[0])
    assert int(row[0]) == record["tokens"]
    assert float(row[1]) == pytest.approx(record["total_nats"], abs=0.005)  # its last digit
