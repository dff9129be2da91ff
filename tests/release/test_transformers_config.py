"""What folders of Hugging Face transformers say of their models and words."""

import json

import pytest
from hub_reference import SMALL
from places import GOLDEN

from txl_tf import presets
from txl_tf.config import EvalConfig, ModelConfig
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError
from txl_tf.release import (
    is_transformers_folder,
    read_transformers_config,
    read_transformers_vocabulary,
)

FOLDER = GOLDEN / "hub" / "word"


def write_config(folder, settings):
    (folder / "config.json").write_text(json.dumps(settings))
    return str(folder)


def get_line(error):
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_config_is_translated():
    config = read_transformers_config(str(FOLDER))
    assert config.model == ModelConfig(
        n_token=130,
        n_layer=2,
        d_model=32,
        d_embed=32,
        n_head=4,
        d_head=8,
        d_inner=48,
        cutoffs=(20, 40, 90),
        div_val=2,
        untie_r=True,
        proj_share_all_but_first=True,
        dropout=0.0,
        dropatt=0.0,
        init_range=0.01,
        layer_norm_epsilon=1e-5,
    )
    assert config.evaluation == EvalConfig(
        eval_batch_size=1,
        tgt_len=128,
        mem_len=14,
        same_length=True,
        clamp_len=12,
        counts_self=True,
    )


def test_a_config_that_says_nothing_is_of_the_large_model_of_wt103(tmp_path):
    model, evaluation = read_transformers_config(
        write_config(tmp_path, {"model_type": "transfo-xl"})
    )
    large = presets.get("wt103_large")
    assert model.count_parameters() == large.model.count_parameters()
    assert evaluation.span.to_json() == large.evaluation.span.to_json() | {"counts_self": True}
    assert evaluation.tgt_len == large.evaluation.tgt_len


def test_an_older_config_knows_the_length_of_a_segment(tmp_path):
    folder = write_config(tmp_path, SMALL | {"tgt_len": 5})
    assert read_transformers_config(folder).evaluation.tgt_len == 5


def test_second_names_of_settings_are_known(tmp_path):
    settings = {key: value for key, value in SMALL.items() if key != "vocab_size"}
    folder = write_config(tmp_path, settings | {"n_token": 29, "num_hidden_layers": 3})
    model = read_transformers_config(folder).model
    assert (model.n_token, model.n_layer) == (29, 3)


def test_a_length_of_0_is_no_clamping(tmp_path):
    folder = write_config(tmp_path, SMALL | {"clamp_len": 0})
    assert read_transformers_config(folder).evaluation.clamp_len == -1


@pytest.mark.parametrize(
    ("changes", "shares"),
    [
        ({}, True),
        ({"tie_projs": [False, False, False]}, False),
        ({"tie_projs": [True, False, True], "div_val": 1}, False),  # there are no projections
    ],
)
def test_projections_are_shared_as_they_are_tied(changes, shares, tmp_path):
    model = read_transformers_config(write_config(tmp_path, SMALL | changes)).model
    assert model.proj_share_all_but_first is shares


def test_without_ties_the_setting_of_the_release_decides(tmp_path):
    settings = {key: value for key, value in SMALL.items() if key != "tie_projs"}
    folder = write_config(tmp_path, settings | {"proj_share_all_but_first": False})
    assert read_transformers_config(folder).model.proj_share_all_but_first is False


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, r'`model_type` must be "transfo-xl"\. Received: "gpt2"$'),
        ({"pre_lnorm": True}, r"`pre_lnorm` must be false\. Received: true$"),
        ({"tie_word_embeddings": False}, r"`tie_word_embeddings` must be true\. Received: false$"),
        ({"sample_softmax": "7"}, r"`sample_softmax` must be -1\. Received: \"7\"$"),
        ({"tie_projs": None}, r"`tie_projs` must be .*Received: null"),
        (
            {"mem_len": 0},
            r"`mem_len` must be more than 1 with `same_length`: each query would see only",
        ),
        ({"clamp_len": "5"}, r"`clamp_len` must be an integer"),
    ],
)
def test_a_config_that_cannot_be_expressed_is_one_line(changes, message, tmp_path):
    folder = write_config(tmp_path, SMALL | changes)
    with pytest.raises(UserError, match=message) as error:
        read_transformers_config(folder)
    assert get_line(error).startswith(f"`{folder}/config.json` cannot be read: ")


@pytest.mark.parametrize("text", ["{", "[]", "\xff", '{"a":' * 100_000])
def test_a_config_that_is_no_object_is_one_line(text, tmp_path):
    (tmp_path / "config.json").write_text(text, "latin1")
    with pytest.raises(
        UserError, match=r"config.json` (is not valid JSON|is not UTF-8|must be an object)"
    ) as error:
        read_transformers_config(str(tmp_path))
    get_line(error)


@pytest.mark.parametrize("text", [None, "{", "[]", '{"model_type": "gpt2"}'])
def test_only_the_folder_of_a_transformer_xl_is_known(text, tmp_path):
    assert is_transformers_folder(str(FOLDER))
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    assert not is_transformers_folder(str(tmp_path))


WORDS = ("<eos>", "the", "<unk>", "Café", ",")


def write_vocabulary(folder, words=WORDS, **tokenizer):
    """Writes a folder with these words, and returns its path."""
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words), "utf-8")
    if tokenizer:
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return write_config(folder, SMALL | {"vocab_size": 5, "cutoffs": [2], "tie_projs": [False] * 2})


def test_words_are_read(tmp_path):
    expected = Vocabulary("word", WORDS, unknown="<unk>", line_end="<eos>")
    assert read_transformers_vocabulary(write_vocabulary(tmp_path)) == expected


def test_the_unknown_word_of_lm1b_is_known(tmp_path):
    words = ("a", "<UNK>", "<unk>", "b", "c")
    expected = Vocabulary("word", words, unknown="<UNK>")
    assert read_transformers_vocabulary(write_vocabulary(tmp_path, words)) == expected


def test_words_in_lower_case_are_known(tmp_path):
    folder = write_vocabulary(tmp_path, tokenizer_class="TransfoXLTokenizer", lower_case=True)
    vocabulary = read_transformers_vocabulary(folder)
    assert vocabulary is not None
    assert vocabulary.lower_case


def test_words_of_another_number_than_the_model_has_are_refused(tmp_path):
    folder = write_vocabulary(tmp_path, WORDS[:3])
    with pytest.raises(UserError, match=r"vocab.txt`: the vocabulary has 3 symbols, but the m"):
        read_transformers_vocabulary(folder)


def test_a_pickled_vocabulary_is_not_read_and_that_is_said(tmp_path, capsys):
    (tmp_path / "vocab.pkl").write_bytes(b"")
    folder = write_config(tmp_path, SMALL)
    assert read_transformers_vocabulary(folder) is None
    said = f"Ignored vocab.pkl in {folder}: pickles can run code. Add vocab.txt.\n"
    assert capsys.readouterr().out == said


def test_a_folder_without_a_vocabulary_has_none(tmp_path, capsys):
    assert read_transformers_vocabulary(write_config(tmp_path, SMALL)) is None
    assert capsys.readouterr().out == ""


def test_the_pieces_of_another_tokenizer_are_not_read_and_that_is_said(tmp_path, capsys):
    folder = write_vocabulary(tmp_path, tokenizer_class="BertTokenizer")
    assert read_transformers_vocabulary(folder) is None
    said = f"Ignored vocab.txt in {folder}: it is for BertTokenizer.\n"
    assert capsys.readouterr().out == said
