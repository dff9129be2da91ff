"""The files that users keep: records, runs with their checkpoints, exports."""

import json
from pathlib import Path

import pytest

import txl_tf
from tests.contract.formats import describe_formats, list_keys
from txl_tf.apps.hub_upload import push_to_hub

KEPT = json.loads(Path(__file__).with_name("formats.json").read_text())


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return describe_formats(tmp_path_factory.mktemp("formats"))


@pytest.mark.slow
def test_every_format_is_kept(found):
    assert found.keys() == KEPT.keys()


def test_a_model_on_the_hub_keeps_its_files(hub):
    model = txl_tf.ModelConfig(n_token=2, n_layer=1, d_model=4, d_embed=4, n_head=1, d_head=4)
    vocabulary = txl_tf.data.Vocabulary("char", ("a", "b"))
    lm = txl_tf.LanguageModel(txl_tf.TransformerXL(model), vocabulary, txl_tf.EvalConfig())
    push_to_hub(lm, "user/model")
    (files,) = (commit for commit in hub.repositories["user/model"].commits.values() if commit)
    assert sorted(files) == ["README.md", "config.json", "model.safetensors", "vocabulary.json"]
    assert list_keys(files["config.json"]) == KEPT["config.json"]
    header_len = int.from_bytes(files["model.safetensors"][:8], "little")
    header = json.loads(files["model.safetensors"][8 : 8 + header_len])
    assert header.pop("__metadata__") == {"format": "txl_tf", "step": "0"}
    weights = {weight.path.replace("/", "."): weight.shape for weight in lm.model.weights}
    assert {name: tuple(entry["shape"]) for name, entry in header.items()} == weights
    assert {entry["dtype"] for entry in header.values()} == {"F32"}


# After a deliberate change: python -m tests.contract.formats tests/contract/formats.json
@pytest.mark.slow
@pytest.mark.parametrize("name", KEPT)
def test_names_keys_and_variables_are_kept(found, name):
    assert found[name] == KEPT[name]
