"""The PyTorch port in Hugging Face transformers, which later versions removed.

python -m venv port && port/bin/pip install torch 'transformers==4.46.3' sacremoses
port/bin/python -m benchmarks.peers.pytorch_port WORK...

It runs in eager mode, in float32, without a cache of keys and values.
"""

import sys
from collections.abc import Callable
from typing import Any

from benchmarks.peers.protocol import Work, make_parser, print_speeds

try:
    import torch
    from transformers.models.deprecated import transfo_xl
except ImportError as error:
    sys.exit(
        f"{error}: it needs torch, transformers 4.46.3 and sacremoses, apart from this package"
    )


def accept_dtype() -> None:
    """Makes `Tensor.type_as` accept an argument `dtype`, which the port passes."""
    plain = torch.Tensor.type_as

    def type_as(self: Any, other: Any = None, dtype: Any = None) -> Any:
        return plain(self, other) if dtype is None else self.to(dtype)

    torch.Tensor.type_as = type_as


def make_call(work: Work) -> Callable[[], object]:
    """Returns a function that computes a segment of a work, with a step of Adam in training."""
    shape, trains = work.shape, work.kind == "train"
    rate = 0.1 if trains else 0.0
    names = ("n_layer", "d_model", "n_head", "d_inner", "mem_len", "div_val")
    config = transfo_xl.TransfoXLConfig(
        **{name: getattr(shape, name) for name in names},
        vocab_size=shape.n_token,
        cutoffs=list(shape.cutoffs),
        d_embed=shape.d_model,
        d_head=shape.d_model // shape.n_head,
        dropout=rate,
        dropatt=rate,
        same_length=not trains,
        clamp_len=-1,
        untie_r=True,
        proj_share_all_but_first=False,
    )
    model = transfo_xl.TransfoXLLMHeadModel(config).train(trains)
    adam = torch.optim.Adam(model.parameters(), 2.5e-4)
    ids = torch.randint(0, shape.n_token, (shape.batch_size, shape.tgt_len))
    size = (shape.mem_len, shape.batch_size, shape.d_model)
    memory = [torch.zeros(size) for _ in range(shape.n_layer)]
    # A single token has no loss: the port shifts the labels itself.
    labels = None if work.kind == "generate" else ids

    def call() -> None:
        nonlocal memory
        with torch.set_grad_enabled(trains):
            output = model(ids, mems=memory, labels=labels)
        if trains:
            adam.zero_grad()
            (output.loss if output.losses is None else output.losses.mean()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            adam.step()
        memory = [states.detach() for states in output.mems]

    return call


def main() -> None:
    """Runs the program on the command line."""
    options = make_parser(__doc__).parse_args()
    accept_dtype()
    print_speeds("pytorch", options, make_call, compiled=False)


if __name__ == "__main__":
    main()
