"""Models on a stand-in for the Hugging Face Hub: uploaded, described, downloaded, refused."""

import numpy as np
import pytest
import small_lstm
from small_language_model import WORDS, make_model

import txl_tf
from txl_tf.apps.hub_upload import push_to_hub, write_card
from txl_tf.config import EvalConfig, TrainConfig
from txl_tf.data import Vocabulary
from txl_tf.data.files import append_json_line
from txl_tf.errors import UserError
from txl_tf.programs import score

NAME = "user/small-model"


@pytest.fixture(scope="module")
def lm():
    return make_model(7, vocabulary=WORDS)


def read_files(hub, name=NAME, revision="main"):
    repository = hub.repositories[name]
    return repository.commits[repository.find(revision)]


def test_a_model_comes_back_as_it_was(hub, lm, monkeypatch):
    address = push_to_hub(lm, NAME)
    assert address.startswith(f"{hub.url}/{NAME}/commit/")
    back = txl_tf.load(f"hf://{NAME}")
    assert (back.config, back.evaluation, back.vocabulary) == (
        lm.config,
        lm.evaluation,
        lm.vocabulary,
    )
    for weight, original in zip(back.model.weights, lm.model.weights, strict=True):
        np.testing.assert_array_equal(weight, original)
    files = read_files(hub)
    assert "no evaluation of these weights was recorded" in files["README.md"].decode()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    assert txl_tf.load(f"hf://{NAME}").vocabulary == lm.vocabulary  # from the cache


def test_a_hub_that_cannot_be_reached_is_one_line(hub, lm, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(UserError, match=f"`hf://{NAME}`: "):
        push_to_hub(lm, NAME)


def test_a_model_without_a_vocabulary_comes_back_without_one(hub):
    lm = make_model(7)
    push_to_hub(lm, NAME)
    assert "vocabulary.json" not in read_files(hub)
    assert txl_tf.load(f"hf://{NAME}").vocabulary is None


def test_a_branch_and_a_commit_are_loaded_by_their_names(hub, lm):
    first = push_to_hub(lm, NAME).rpartition("/")[2]
    other = make_model(7, vocabulary=WORDS, mem_len=13)
    other.model.weights[0].assign(2 * other.model.weights[0])
    push_to_hub(other, NAME)
    assert txl_tf.load(f"hf://{NAME}@{first}").evaluation == lm.evaluation
    loaded = txl_tf.load(f"hf://{NAME}@main").model.weights[0]
    np.testing.assert_array_equal(loaded, other.model.weights[0])


def test_a_private_model_is_only_for_those_who_are_signed_in(hub, lm, monkeypatch):
    push_to_hub(lm, NAME, private=True)
    assert txl_tf.load(f"hf://{NAME}").vocabulary == lm.vocabulary
    monkeypatch.setenv("HF_TOKEN", "another")
    with pytest.raises(UserError, match="there is no such model, or it is private"):
        txl_tf.load(f"hf://{NAME}@other")


def make_record(lm, split, bits, **more):
    return {
        **{"split": split, "is_whole": True, "tokens": 97, "perplexity": bits},
        **{"checkpoint": "old/place/checkpoints/ckpt-3", "is_averaged": lm.is_averaged},
        **{"unknown_tokens": 3, "unknown_share": 3 / 97, "lanes": 1, "warm_len": 13},
        **{"as_release": False, "stride": None, "dynamic": None, "precision": "float32"},
        **{"evaluation": lm.evaluation.to_json(), **more},
    }


def test_the_card_tells_how_these_weights_were_evaluated(hub, tmp_path):
    lm = make_model(7, vocabulary=WORDS)
    lm.run, lm.checkpoint, lm.is_averaged = str(tmp_path), f"{tmp_path}/checkpoints/ckpt-3", True
    for record in (
        make_record(lm, "test", 41.0),  # an older one
        make_record(lm, "valid", 23.0),
        make_record(lm, "test", 29.0, is_own=True),
        make_record(lm, "test", 19.0, dynamic={"rule": "rms"}),
        make_record(lm, "test", 17.0, checkpoint="old/place/checkpoints/ckpt-13"),
        make_record(lm, "test", 13.0, checkpoint="old/place/averaged/ckpt-3"),
        make_record(lm, "test", 12.0, is_averaged=False),
        make_record(lm, "test", 11.0, is_whole=False),
        make_record(lm, "test", 10.0, is_own=False),
    ):
        append_json_line(str(tmp_path / "evaluations.jsonl"), record)
    push_to_hub(lm, NAME, license="apache-2.0", language="en")
    card = read_files(hub)["README.md"].decode()
    span = f"tgt_len {lm.evaluation.tgt_len}, mem_len {lm.span.mem_len}"
    rows = [line for line in card.splitlines() if line.startswith(("| test", "| valid"))]
    assert [row.split("|")[2].strip() for row in rows] == [
        "perplexity 29.0000",
        "perplexity 23.0000",
        "perplexity 19.0000",
    ]
    assert all(span in row and "first reads the 13 tokens" in row for row in rows)
    assert all("3.09% unknown" in row for row in rows)
    assert ["dynamic evaluation" in row for row in rows] == [False, False, True]
    for line in ("license: apache-2.0", "library_name: txl_tf", "language: en"):
        assert line in card
    assert f'txl_tf.load("hf://{NAME}")' in card


def test_the_card_tells_how_the_weights_were_trained():
    lm = make_model(7, vocabulary=WORDS)
    lm.dataset, lm.step = "text", 2000
    lm.training = TrainConfig(tgt_len=128, tgt_len_schedule=((2000, 32),), train_batch_size=10)
    line = "Trained on `text`: 2,000 steps of 10 texts, 640,000 tokens in all, adam."
    assert line in write_card(lm, f"hf://{NAME}").splitlines()


def test_the_card_of_a_folder_names_folder_and_dtype(lm):
    card = write_card(lm, "models/books/", dtype="float16")
    assert "# books" in card.splitlines()
    assert "weights\nin float16;" in card
    assert 'txl_tf.load("models/books/")' in card


def test_the_card_names_the_model_and_what_it_can_do():
    card = write_card(make_model(7), "models/ids", dtype="float32")
    assert "lm.generate" not in card
    assert "lm.score([[0, 1, 2]])" in card
    lstm = txl_tf.LanguageModel(small_lstm.make_model(), None, EvalConfig(mem_len=0))
    card = write_card(lstm, "models/lstm", dtype="float32")
    assert "An LSTM with" in card
    assert "heads" not in card


def test_the_example_of_the_card_is_a_prompt_that_the_model_can_encode():
    letters = Vocabulary("char", tuple(" abcdefghijklmnopqrstuvwxyz"))
    card = write_card(make_model(27, vocabulary=letters), "models/text8", dtype="float32")
    assert 'lm.generate("the "' in card


def test_imported_weights_are_known_by_their_folder(hub, tmp_path):
    lm = make_model(7, vocabulary=WORDS)
    lm.run, lm.step = str(tmp_path), 3
    push_to_hub(lm, NAME)
    assert "Trained on" in read_files(hub)["README.md"].decode()
    (tmp_path / "import.json").write_text("{}")
    push_to_hub(lm, NAME)
    card = read_files(hub)["README.md"].decode()
    assert "The weights were imported; their data set is `unknown`." in card


def test_evaluations_of_another_layout_are_told_in_one_line(hub, tmp_path):
    lm = make_model(7, vocabulary=WORDS)
    lm.run, lm.checkpoint = str(tmp_path), f"{tmp_path}/checkpoints/ckpt-3"
    append_json_line(str(tmp_path / "evaluations.jsonl"), {"step": 3, "loss": 3.0})
    with pytest.raises(UserError, match=r"evaluations\.jsonl` does not hold evaluations of a run"):
        push_to_hub(lm, NAME)


def test_a_quantized_model_is_loaded_but_not_uploaded(hub, lm):
    push_to_hub(lm, NAME)
    small = txl_tf.load(f"hf://{NAME}", precision="int8")
    assert "kernels in int8" in repr(small)
    with pytest.raises(UserError, match="a quantized model cannot be uploaded"):
        push_to_hub(small, NAME)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("hf://model", "must be hf://user/model or hf://user/model@REVISION"),
        ("hf://user/none", "`hf://user/none`: there is no such model, or it is private"),
        (f"hf://{NAME}@none", "there is no such revision"),
    ],
)
def test_addresses_of_missing_models_are_refused_in_one_line(hub, lm, address, message):
    push_to_hub(lm, NAME)
    with pytest.raises(UserError, match=message) as caught:
        txl_tf.load(address)
    assert "\n" not in str(caught.value)


def test_a_shared_model_has_no_checkpoints():
    with pytest.raises(UserError, match="`checkpoint` is for run folders"):
        txl_tf.load(f"hf://{NAME}", checkpoint="ckpt-3")


def test_a_wrong_token_is_one_line(hub, lm):
    with pytest.raises(UserError, match=f"`hf://{NAME}`: ") as caught:
        push_to_hub(lm, NAME, token="wrong")
    assert "\n" not in str(caught.value)
    assert hub.repositories == {}


def test_files_that_are_no_model_of_ours_are_refused(hub, lm):
    push_to_hub(lm, NAME)
    repository, whole = hub.repositories[NAME], read_files(hub)
    repository.commit({"config.json": b"{}"}, "main")
    with pytest.raises(UserError, match=r"is no model of txl_tf: it has no model\.safetensors"):
        txl_tf.load(f"hf://{NAME}")
    weights = repository.commits[repository.branches["main"]]
    repository.commit({**weights, "model.safetensors": b"no weights"}, "main")
    with pytest.raises(UserError, match="is not the config of a run"):
        txl_tf.load(f"hf://{NAME}")
    repository.commit({**whole, "model.safetensors": whole["model.safetensors"][:-5]}, "main")
    with pytest.raises(UserError, match=r"model.safetensors` cannot be read"):
        txl_tf.load(f"hf://{NAME}")


def test_weights_of_another_model_are_refused(hub, lm):
    push_to_hub(lm, NAME)
    files = read_files(hub)
    push_to_hub(make_model(5), NAME)
    other = {**files, "model.safetensors": read_files(hub)["model.safetensors"]}
    hub.repositories[NAME].commit(other, "main")
    with pytest.raises(UserError, match=r"holds the weights of another model: .*5.* and .*7"):
        txl_tf.load(f"hf://{NAME}")


@pytest.mark.slow
def test_a_program_takes_an_address_as_its_run(hub, lm, tmp_path, capsys):
    push_to_hub(lm, NAME)
    (tmp_path / "a.txt").write_text("the cat sat\n")
    assert score.main(["score.py", f"--run=hf://{NAME}", str(tmp_path / "a.txt")]) == 0
    nats = float(lm.score(["the cat sat\n"])[0].total_nats)
    assert f"{nats:,.2f}" in capsys.readouterr().out.splitlines()[1].split()


def test_the_method_of_older_versions_names_the_function(lm):
    with pytest.raises(UserError, match=r"txl_tf\.apps\.hub_upload\.push_to_hub\(lm, NAME\)"):
        lm.push_to_hub(NAME)
