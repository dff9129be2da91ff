"""The architecture of nanoGPT (github.com/karpathy/nanoGPT) in PyTorch: a GPT-2 without memory.

python -m venv nano && nano/bin/pip install torch
nano/bin/python -m benchmarks.peers.nanogpt [--bfloat16] [--compile] WORK...

A token sees at most the T tokens of its segment, where Transformer-XL sees M more. Only training on
works without cutoffs can be compared. Dropout is .1; `--compile` uses torch.compile.
"""

import sys
from collections.abc import Callable
from typing import Any

from benchmarks.peers.protocol import Shape, Work, make_parser, print_speeds

try:
    import torch
    from torch import nn
    from torch.nn import functional
except ImportError as error:
    sys.exit(f"{error}: it needs torch, in an environment of its own")

RATE = 0.1


class Block(nn.Module):
    """Causal attention and a feed-forward layer with GELU, each after a normalization."""

    def __init__(self, shape: Shape):
        super().__init__()
        width, inner, self.n_head = shape.d_model, shape.d_inner, shape.n_head
        self.norms = nn.ModuleList(nn.LayerNorm(width, bias=False) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Sequential(nn.Linear(width, width, bias=False), nn.Dropout(RATE))
        layers = (nn.Linear(width, inner, bias=False), nn.GELU())
        self.feed_forward = nn.Sequential(
            *layers, nn.Linear(inner, width, bias=False), nn.Dropout(RATE)
        )

    def forward(self, x: Any) -> Any:
        """Maps hidden states (B, T, D) to hidden states (B, T, D)."""
        heads = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.n_head, -1))  # (B, T, 3, N, H)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        read = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=RATE, is_causal=True
        )
        x = x + self.output(read.transpose(1, 2).flatten(2))
        return x + self.feed_forward(self.norms[1](x))


class Model(nn.Module):
    """The mean loss of ids and targets (B, T); embedding and softmax share a table."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.table = nn.Parameter(0.02 * torch.randn(shape.n_token, shape.d_model))
        self.positions = nn.Parameter(0.02 * torch.randn(shape.tgt_len, shape.d_model))
        blocks = [Block(shape) for _ in range(shape.n_layer)]
        last = nn.LayerNorm(shape.d_model, bias=False)
        self.layers = nn.Sequential(nn.Dropout(RATE), *blocks, last)

    def forward(self, ids: Any, targets: Any) -> Any:
        """Returns the loss in nats."""
        hidden = self.layers(functional.embedding(ids, self.table) + self.positions)
        logits = functional.linear(hidden, self.table)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make_call(work: Work, *, bfloat16: bool, compiled: bool) -> Callable[[], object]:
    """Returns a function that performs a training step.

    Raises:
        NotImplementedError: If the work has no counterpart.
    """
    shape = work.shape
    if work.kind != "train" or shape.cutoffs:
        raise NotImplementedError("no counterpart")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Model(shape).to(device)
    adam = torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    ids = torch.randint(0, shape.n_token, (shape.batch_size, shape.tgt_len + 1), device=device)
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    compute = torch.compile(model) if compiled else model

    def call() -> float:
        with torch.autocast(device, torch.bfloat16, enabled=bfloat16):
            loss = compute(inputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        adam.zero_grad()
        return loss.item()  # waits for the device

    return call


def main() -> None:
    """Runs the program on the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--bfloat16", action="store_true", help="Products in bfloat16.")
    parser.add_argument("--compile", action="store_true", help="Compile forward and backward pass.")
    options = parser.parse_args()
    name = "nanogpt-bfloat16" if options.bfloat16 else "nanogpt"
    compiled = options.compile

    def make(work: Work) -> Callable[[], object]:
        return make_call(work, bfloat16=options.bfloat16, compiled=compiled)

    print_speeds(name, options, make, compiled=compiled)


if __name__ == "__main__":
    main()
