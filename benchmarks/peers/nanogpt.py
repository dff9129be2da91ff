"""The architecture of nanoGPT (github.com/karpathy/nanoGPT) in PyTorch: a GPT-2 without memory.

python -m venv nano && nano/bin/pip install torch
nano/bin/python -m benchmarks.peers.nanogpt [--bfloat16] [--compile] WORK...

Blocks of layer norm, causal attention, layer norm and a feed-forward layer with GELU; learned
positions; a table that embedding and softmax share; dropout .1; AdamW. A token sees at most the T
tokens of its segment, where Transformer-XL sees M more. So only training of works without cutoffs
has a counterpart. `--compile` is torch.compile.
"""

import sys
from collections.abc import Callable
from typing import Any

from benchmarks.peers.protocol import Shape, Work, make_parser, print_speeds

RATE = 0.1  # of all dropout


def make_model(shape: Shape, torch: Any) -> Any:
    """Returns a model, a function of ids and targets (B, T) that returns the mean loss."""
    nn, functional = torch.nn, torch.nn.functional
    width, n_head = shape.d_model, shape.n_head

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(width, 3 * width, bias=False)
            self.output = nn.Linear(width, width, bias=False)

        def forward(self, x: Any) -> Any:
            heads = self.qkv(x).unflatten(-1, (3, n_head, -1)).permute(2, 0, 3, 1, 4)
            rate = RATE if self.training else 0.0
            mixed = functional.scaled_dot_product_attention(*heads, dropout_p=rate, is_causal=True)
            return functional.dropout(
                self.output(mixed.transpose(1, 2).flatten(2)), RATE, self.training
            )

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(width, bias=False) for _ in range(2))
            self.attention = Attention()
            inner, outer = (width, shape.d_inner), (shape.d_inner, width)
            layers = (nn.Linear(*inner, bias=False), nn.GELU(), nn.Linear(*outer, bias=False))
            self.feed_forward = nn.Sequential(*layers, nn.Dropout(RATE))

        def forward(self, x: Any) -> Any:
            x = x + self.attention(self.norms[0](x))
            return x + self.feed_forward(self.norms[1](x))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(shape.n_token, width)
            self.positions = nn.Parameter(torch.zeros(shape.tgt_len, width))
            blocks = [Block() for _ in range(shape.n_layer)]
            self.layers = nn.Sequential(nn.Dropout(RATE), *blocks, nn.LayerNorm(width, bias=False))
            nn.init.normal_(self.tokens.weight, std=0.02)

        def forward(self, ids: Any, targets: Any) -> Any:
            hidden = self.layers(self.tokens(ids) + self.positions)
            logits = functional.linear(hidden, self.tokens.weight)
            return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return Model()


def make_call(work: Work, torch: Any, *, bfloat16: bool, compiled: bool) -> Callable[[], object]:
    """Returns a function that makes a training step.

    Raises:
        NotImplementedError: If the work has no counterpart.
    """
    shape = work.shape
    if work.kind != "train" or shape.cutoffs:
        raise NotImplementedError("no counterpart")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = make_model(shape, torch).to(device)
    adam = torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    ids = torch.randint(0, shape.n_token, (shape.batch_size, shape.tgt_len + 1), device=device)
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    compute = torch.compile(model) if compiled else model

    def call() -> float:
        with torch.autocast(device, torch.bfloat16, enabled=bfloat16):
            loss = compute(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
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
    try:
        import torch
    except ImportError as error:
        sys.exit(f"{error}: see --help for what is needed")
    settings = {"bfloat16": options.bfloat16, "compiled": options.compile}
    name = "nanogpt-bfloat16" if options.bfloat16 else "nanogpt"
    print_speeds(
        name, options, lambda work: make_call(work, torch, **settings), compiled=options.compile
    )


if __name__ == "__main__":
    main()
