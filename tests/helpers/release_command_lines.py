"""The command lines of the 2019 release's scripts, as data.

Values that its scripts left empty by a misspelt variable are those that were meant. What is not
passed by a script but must be by hand, the name of a TPU, is not here.
"""

from typing import NamedTuple


class Script(NamedTuple):
    """A script: the shape of its model, and how it cuts the data for training and for the test.

    Attributes:
        dataset: name of the data set.
        shape: layers, `d_model` (and `d_embed`), heads, `d_head`, `d_inner`.
        training: `tgt_len` (and `mem_len`), batch, cores, dropout, warm-up, steps.
        test: `tgt_len`, `mem_len`, `clamp_len`, batch, cores.
        hosts: of TPUs; 0 for GPUs.
    """

    dataset: str
    shape: tuple[int, int, int, int, int]
    training: tuple[int, int, int, float, int, int]
    test: tuple[int, int, int, int, int]
    hosts: int = 0


_BASE = (12, 512, 8, 64, 2048)
_LARGE = (24, 1024, 8, 128, 3072)
_WT103_LARGE = (18, 1024, 16, 64, 4096)
_LM1B_LARGE = (24, 1280, 16, 80, 8192)
SCRIPTS = {
    "enwik8_base_gpu": Script(
        "enwik8", _BASE, (512, 24, 4, 0.1, 0, 400_000), (80, 2100, 820, 10, 1)
    ),
    "text8_base_gpu": Script("text8", _BASE, (512, 24, 4, 0.1, 0, 400_000), (80, 2100, 820, 10, 1)),
    "enwik8_gpu": Script("enwik8", _LARGE, (256, 16, 2, 0.1, 0, 400_000), (128, 3800, 1000, 16, 4)),
    "text8_gpu": Script("text8", _LARGE, (256, 16, 2, 0.1, 0, 400_000), (128, 3800, 1000, 8, 2)),
    "wt103_base_gpu": Script(
        "wt103", (16, 410, 10, 41, 2100), (150, 60, 4, 0.1, 0, 400_000), (64, 640, 400, 10, 1)
    ),
    "wt103_gpu": Script(
        "wt103", _WT103_LARGE, (256, 16, 2, 0.1, 0, 400_000), (128, 1600, 1000, 16, 1)
    ),
    "lm1b_base_gpu": Script(
        "lm1b", (18, 1024, 8, 128, 4096), (256, 256, 4, 0.1, 0, 400_000), (32, 128, -1, 16, 1)
    ),
    "lm1b_gpu": Script("lm1b", _LM1B_LARGE, (256, 16, 2, 0.1, 0, 400_000), (32, 128, -1, 16, 1)),
    "enwik8_tpu": Script(
        "enwik8", _LARGE, (768, 64, 16, 0.15, 4000, 400_000), (128, 3800, 1000, 16, 8), hosts=2
    ),
    "text8_large_tpu": Script(
        "text8", _LARGE, (768, 64, 16, 0.15, 4000, 400_000), (128, 3800, 1000, 16, 8), hosts=2
    ),
    "wt103_large_tpu": Script(
        "wt103",
        _WT103_LARGE,
        (384, 128, 16, 0.2, 16_000, 4_000_000),
        (128, 1600, 1000, 8, 8),
        hosts=4,
    ),
    "lm1b_large_tpu": Script(
        "lm1b", _LM1B_LARGE, (32, 512, 16, 0.05, 30_000, 1_200_000), (32, 128, -1, 8, 8), hosts=32
    ),
}
_ADAPTIVE = {
    "wt103": {"div_val": 4, "untie_r": True, "proj_share_all_but_first": True},
    "lm1b": {
        "div_val": 4,
        "untie_r": True,
        "proj_share_all_but_first": False,
        "proj_same_dim": False,
    },
}
_SHAPE = ("n_layer", "d_model", "n_head", "d_head", "d_inner")


def make_training_flags(script):
    """Returns the flags of the training program to train."""
    tgt_len, batch, cores, dropout, warmup_steps, train_steps = script.training
    given = _make_common_flags(script) | {
        "dropout": dropout,
        "dropatt": dropout if script.hosts else 0.0,
        "learning_rate": 0.0001 if script.hosts == 32 else 0.00025,
        "warmup_steps": warmup_steps,
        "train_steps": train_steps,
        "tgt_len": tgt_len,
        "mem_len": tgt_len,
        "train_batch_size": batch,
        "num_core_per_host": cores,
        "iterations": 1000 if script.hosts else 200,
        "save_steps": 10_000 if script.hosts else 200 if script.shape == _LARGE else 4000,
    }
    if script.dataset not in _ADAPTIVE:
        given |= {"do_train": True, "do_eval": False}
        return given | ({"num_host": script.hosts, "use_tpu": True} if script.hosts else {})
    if not script.hosts:
        return given
    given |= {"init_std": 0.005, "proj_same_dim": script.dataset == "wt103", "do_eval": False}
    return given | {"num_hosts": script.hosts, "use_tpu": True}


def make_test_flags(script):
    """Returns the flags of the training program to evaluate on the test split."""
    tgt_len, mem_len, clamp_len, batch, cores = script.test
    given = _make_common_flags(script) | {
        "tgt_len": tgt_len,
        "mem_len": mem_len,
        "eval_batch_size": batch,
        "num_core_per_host": cores,
        "do_train": False,
        "eval_split": "test",
    }
    if script.dataset in _ADAPTIVE or not script.hosts:
        given |= {"clamp_len": clamp_len, "same_length": True}
    if script.hosts:
        return given | {"num_host": 1, "use_tpu": True, "do_eval_only": True}
    return given | {"dropout": 0.0, "dropatt": 0.0, "do_eval": True}


def make_released_flags(name):
    """Returns the flags of the training program to evaluate released weights, as sota/*.sh do."""
    # The weights are those of the large scripts; their shape is the same on GPUs.
    script = SCRIPTS[f"{name}_gpu"]
    cores = 2 if name in ("enwik8", "text8") else 1
    folder = f"./pretrained_xl/tf_{name}"
    step = 1_191_000 if name == "lm1b" else 0
    return make_test_flags(script) | {
        "data_dir": f"{folder}/data/tfrecords",
        "record_info_dir": f"{folder}/data/tfrecords/",
        "corpus_info_path": f"{folder}/data/corpus-info.json",
        "eval_ckpt_path": f"{folder}/model/model.ckpt-{step}",
        "eval_batch_size": 16,
        "num_core_per_host": cores,
    }


def make_data_flags(script):
    """Returns the flags of the data program for training and validation."""
    tgt_len, batch, cores, *_ = script.training
    given = {
        "data_dir": f"../data/{script.dataset}/",
        "dataset": script.dataset,
        "tgt_len": tgt_len,
        "per_host_train_bsz": batch,
        "per_host_valid_bsz": batch,
        "num_passes": 10 if script.hosts else 1,
        "use_tpu": script.hosts > 0,
    }
    return given | ({"num_core_per_host": cores} if script.hosts else {})


def make_test_data_flags(script):
    """Returns the flags of the data program for the test split."""
    tgt_len, _, _, batch, cores = script.test
    given = {
        "data_dir": f"../data/{script.dataset}/",
        "dataset": script.dataset,
        "tgt_len": tgt_len,
        "per_host_test_bsz": batch,
        "num_passes": 1,
        "use_tpu": script.hosts > 0,
    }
    return given | ({"num_core_per_host": cores} if script.hosts else {})


def _make_common_flags(script):
    folder = f"../data/{script.dataset}"
    return {
        "data_dir": f"{folder}/tfrecords",
        "record_info_dir": f"{folder}/tfrecords/",
        "corpus_info_path": f"{folder}/corpus-info.json",
        "model_dir": f"EXP-{script.dataset}",
        **_ADAPTIVE.get(script.dataset, {}),
        **dict(zip(_SHAPE, script.shape, strict=True)),
        "d_embed": script.shape[1],
    }
