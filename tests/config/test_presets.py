import dataclasses

import pytest

from txl_tf import presets
from txl_tf.errors import UserError

# L, D, N, H, d_inner; T, M, batch; learning rate, warm-up, steps; dropout, dropatt;
# T, M, clamping of the evaluation.
PUBLISHED_PRESETS = {
    "enwik8_base": "12 512 8 64 2048; 512 512 24; 2.5e-4 0 400000; .1 0; 80 2100 820",
    "text8_base": "12 512 8 64 2048; 512 512 24; 2.5e-4 0 400000; .1 0; 80 2100 820",
    # Of this one, the paper gives only the layers and the number of parameters.
    "enwik8_18l": "18 640 10 64 2208; 512 512 24; 2.5e-4 0 400000; .1 0; 80 2100 820",
    "enwik8_large": "24 1024 8 128 3072; 768 768 64; 2.5e-4 4000 400000; .15 .15; 128 3800 1000",
    "text8_large": "24 1024 8 128 3072; 768 768 64; 2.5e-4 4000 400000; .15 .15; 128 3800 1000",
    "wt103_base": "16 410 10 41 2100; 150 150 60; 2.5e-4 0 400000; .1 0; 64 640 400",
    "wt103_large": "18 1024 16 64 4096; 384 384 128; 2.5e-4 16000 4000000; .2 .2; 128 1600 1000",
    "wt103_base_lamb": "16 512 8 64 2048; 192 192 256; .01 1000 40000; .1 0; 64 640 400",
    "wt103_large_lamb": "18 1024 16 64 4096; 384 384 128; .01 16000 100000; .2 .2; 128 1600 1000",
    "lm1b_base": "18 1024 8 128 4096; 256 256 256; 2.5e-4 0 400000; .1 0; 32 128 -1",
    "lm1b_base_20l": "20 1024 8 128 6144; 256 256 256; 2.5e-4 0 400000; .1 0; 32 128 -1",
    "lm1b_large": "24 1280 16 80 8192; 32 32 512; 1e-4 30000 1200000; .05 .05; 32 128 -1",
}


N_TOKEN = {"enwik8": 205, "text8": 27, "wt103": 267_735, "lm1b": 793_470}


@pytest.mark.parametrize(
    ("name", "n_token", "count"),
    [
        ("enwik8_base", 205, 41_055_949),
        ("text8_base", 27, 40_964_635),
        ("enwik8_large", 204, 277_231_820),
        ("wt103_base", 267_735, 151_119_838),
        ("wt103_large", 267_735, 285_205_322),
        ("lm1b_base", 793_470, 355_749_729),
        ("lm1b_large", 793_470, 838_078_041),
    ],
)
def test_models_are_as_large_as_those_of_the_2019_code(name, n_token, count):
    config = dataclasses.replace(presets.model(name), n_token=n_token)
    assert config.count_parameters() == count


@pytest.mark.parametrize("name", PUBLISHED_PRESETS)
def test_presets_are_those_of_the_paper_and_its_code(name):
    preset = presets.get(name)
    model, training, evaluation = preset.model, preset.training, preset.evaluation
    held = [
        *(model.n_layer, model.d_model, model.n_head, model.d_head, model.d_inner),
        *(training.tgt_len, training.mem_len, training.train_batch_size),
        *(training.learning_rate, training.warmup_steps, training.train_steps),
        *(model.dropout, model.dropatt),
        *(evaluation.tgt_len, evaluation.mem_len, evaluation.clamp_len),
    ]
    assert held == [float(number) for number in PUBLISHED_PRESETS[name].replace(";", "").split()]
    assert evaluation.same_length
    assert not training.same_length
    assert model.d_embed == model.d_model
    is_small = name in ("wt103_large", "wt103_large_lamb", "lm1b_large")
    assert model.init_std == (0.005 if is_small else 0.02)
    assert model.n_token == N_TOKEN[name.split("_")[0]]
    if "lamb" not in name:
        rates = (training.optimizer, training.min_lr_ratio, training.clip)
        assert rates == ("adam", 0.004, 0.25)


@pytest.mark.parametrize(
    ("name", "figure", "div_val", "last_rate"),
    [("wt103_base_lamb", "23.24", 1, 0.001), ("wt103_large_lamb", "18.17", 4, 0.0001)],
)
def test_presets_with_lamb_are_those_of_their_vendor(name, figure, div_val, last_rate):
    preset = presets.get(name)
    model, training = preset.model, preset.training
    assert preset.published.startswith(f"{figure} perplexity (NVIDIA's figure")
    assert (training.optimizer, training.weight_decay, training.clip) == ("lamb", 0.0, 0.25)
    assert training.learning_rate * training.min_lr_ratio == pytest.approx(last_rate)
    assert model.cutoffs == (19_997, 39_997, 199_997)
    assert model.div_val == div_val
    assert not model.untie_r


@pytest.mark.parametrize(
    ("name", "count", "published", "figure"),
    [
        ("enwik8_18l", 87_966_349, 88e6, "1.03 bpc (of 18 layers and 88M parameters; the other"),
        ("lm1b_base_20l", 466_962_273, 0.46e9, "23.5 perplexity"),
    ],
)
def test_models_without_a_script_have_the_parameters_of_the_paper(name, count, published, figure):
    assert presets.model(name).count_parameters() == count
    assert count == pytest.approx(published, rel=0.016)  # the paper gives two digits
    assert presets.get(name).published.startswith(figure)


@pytest.mark.parametrize(
    ("name", "split", "published"),
    [
        ("wt103_base", "valid", ("23.1 perplexity in version 1 of the paper", "valid")),
        ("wt103_base", "test", ("24.0 perplexity", "test")),
        ("wt103_large", "train", ("18.3 perplexity", "test")),
        ("text8_base", "valid", ("", "test")),
    ],
)
def test_a_split_is_compared_with_its_own_figure_where_there_is_one(name, split, published):
    assert presets.get(name).find_published(split) == published


def test_penn_treebank_has_the_settings_of_the_later_code():
    preset = presets.get("ptb")
    model, training, evaluation = preset.model, preset.training, preset.evaluation
    shape = (model.n_token, model.n_layer, model.d_model, model.n_head, model.d_head, model.d_inner)
    assert shape == (10_000, 16, 380, 10, 38, 900)
    rates = (model.word_dropout, model.input_dropout, model.qkv_dropout, model.dropout)
    assert (*rates, model.dropatt, model.output_dropout) == (0.2, 0.6, 0.2, 0.2, 0.2, 0.5)
    assert model.locked_dropout
    assert model.layer_norm_epsilon == 1e-5  # of PyTorch
    lengths = (training.tgt_len, training.extra_len, training.mem_len, training.train_batch_size)
    assert (*lengths, training.tgt_len_std, training.half_len_rate) == (70, 70, 0, 10, 5.0, 0.05)
    assert (training.ar, training.tar, training.l2, training.clip) == (0.2, 0.1, 1.2e-6, 0.25)
    rates = (training.learning_rate, training.warmup_steps, training.embed_lr_ratio)
    assert (training.optimizer, *rates) == ("adam", 3e-4, 3000, 2.0)
    assert training.learning_rate * training.min_lr_ratio == pytest.approx(1e-4)
    # 125 epochs of 92,951 tokens a lane, in segments of 67.75 on average
    assert training.train_steps == pytest.approx(125 * 92_951 / 67.75, rel=1e-3)
    assert (evaluation.tgt_len, evaluation.mem_len, evaluation.temperature) == (140, 0, 1.08)


def test_wikitext_2_has_the_settings_of_the_other_code():
    preset = presets.get("wt2")
    model, training, evaluation = preset.model, preset.training, preset.evaluation
    shape = (model.n_token, model.n_layer, model.d_model, model.n_head, model.d_head, model.d_inner)
    assert shape == (33_278, 16, 400, 10, 40, 900)
    rates = (model.word_dropout, model.input_dropout, model.qkv_dropout, model.dropout)
    assert (*rates, model.dropatt, model.output_dropout) == (0.2, 0.6, 0.2, 0.2, 0.2, 0.6)
    assert model.locked_dropout
    assert (model.init_std, model.layer_norm_epsilon, model.untie_r) == (0.02, 1e-5, False)
    lengths = (training.tgt_len, training.mem_len, training.train_batch_size)
    assert (*lengths, training.l2, training.clip) == (150, 150, 32, 1.2e-6, 0.25)
    rates = (training.learning_rate, training.warmup_steps, training.train_steps)
    assert (training.optimizer, training.schedule, *rates) == (
        "adam",
        "cosine",
        3.5e-4,
        3000,
        125e3,
    )
    assert training.min_lr_ratio == 0
    assert (evaluation.tgt_len, evaluation.mem_len, evaluation.eval_batch_size) == (150, 150, 10)
    # There are 37,712,881: its softmax has two more clusters, with a row and a bias each.
    assert model.count_parameters() == 37_712_881 - 2 * 401


def test_penn_treebank_has_the_parameters_that_its_shape_gives():
    attention = 4 * 380 * 380 + 2 * 380  # q k v o, LayerNorm
    feed_forward = 2 * 380 * 900 + 900 + 380 + 2 * 380
    of_the_other_code = 16 * (attention + feed_forward) + 10_000 * 381  # which has nothing else
    assert of_the_other_code == 24_040_400
    positions = 16 * (380 * 380 + 2 * 380)  # r, u and v
    assert presets.model("ptb").count_parameters() == of_the_other_code + positions


@pytest.mark.parametrize(
    ("name", "n_parameters"),
    [("demo", 1_492_672), ("small", 3_483_392), ("medium", 11_621_632), ("large", 34_257_152)],
)
def test_presets_for_new_corpora_have_one_recipe(name, n_parameters):
    model, training = presets.get(name).model, presets.get(name).training
    assert model.count_parameters() == n_parameters
    assert (model.n_token, model.d_head, model.d_inner) == (256, 64, 4 * model.d_model)
    assert model.n_head * model.d_head == model.d_embed == model.d_model
    assert model.init_std == pytest.approx(0.8 / model.d_model**0.5, rel=0.15)
    assert (training.optimizer, training.schedule, training.min_lr_ratio) == ("muon", "linear", 0)
    assert training.mem_len == training.tgt_len


def test_shakespeare_is_as_large_as_nanogpt_and_reads_as_much():
    preset = presets.get("shakespeare")
    model, training = preset.model, preset.training
    assert (model.n_token, model.n_layer, model.d_model) == (65, 4, 128)
    assert model.count_parameters() == 865_985  # there 0.80M, without W_r, u and v
    ((n_short, short_len),) = training.tgt_len_schedule
    n_steps = training.train_steps
    n_each = n_short * short_len + (n_steps - n_short) * training.tgt_len  # of a lane
    assert training.train_batch_size * n_each == 2000 * 12 * 64
    assert (training.optimizer, training.schedule, training.weight_decay) == ("muon", "linear", 0.1)
    assert preset.evaluation.mem_len == training.mem_len == 64


def test_every_preset_is_checked_here():
    recommended = {"demo", "shakespeare", "small", "medium", "large"}
    assert set(presets.names()) == {*PUBLISHED_PRESETS, "ptb", "wt2", *recommended}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("text8-base", r"^Unknown preset 'text8-base'. Did you mean 'text8_base'\? Known: demo,"),
        (3, r"^Unknown preset 3. Known: demo, "),
        ("zzz", r"^Unknown preset 'zzz'. Known: demo, .*lm1b_large$"),
    ],
)
def test_an_unknown_preset_names_those_that_there_are(name, message):
    with pytest.raises(UserError, match=message):
        presets.get(name)


@pytest.mark.parametrize("name", presets.names())
def test_a_preset_is_found_by_its_model(name):
    model = dataclasses.replace(presets.model(name), dropout=0.5, proj_same_dim=True)
    found = presets.find(model, name.split("_")[0])
    assert found is not None
    assert presets.get(found) is presets.get(name)


def test_the_number_of_tokens_tells_text8_from_enwik8():
    found = [
        presets.find(dataclasses.replace(presets.model("text8_large"), n_token=n_token))
        for n_token in (27, 204, 205)
    ]
    assert found == ["text8_large", "enwik8_large", "enwik8_large"]


def test_another_model_is_of_no_preset():
    other = dataclasses.replace(presets.model("wt103_large"), n_layer=17)
    assert presets.find(other, "wt103") is None


def test_a_model_with_another_encoding_is_of_no_preset():
    config = presets.model("text8_large")
    assert presets.find(config, "text8") == "text8_large"
    other = dataclasses.replace(config, encoding="shaw", n_positions=1536)
    assert presets.find(other, "text8") is None
