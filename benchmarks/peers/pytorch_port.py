"""The port to PyTorch in Hugging Face transformers, which later versions dropped.

python -m venv port && port/bin/pip install torch 'transformers==4.46.3' sacremoses
port/bin/python -m benchmarks.peers.pytorch_port WORK...

It runs in eager mode, in float32. Neither the port nor its `generate` caches keys and values.
"""

import sys
from collections.abc import Callable
from typing import Any

from benchmarks.peers.protocol import Work, make_parser, print_speeds


def load_port() -> tuple[Any, Any]:
    """Returns PyTorch and the module of the port."""
    import torch
    from transformers.models.deprecated import transfo_xl

    plain = torch.Tensor.type_as

    def type_as(self: Any, other: Any = None, dtype: Any = None) -> Any:
        """Takes the argument `dtype`, too, which the port passes and PyTorch does not know."""
        return plain(self, other) if dtype is None else self.to(dtype)

    torch.Tensor.type_as = type_as
    return torch, transfo_xl


def make_call(work: Work, torch: Any, transfo_xl: Any) -> Callable[[], object]:
    """Returns a function that computes a segment of a work, and in training a step of Adam."""
    shape, trains = work.shape, work.kind == "train"
    rate = 0.1 if trains else 0.0
    config = transfo_xl.TransfoXLConfig(
        **{"vocab_size": shape.n_token, "cutoffs": list(shape.cutoffs), "div_val": shape.div_val},
        **{"n_layer": shape.n_layer, "d_model": shape.d_model, "d_embed": shape.d_model},
        **{"n_head": shape.n_head, "d_head": shape.d_model // shape.n_head},
        **{"d_inner": shape.d_inner, "mem_len": shape.mem_len, "clamp_len": -1, "untie_r": True},
        **{"dropout": rate, "dropatt": rate, "same_length": not trains},
        **{"proj_share_all_but_first": False},
    )
    model = transfo_xl.TransfoXLLMHeadModel(config).train(trains)
    adam = torch.optim.Adam(model.parameters(), 2.5e-4)
    ids = torch.randint(0, shape.n_token, (shape.batch_size, shape.tgt_len))
    size = (shape.mem_len, shape.batch_size, shape.d_model)
    memory = [torch.zeros(size) for _ in range(shape.n_layer)]
    # Of a single token there is no loss: the port shifts the labels itself.
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
    try:
        torch, transfo_xl = load_port()
    except ImportError as error:
        sys.exit(f"{error}: see --help for what is needed")
    print_speeds(
        "pytorch", options, lambda work: make_call(work, torch, transfo_xl), compiled=False
    )


if __name__ == "__main__":
    main()
