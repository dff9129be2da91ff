"""Settings for a new corpus, chosen by the measurements in docs/choose-a-preset.md.

All use Muon, linear decay to zero, and an `init_std` of about .8 / sqrt(d_model), which is larger
than in 2019. `n_token` is that of bytes; a run has the vocabulary of its records.
"""

import dataclasses

from txl_tf.config import EvalConfig, ModelConfig, TrainConfig
from txl_tf.presets.preset import Preset


def _make_model(n_layer: int, n_head: int, init_std: float, dropout: float) -> ModelConfig:
    """Returns the config of a byte model whose heads have 64 dimensions."""
    width = 64 * n_head
    return ModelConfig(
        n_token=256,
        n_layer=n_layer,
        d_model=width,
        d_embed=width,
        n_head=n_head,
        d_head=64,
        d_inner=4 * width,
        init_std=init_std,
        dropout=dropout,
        dropatt=0.0,
    )


def _make_training(train_steps: int, warmup_steps: int, tgt_len: int) -> TrainConfig:
    return TrainConfig(
        optimizer="muon",
        schedule="linear",
        min_lr_ratio=0.0,
        learning_rate=4e-3,
        warmup_steps=warmup_steps,
        train_steps=train_steps,
        train_batch_size=16,
        tgt_len=tgt_len,
        mem_len=tgt_len,
    )


def _make_evaluation(tgt_len: int) -> EvalConfig:
    return EvalConfig(eval_batch_size=16, tgt_len=tgt_len, mem_len=2 * tgt_len, same_length=True)


# For a small corpus, in minutes.
_DEMO = Preset(_make_model(3, 3, 0.05, 0.0), _make_training(1250, 100, 64), _make_evaluation(64))

# On two cores, these take an hour, a day and a week.
_SMALL = Preset(_make_model(4, 4, 0.05, 0.1), _make_training(6000, 400, 128), _make_evaluation(128))
_MEDIUM = Preset(
    _make_model(6, 6, 0.04, 0.1), _make_training(25_000, 1000, 256), _make_evaluation(256)
)
_LARGE = Preset(
    _make_model(10, 8, 0.035, 0.1), _make_training(60_000, 2000, 256), _make_evaluation(256)
)

# Tiny Shakespeare: as many parameters and characters as nanoGPT's training on a laptop. Few lanes,
# and short segments in the first half of the steps, make many steps out of so few characters.
_SHAKESPEARE = Preset(
    dataclasses.replace(
        _make_model(4, 2, 0.05, 0.0), n_token=65, n_head=4, d_head=32, untie_r=True
    ),
    dataclasses.replace(
        _make_training(4000, 200, 64),
        learning_rate=3e-3,
        weight_decay=0.1,
        train_batch_size=8,
        tgt_len_schedule=((2000, 32),),
    ),
    dataclasses.replace(_make_evaluation(64), mem_len=64),
)

RECOMMENDED: dict[str, Preset] = {
    "demo": _DEMO,
    "shakespeare": _SHAKESPEARE,
    "small": _SMALL,
    "medium": _MEDIUM,
    "large": _LARGE,
}
