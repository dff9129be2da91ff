"""An exported SavedModel in processes that have tensorflow alone, and the clients of examples/."""

import contextlib
import http.server
import importlib.util
import json
import re
import subprocess
import sys
import threading

import numpy as np
import pytest
from places import ROOT
from small_language_model import WORDS, make_model
from tables import slow_after

from txl_tf.data import Vocabulary

EXAMPLES = ROOT / "examples"
PROGRAMS = sorted(path for path in EXAMPLES.glob("*.py") if "__main__" in path.read_text())
TEXTS = ["the cat sat on the mat\na cat", "", "the", "a cat sat\n" * 9, "the mat"]
SAME = {"rtol": 0, "atol": 2e-5}
# What comes before a program that may not import txl_tf or keras.
REFUSE = "import sys; sys.modules['txl_tf'] = sys.modules['keras'] = None\n"
# tensorflow-text imports keras for layers of its own: that is taken away again.
REFUSE_WITH_TEXT = """
import sys; sys.modules['txl_tf'] = None
import tensorflow, tensorflow_text
for name in ("keras", *(name for name in sys.modules if name.startswith("keras."))):
    sys.modules[name] = None
"""
CLIENT = """
import concurrent.futures, json
import numpy as np
import tensorflow as tf
import tensorflow_text

for name in ("txl_tf", "keras"):
    try:
        __import__(name)
    except ImportError:
        continue
    raise AssertionError(name)
folder, inputs, out = sys.argv[1:]
model = tf.saved_model.load(folder)
calls = [
    (name, {key: tf.constant(value) for key, value in arguments.items()})
    for name, arguments in json.load(open(inputs))
]
memory = model.signatures["initial_memory"](batch_size=tf.constant(2))
calls = [(name, memory | given if name == "step" else given) for name, given in calls]


def call(index):
    name, given = calls[index % len(calls)]
    return {key: each.numpy() for key, each in model.signatures[name](**given).items()}


alone = [call(index) for index in range(len(calls))]
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    together = list(pool.map(call, range(8 * len(calls))))
for index, found in enumerate(together):
    for key, expected in alone[index % len(calls)].items():
        np.testing.assert_array_equal(found[key], expected, err_msg=key)
np.savez(
    out, **{f"{i}/{key}": each for i, found in enumerate(alone) for key, each in found.items()}
)
"""


@pytest.fixture(scope="module")
def lm():
    return make_model(7, vocabulary=WORDS)


@pytest.fixture(scope="module")
def folder(lm, tmp_path_factory):
    path = tmp_path_factory.mktemp("exported") / "mats"
    lm.export(path, mask_empty_memory=False)
    return path


def run_alone(program, *arguments, cwd, refuse=REFUSE_WITH_TEXT):
    """Runs a program with tensorflow alone; -I leaves out the folder of this repository."""
    return subprocess.run(
        [sys.executable, "-I", "-c", refuse + program, *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=True,
    )


def score_live(lm, text):
    """Returns the losses of a text's tokens, each from the whole model: 0 of the first."""
    ids = WORDS.encode(text) if isinstance(text, str) else text
    memory, parts = lm.model.initial_memory(1, 11), [np.zeros(1)]
    for start in range(0, len(ids) - 1, 5):
        part = ids[None, start : start + 6]
        hidden, memory = lm.model(part[:, :-1], memory, span=lm.span)
        parts.append(np.asarray(lm.model.nll(hidden, part[:, 1:]))[0])
    return np.concatenate(parts)[: len(ids)]


@pytest.mark.slow
def test_tensorflow_alone_gives_what_the_live_model_does(lm, folder, tmp_path):
    """Every signature, once and then by 8 threads at once."""
    ids = [WORDS.encode(text).tolist() for text in ("the cat sat on", "a mat the cat")]
    generation = {"text": "the cat", "length": 13, "temperature": 0.0, "top_k": 0, "seed": 0}
    calls = [
        ("score_text", {"texts": TEXTS}),
        ("score_ids", {"ids": ids, "lengths": [4, 3]}),
        ("step", {"ids": ids, "lengths": [4, 3], "reset": [False, True]}),
        ("generate_text", generation),
    ]
    (tmp_path / "calls.json").write_text(json.dumps(calls))
    run_alone(CLIENT, folder, tmp_path / "calls.json", tmp_path / "out.npz", cwd=tmp_path)
    found = np.load(tmp_path / "out.npz")
    expected = np.concatenate([score_live(lm, text) for text in TEXTS])
    np.testing.assert_allclose(found["0/token_nats"], expected, **SAME)
    for row, length in enumerate((4, 3)):
        expected = score_live(lm, WORDS.decode(ids[row][:length]))
        np.testing.assert_allclose(found["1/nats"][row, :length], expected, **SAME)
        np.testing.assert_allclose(found["2/nats"][row, :length], expected, **SAME)
        read = np.array([ids[row][:length]], np.int32)
        hidden, _ = lm.model(read, lm.model.initial_memory(1, 11), span=lm.span)
        log_probs = lm.model.log_probs(hidden)[0, -1]
        np.testing.assert_allclose(found["2/log_probs"][row], log_probs, **SAME)
    text = lm.generate("the cat", max_new_tokens=13, temperature=0, mask_empty_memory=False)
    assert found["3/text"].item().decode() == text


BARE_CLIENT = """
import sys
sys.modules["tensorflow_text"] = None
import tensorflow as tf

model = tf.saved_model.load(sys.argv[1])
texts = tf.constant([b"the cat", b"", b"a\\0cat"])
print(*model.signatures["score_text"](texts=texts)["token_nats"].numpy())
settings = {"length": 5, "top_k": 0, "seed": 0}
settings = {name: tf.constant(value) for name, value in settings.items()}
settings |= {"text": tf.constant("cat"), "temperature": tf.constant(0.0)}
print(model.signatures["generate_text"](**settings)["text"].numpy())
"""


@pytest.mark.slow
def test_characters_need_no_tensorflow_text(tmp_path):
    """Of bytes and ids, tests/data/test_tokenizer.py shows it."""
    characters = Vocabulary("char", tuple("\0acteh "))
    lm = make_model(len(characters), vocabulary=characters)
    lm.export(tmp_path / "out", mask_empty_memory=False)
    assert "tensorflow_text" not in (tmp_path / "out" / "README.md").read_text()
    nats, text = run_alone(
        BARE_CLIENT, tmp_path / "out", cwd=tmp_path, refuse=REFUSE
    ).stdout.splitlines()
    ids = map(characters.encode, ["the cat", "", "a\0cat"])
    expected = np.concatenate([score_live(lm, each) for each in ids])
    np.testing.assert_allclose([float(value) for value in nats.split()], expected, **SAME)
    drawn = lm.generate("cat", max_new_tokens=5, temperature=0, mask_empty_memory=False)
    assert text == repr(drawn.encode())


@pytest.mark.slow
def test_the_example_of_the_card_scores(folder, monkeypatch, capsys):
    card = (folder / "README.md").read_text()
    (example,) = re.findall("^```python\n(.*)^```", card, re.DOTALL | re.MULTILINE)
    example = example.replace('"a text", "another"', '"the cat", "mat"')
    monkeypatch.chdir(folder)
    exec(example, {})  # with tensorflow alone, the test above calls what it calls
    assert re.fullmatch(r"tf.Tensor\(\[\d\S+ +0\. *\], .*\)\n", capsys.readouterr().out)


@pytest.mark.slow
def test_the_example_scores_a_file_without_the_package(lm, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "txl_tf", None)
    lines = ["the cat sat on the mat", "a cat"]
    (tmp_path / "texts.txt").write_text("\n".join(lines))
    arguments = [str(folder), str(tmp_path / "texts.txt")]
    assert not load_example("score_exported").main(["score_exported.py", *arguments])
    expected = [score_live(lm, line).sum() / np.log(2) / line.count(" ") for line in lines]
    rows = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    np.testing.assert_allclose([float(row[0]) for row in rows], expected, atol=1e-4)
    assert [row[1:] for row in rows] == [["5", lines[0]], ["1", lines[1]]]


def load_example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_example(name, *arguments):
    return subprocess.run(
        [sys.executable, EXAMPLES / name, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_an_example_tells_its_use_and_refuses_an_unknown_flag(path, capsys):
    main = load_example(path.stem).main

    def call(flag):
        """Returns the status; argparse raises it."""
        try:
            return main([path.name, flag])
        except SystemExit as end:
            return end.code

    assert call("--help") == 0
    out, err = capsys.readouterr()
    assert out.count("\n") > 5
    assert err == ""
    assert call("--nonsense") == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"{path.name}: ")


def test_the_demo_refuses_a_preset_that_there_is_not():
    """Before it prepares anything."""
    ran = run_example("demo.py", "--preset=none")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("demo.py: flag --preset=none: value should be one of <demo|")


def test_a_server_that_is_not_there_is_one_line(capsys):
    with http.server.HTTPServer(("localhost", 0), Other) as closed:
        url = f"http://localhost:{closed.server_port}/v1/models/mats"
    assert load_example("serving_client").main(["serving_client.py", url, "the cat"]) == 1
    out, error = capsys.readouterr()
    assert out == ""
    assert error == f"serving_client.py: {url}: [Errno 111] Connection refused\n"


class Other(http.server.BaseHTTPRequestHandler):
    """Serves no models."""

    def do_POST(self):
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serve_answer(status, body):
    """Yields the URL of a model on a server that gives the same answer to every request."""
    with http.server.ThreadingHTTPServer(("localhost", 0), Other) as server:
        server.status, server.body = status, body
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield f"http://localhost:{server.server_port}/v1/models/mats"
        server.shutdown()


def test_the_client_prints_a_line_for_each_text(capsys):
    outputs = {"nats": [3.0, 5.0], "bpc": [1.5, 2.25]}
    with serve_answer(200, json.dumps({"outputs": outputs}).encode()) as url:
        assert load_example("serving_client").main(["serving_client.py", url, "a cat", "mat"]) == 0
    assert capsys.readouterr().out == "  1.5000  a cat\n  2.2500  mat\n"


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (404, b"<html>", "status 404, Not Found"),
        (200, b"[3]", "the response is not that of a model server"),
    ],
)
def test_a_server_of_another_kind_is_one_line(status, body, message, capsys):
    with serve_answer(status, body) as url:
        assert load_example("serving_client").main(["serving_client.py", url, "the cat"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"serving_client.py: {url}: {message}")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("exported", "message"),
    slow_after(
        1,
        [
            ("none", "SavedModel file does not exist at"),
            ("ids", "has no signature score_text: it takes only ids"),
            ("words", "dogs.txt: .*a symbol that the vocabulary does not know"),
        ],
    ),
)
def test_bad_input_of_the_scoring_example_is_one_line(exported, message, request, tmp_path, capsys):
    (tmp_path / "dogs.txt").write_text("the cat\nthe dog\n")
    if exported == "ids":
        make_model(7).export(tmp_path / "ids")
    path = request.getfixturevalue("folder") if exported == "words" else tmp_path / exported
    program = load_example("score_exported")
    assert program.main(["score_exported.py", str(path), str(tmp_path / "dogs.txt")]) == 1
    out, error = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(rf"score_exported.py: .*{message}.*\n", error)
