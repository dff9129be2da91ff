"""Suggests flags for names that other programs use."""

import difflib
from collections.abc import Collection

# Flags and their names in other programs. Of several flags, all that a program has are suggested.
_OTHER_NAMES: dict[tuple[str, ...], str] = {
    ("train_batch_size", "eval_batch_size"): "batch_size batch bs bsz",
    ("learning_rate",): "lr rate",
    ("min_lr_ratio",): "min_lr final_lr",
    ("warmup_steps",): "warmup num_warmup_steps warmup_iters",
    ("train_steps",): "steps max_steps num_steps total_steps max_iters num_iterations "
    "epochs num_epochs max_epochs num_train_epochs",
    ("tgt_len",): "seq_len sequence_length max_seq_len block_size",
    ("tgt_len", "mem_len"): "context context_len context_length bptt",
    ("mem_len",): "memory mem memory_len memory_length",
    ("model_dir", "run"): "output_dir out_dir output out save_dir work_dir log_dir logdir run_dir "
    "checkpoint_dir ckpt_dir model model_dir run name",
    ("data_dir",): "data dataset data_path train_data input_dir",
    ("preset",): "config recipe arch",
    ("n_layer",): "layers num_layers n_layers depth",
    ("n_head",): "heads num_heads n_heads",
    ("d_model",): "hidden_size hidden n_embd width dim",
    ("d_embed",): "embed_dim embedding_dim emb_size",
    ("d_inner",): "d_ff ffn_dim intermediate_size ff_size",
    ("dropout",): "dropout_rate drop",
    ("dropatt",): "attention_dropout attn_dropout",
    ("optimizer",): "optim opt",
    ("weight_decay",): "wd decay",
    ("schedule",): "lr_schedule lr_scheduler scheduler",
    ("average_from",): "swa swa_start average",
    ("clip",): "grad_clip clip_norm max_grad_norm",
    ("accumulate_steps",): "grad_accum gradient_accumulation_steps",
    ("precision",): "fp16 bf16 amp dtype mixed_precision",
    ("remat",): "gradient_checkpointing checkpointing",
    ("num_gpus",): "gpus n_gpus devices num_devices",
    ("iterations",): "log_every log_interval log_steps logging_steps",
    ("save_steps",): "save_every save_interval checkpoint_every",
    ("eval_every",): "eval_interval eval_steps valid_every",
    ("patience",): "early_stopping early_stopping_patience",
    ("keep_checkpoints",): "keep max_to_keep save_total_limit",
    ("warm_start_path",): "resume init_from pretrained finetune",
    ("checkpoint", "eval_ckpt_path"): "checkpoint ckpt ckpt_path",
    ("do_eval_only", "do_eval"): "eval_only test_only",
    ("jit",): "xla compile",
    ("length",): "max_tokens max_new_tokens num_tokens n_tokens",
    ("prompt", "files"): "text start input",
    ("samples",): "num_samples n_samples n",
    ("num_workers",): "workers num_proc jobs threads",
    ("max_symbols",): "vocab_size num_merges",
    ("vocab_file",): "vocab vocab_path",
    ("level",): "tokenizer token_level",
    ("overwrite",): "force",
}
_SUGGESTIONS = {name: flags for flags, names in _OTHER_NAMES.items() for name in names.split()}
_EPOCH_NOTE = " A run prints how many steps an epoch has."
_NOTES = {
    **dict.fromkeys(("epochs", "num_epochs", "max_epochs", "num_train_epochs"), _EPOCH_NOTE),
    "resume": " A run that is started again continues where it stopped.",
}


def suggest_flags(unknown: str, known: Collection[str]) -> str:
    """Returns the end of an error message, which suggests flags instead of an unknown one.

    >>> suggest_flags("batch_size", ["train_batch_size", "eval_batch_size", "tgt_len"])
    ' Did you mean --train_batch_size or --eval_batch_size?'
    >>> suggest_flags("train-steps", ["train_steps", "max_steps"])
    ' Did you mean --train_steps?'
    >>> suggest_flags("xyzzy", ["train_steps"])
    ''

    Args:
        unknown: The name of the unknown flag, without dashes.
        known: The flags of the program.
    """
    name = unknown.lower().replace("-", "_")
    found = [flag for flag in (name, *_SUGGESTIONS.get(name, ())) if flag in known]
    found = found or difflib.get_close_matches(name, known, n=1)
    if not found:
        return ""
    return f" Did you mean {' or '.join(f'--{flag}' for flag in found)}?{_NOTES.get(name, '')}"
