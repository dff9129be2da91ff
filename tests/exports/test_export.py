"""What is exported as a SavedModel, and what its signatures compute."""

import json
import math
from importlib.metadata import PackageNotFoundError

import numpy as np
import pytest
import tensorflow as tf
from small_language_model import WORDS, make_model
from tables import slow_after

import txl_tf.programs.export
from txl_tf.data import Vocabulary
from txl_tf.errors import UserError
from txl_tf.exports.description import describe_model
from txl_tf.exports.saved_model_scorer import SavedModelScorer
from txl_tf.models.cached_model import CachedModel, make_cached
from txl_tf.scoring.text_chunks import TextChunk, TextName

TEXTS = ["the cat sat on the mat\na cat", "", "the", "a cat sat\n" * 9, "the mat"]
TGT_LEN = 5
SAME = {"rtol": 0, "atol": 2e-5}


class Exported:
    """A live model and its SavedModel, in this process."""

    def __init__(self, folder, lm, **arguments):
        self.lm, self.folder = lm, str(folder)
        self.names = lm.export(self.folder, **arguments)
        self.loaded = tf.saved_model.load(self.folder)
        self.is_masked = arguments.get("mask_empty_memory", True)
        self.cached = CachedModel(lm.model, lm.span, TGT_LEN, mask_empty_memory=self.is_masked)
        self.scored = {}

    def call(self, signature, **inputs):
        outputs = self.loaded.signatures[signature](
            **{name: tf.constant(value) for name, value in inputs.items()}
        )
        return {name: output.numpy() for name, output in outputs.items()}

    def score_live(self, ids):
        """Returns the losses of a text read segment by segment: 0, then that of each token."""
        key = tuple(ids)
        if key not in self.scored:
            self.scored[key] = self._score(ids)
        return self.scored[key]

    def _score(self, ids):
        state, parts = self.cached.initial_state(1), [np.zeros(min(len(ids), 1), np.float32)]
        for start in range(0, len(ids) - 1, TGT_LEN):
            part = tf.constant([ids[start : start + TGT_LEN + 1]], tf.int32)
            hidden, state = self.cached.read(part[:, :-1], state)
            temperature = self.lm.evaluation.temperature
            nats = self.lm.model.nll(hidden, part[:, 1:], temperature=temperature)
            parts.append(nats.numpy()[0])
        return np.concatenate(parts)


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    lm = make_model(7, vocabulary=WORDS, same_length=True)
    return Exported(tmp_path_factory.mktemp("masked"), lm, batch_size=np.int64(2))


@pytest.fixture(scope="module")
def attended(tmp_path_factory):
    lm = make_model(7, vocabulary=WORDS, temperature=1.7)
    return Exported(tmp_path_factory.mktemp("attended"), lm, mask_empty_memory=False)


@pytest.fixture(scope="module", params=slow_after(1, ["masked", "attended"]))
def exported(request):
    return request.getfixturevalue(request.param)


def pad(texts):
    """Returns ids of texts and what is no id behind them, and the lengths."""
    ids = np.full((len(texts), max(map(len, texts))), -3, np.int32)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = text
    return ids, np.array([len(text) for text in texts], np.int32)


@pytest.mark.slow
def test_texts_have_the_losses_of_the_live_model(exported):
    found = exported.call("score_text", texts=TEXTS)
    rows = np.split(found["token_nats"], found["row_splits"][1:-1])
    ids = np.split(found["token_ids"], found["row_splits"][1:-1])
    scores = exported.lm.score(TEXTS, mask_empty_memory=exported.is_masked, jit="none")
    for index, (text, score) in enumerate(zip(TEXTS, scores, strict=True)):
        expected = exported.score_live(WORDS.encode(text))
        np.testing.assert_array_equal(ids[index], WORDS.encode(text))
        np.testing.assert_allclose(rows[index], expected, **SAME)
        np.testing.assert_allclose(rows[index][1:], score.nats, **SAME)
        assert found["tokens"][index] == max(len(expected) - 1, 0)
        total = expected.sum(dtype=np.float64)
        assert found["nats"][index] == pytest.approx(total, abs=1e-3)
        np.testing.assert_allclose(found["bpc"][index], score.bits_per_token, rtol=1e-4)


def test_ids_have_the_losses_of_the_live_model(exported):
    ids, lengths = pad([WORDS.encode(text) for text in TEXTS])
    found = exported.call("score_ids", ids=ids, lengths=lengths)["nats"]
    assert found.shape == ids.shape
    for row, text in zip(found, TEXTS, strict=True):
        expected = exported.score_live(WORDS.encode(text))
        np.testing.assert_allclose(row[: len(expected)], expected, **SAME)
        assert not row[len(expected) :].any()


def test_a_scorer_of_the_folder_has_the_losses_of_the_live_model(masked):
    """Of texts of 0 to 6 segments, two at a time, of which the last ones go on alone."""
    texts = [WORDS.encode(text) for text in TEXTS]
    streams = [[TextChunk(ids, None, None, (0, 0), TextName("", 1))] for ids in texts]
    scores = SavedModelScorer(masked.folder, batch_size=2).score(streams)
    for ids, (_, score) in zip(texts, scores, strict=True):
        np.testing.assert_allclose(score.nats, masked.score_live(ids)[1:], **SAME)


def read_steps(exported, texts, memory, *, tgt_len, reset=None):
    """Returns the losses of texts read step by step, and the last outputs."""
    ids, lengths = pad(texts)
    ids, parts = np.maximum(ids, 0), []
    fresh = np.zeros(len(texts), bool)
    for start in range(0, ids.shape[1], tgt_len):
        memory = exported.call(
            "step",
            ids=ids[:, start : start + tgt_len],
            lengths=np.clip(lengths - start, 0, tgt_len).astype(np.int32),
            reset=fresh if reset is None or start else reset,
            **{name: memory[name] for name in ("keys", "values", "last", "n_read")},
        )
        parts.append(memory.pop("nats"))
    return [row[:n] for row, n in zip(np.concatenate(parts, 1), lengths, strict=True)], memory


def test_steps_have_the_losses_of_the_live_model(exported):
    texts = [WORDS.encode(text) for text in TEXTS]
    memory = exported.call("initial_memory", batch_size=len(texts))
    found, _ = read_steps(exported, texts, memory, tgt_len=TGT_LEN)
    for text, nats in zip(texts, found, strict=True):
        np.testing.assert_allclose(nats, exported.score_live(text), **SAME)


def test_a_row_that_is_reset_begins_anew(masked):
    texts = [WORDS.encode("the cat sat"), WORDS.encode("on a mat the cat")]
    empty = masked.call("initial_memory", batch_size=2)
    assert not any(tensor.any() for tensor in empty.values())
    _, memory = read_steps(masked, texts, empty, tgt_len=TGT_LEN)
    reset = np.array([False, True])
    found, _ = read_steps(masked, texts, memory, tgt_len=TGT_LEN, reset=reset)
    fresh, _ = read_steps(masked, texts, empty, tgt_len=TGT_LEN)
    later, _ = read_steps(masked, texts, memory, tgt_len=TGT_LEN)
    np.testing.assert_array_equal(found[0], later[0])
    np.testing.assert_array_equal(found[1], fresh[1])
    assert abs(later[1] - fresh[1]).max() > 0.01
    assert (found[1][0], later[1][0] > 0) == (0, True)


def test_steps_tell_the_next_token(masked):
    """Greedy, from step to step: the text that `generate_text` gives."""
    ids = WORDS.encode("the cat sat on")
    memory = masked.call("initial_memory", batch_size=1)
    drawn = []
    _, memory = read_steps(masked, [ids], memory, tgt_len=TGT_LEN)
    for _ in range(9):
        np.testing.assert_allclose(np.exp(memory["log_probs"]).sum(), 1, rtol=1e-5)
        drawn.append(int(memory["log_probs"][0].argmax()))
        _, memory = read_steps(masked, [np.array(drawn[-1:])], memory, tgt_len=1)
    assert WORDS.decode(np.concatenate([ids, drawn])) == "the cat sat on" + generate(masked)


def generate(exported, text="the cat sat on", length=9, temperature=0.0, top_k=0, seed=0):
    arguments = {"text": text, "length": length, "temperature": temperature}
    found = exported.call("generate_text", **arguments, top_k=top_k, seed=seed)
    return found["text"].decode()


def test_a_seed_gives_the_text_of_the_live_model(exported):
    """Over more than one block of numbers."""
    settings = {"temperature": 1.0, "top_k": 3, "mask_empty_memory": exported.is_masked}
    for seed in (7, 2**31 - 1):
        expected = exported.lm.generate("the cat", max_new_tokens=71, seed=seed, **settings)
        assert generate(exported, "the cat", 71, temperature=1.0, top_k=3, seed=seed) == expected


def test_empty_texts_have_no_losses(masked):
    """Alone in a batch of the scoring loop."""
    texts = ["the cat", *[""] * 16]
    found = masked.call("score_text", texts=texts)
    assert (found["nats"][-1], found["tokens"][-1]) == (0, 0)
    assert np.isnan(found["bpc"][-1])
    n_ids = [len(WORDS.encode(text)) for text in texts]
    np.testing.assert_array_equal(np.diff(found["row_splits"]), n_ids)
    nothing = masked.call("score_text", texts=np.zeros(0, "S1"))
    assert (nothing["nats"].shape, nothing["row_splits"].tolist()) == ((0,), [0])
    ids = np.zeros((2, 3), np.int32)
    for width in (0, 3):
        nats = masked.call("score_ids", ids=ids[:, :width], lengths=np.zeros(2, np.int32))
        np.testing.assert_array_equal(nats["nats"], np.zeros((2, width)))


def test_ids_behind_the_length_of_a_row_are_ignored(masked):
    """Whatever they are: clients pad as they like."""
    ids, lengths = np.array([[3, 1, 4, 1]], np.int32), np.array([2], np.int32)
    memory = masked.call("initial_memory", batch_size=1)
    state = {"lengths": lengths, "reset": [False], **memory}
    expected = [
        masked.call("score_ids", ids=ids, lengths=lengths),
        masked.call("step", ids=ids, **state),
    ]
    for padding in (-1, 7, 2**31 - 1):
        ids[:, 2:] = padding
        found = [
            masked.call("score_ids", ids=ids, lengths=lengths),
            masked.call("step", ids=ids, **state),
        ]
        for tensors, others in zip(found, expected, strict=True):
            for name, tensor in tensors.items():
                np.testing.assert_array_equal(tensor, others[name], err_msg=name)


@pytest.mark.slow
def test_bytes_that_are_no_utf_8_are_scored_at_level_byte(tmp_path):
    vocabulary = Vocabulary("byte", ("97", "255", "195"))
    exported = Exported(tmp_path / "out", make_model(3, vocabulary=vocabulary))
    text = b"a\xffa\xc3a"
    found = exported.call("score_text", texts=[text])
    assert found["token_ids"].tolist() == [0, 1, 0, 2, 0]
    (score,) = exported.lm.score([text])
    np.testing.assert_allclose(found["token_nats"][1:], score.nats, **SAME)
    settings = {"length": 9, "temperature": 9.0, "top_k": 0, "seed": 1}
    drawn = exported.call("generate_text", text=text, **settings)["text"]
    assert len(drawn) == 9
    assert set(drawn) <= {97, 255, 195}
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"a symbol that the vocabulary does"):
        exported.call("score_text", texts=[b"b"])


STEP = {"ids": [[1, 2]], "lengths": [2], "reset": [False]}


@pytest.mark.parametrize(
    ("signature", "inputs", "message"),
    [
        ("score_text", {"texts": ["the dog"]}, r"a symbol that the vocabulary does not know"),
        ("score_text", {"texts": [b"the \xff"]}, r"Invalid formatting on input string"),
        ("score_ids", {"ids": [[1, 7]], "lengths": [2]}, r"`ids` must be at least 0 and below 7"),
        ("score_ids", {"ids": [[1, 2]], "lengths": [3]}, r"`lengths` must be from 0 to the width"),
        ("score_ids", {"ids": [[1, 2]], "lengths": [2, 2]}, r"`lengths` must have as many rows"),
        ("step", STEP | {"ids": [[1] * 6]}, r"`ids` must be rows of 1 to 5, the segment length"),
        ("step", STEP | {"n_read": [-5]}, r"`n_read` must be the value of the previous step"),
        ("step", STEP | {"reset": [True, True]}, r"`reset` must have as many rows as `ids`"),
        ("generate_text", {"text": ""}, r"`text` must hold at least one token"),
        ("generate_text", {"temperature": math.nan}, r"`temperature` must be 0 or more"),
        ("generate_text", {"top_k": -1}, r"`top_k` must be 0, for all, or more"),
        ("generate_text", {"seed": -1}, r"`seed` must not be negative"),
    ],
)
def test_bad_input_is_an_error_of_the_graph(masked, signature, inputs, message):
    if signature == "step":
        inputs = masked.call("initial_memory", batch_size=1) | inputs
    if signature == "generate_text":
        inputs = {"text": "a", "length": 3, "temperature": 1.0, "top_k": 0, "seed": 0} | inputs
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        masked.call(signature, **inputs)


def test_a_failed_write_leaves_no_files(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise tf.errors.ResourceExhaustedError(None, None, "no space left")

    monkeypatch.setattr(tf.saved_model, "save", fail)
    with pytest.raises(UserError, match=r"out` could not be written: no space left"):
        make_model(7).export(tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_the_folder_says_what_it_holds(masked):
    with open(f"{masked.folder}/txl_tf.json") as file:
        info = json.load(file)
    assert info["model"] == json.loads(json.dumps(masked.lm.config.to_json()))
    assert info["span"] == masked.lm.span.to_json()
    assert {"txl_tf", "tensorflow", "keras", "tensorflow-text"} == set(info["versions"])
    assert info["vocabulary"] == {"level": "word", "symbols": 7}
    assert (info["tgt_len"], info["batch_size"], info["mask_empty_memory"]) == (5, 2, True)
    with open(f"{masked.folder}/assets/vocabulary.json") as file:
        assert Vocabulary.from_json(json.load(file)) == WORDS
    with open(f"{masked.folder}/README.md") as file:
        card = file.read()
    for name in masked.names:
        assert f"| `{name}` |" in card
    assert "\nimport tensorflow_text" in card


def test_the_package_for_tpus_is_named_in_place_of_the_usual_one(monkeypatch):
    versions = {"tensorflow-tpu": "2.20.0", "keras": "3.15.1", "tensorflow-text": "2.20.0"}

    def find_version(name):
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr("txl_tf.exports.description.version", find_version)
    lm = make_model(7)
    found = describe_model(lm, make_cached(lm.model, lm.evaluation))["versions"]
    assert found == {"txl_tf": txl_tf.__version__, **versions}


def test_a_saved_model_of_another_format_version_is_refused(tmp_path):
    (tmp_path / "txl_tf.json").write_text('{"format_version": 2}')
    with pytest.raises(UserError, match=r"has format version 2; this .* reads format version 1$"):
        SavedModelScorer(str(tmp_path), 1)


def test_the_folder_tells_the_shapes_of_its_signatures(masked):
    with open(f"{masked.folder}/txl_tf.json") as file:
        described = json.load(file)["signatures"]
    assert set(described) == set(masked.loaded.signatures) == set(masked.names)
    for name, function in masked.loaded.signatures.items():
        inputs = {spec.name: spec for spec in function.structured_input_signature[1].values()}
        for part, specs in [("inputs", inputs), ("outputs", function.structured_outputs)]:
            assert set(described[name][part]) == set(specs)
            for key, spec in specs.items():
                shape = [-1 if size is None else size for size in spec.shape]
                assert described[name][part][key] == {"dtype": spec.dtype.name, "shape": shape}


@pytest.mark.slow
def test_a_mixed_policy_is_exported(tmp_path):
    """Adaptive softmax, no vocabulary: the losses are those of the live model."""
    config = txl_tf.ModelConfig(
        *(23, 2, 6, 6, 3, 5, 7), cutoffs=(5, 12), div_val=2, dropout=0.0, dropatt=0.0
    )
    model = txl_tf.TransformerXL(config, seed=1, dtype="mixed_bfloat16")
    span, ids = txl_tf.AttentionSpan(11), np.random.default_rng(3).integers(0, 23, (2, 5), "int32")
    evaluation = txl_tf.EvalConfig(tgt_len=5, mem_len=11)
    lm = txl_tf.LanguageModel(model, None, evaluation)
    names = lm.export(tmp_path / "out", mask_empty_memory=False)
    assert names == ("score_ids", "initial_memory", "step")
    loaded = tf.saved_model.load(str(tmp_path / "out"))
    found = loaded.signatures["score_ids"](ids=tf.constant(ids), lengths=tf.constant([5, 5]))
    hidden, _ = model(ids[:, :-1], model.initial_memory(2, 11), span=span)
    expected = model.nll(hidden, ids[:, 1:])
    np.testing.assert_allclose(found["nats"][:, 1:], expected, rtol=0, atol=2e-2)


def test_the_program_exports_a_run(tmp_path, capsys):
    make_model(7).save(tmp_path / "run")
    arguments = ["--run", str(tmp_path / "run"), "--out", str(tmp_path / "out"), "--mem_len=3"]
    assert txl_tf.programs.export.main(["export", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "a SavedModel of step 0 with score_ids, initial_memory, step." in printed
    assert "The run has no vocabulary: the model takes ids, not texts." in printed
    assert json.loads((tmp_path / "out" / "txl_tf.json").read_text())["span"]["mem_len"] == 3
    assert txl_tf.programs.export.main(["export", *arguments]) == 1
    assert "is not empty" in capsys.readouterr().err
