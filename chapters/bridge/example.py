"""What the bridge's page shows: each function prints one block of it, and NUMBERS gives its single numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from nanobench.report.values import seconds, size
from nanobook.examples import load as load_file
from nanobook.examples import print_blocks
from nanobook.running import output
from nanobook.text.marker_values import load
from nanoinfer.engine import fake_graph

here = Path(__file__).parent
small = load_file(here / "small.py")
RESULTS = here.parents[1] / "bench" / "results"
WIDTH = torch.bfloat16.itemsize  # bytes of a number


@dataclass(frozen=True)
class Shape:
    """The numbers of a published config.json that decide memory.

    inner: the MLP's width. matrices: of an MLP. tables: of vocabulary by width, two where the head is untied.
    vectors: numbers in a layer's norms and biases. positions: numbers in GPT-2's position embeddings.
    """

    layers: int
    heads: int
    key_heads: int
    head_size: int
    width: int
    inner: int
    vocabulary: int
    vectors: int
    matrices: int = 3
    tables: int = 2
    positions: int = 0

    @property
    def token(self) -> int:
        """Bytes of one token's keys and values in all layers."""
        return 2 * self.layers * self.key_heads * self.head_size * WIDTH

    @property
    def weights(self) -> int:
        """Bytes of all parameters."""
        attention = 2 * self.width * self.head_size * (self.heads + self.key_heads)
        layer = attention + self.matrices * self.width * self.inner + self.vectors
        last = self.width * (2 if self.positions else 1)  # the last norm, with a bias in GPT-2
        return (self.layers * layer + self.tables * self.vocabulary * self.width + self.positions + last) * WIDTH

    @property
    def read(self) -> int:
        """Bytes of weights that a step reads: of a table that is not the head as well it reads single rows."""
        return self.weights - ((self.tables - 1) * self.vocabulary * self.width + self.positions) * WIDTH

    @property
    def head(self) -> int:
        """Bytes of the head."""
        return self.vocabulary * self.width * WIDTH


SHAPES = {
    "gpt2": Shape(12, 12, 12, 64, 768, 3072, 50257, 13 * 768, 2, 1, 1024 * 768),
    "gpt2-xl": Shape(48, 25, 25, 64, 1600, 6400, 50257, 13 * 1600, 2, 1, 1024 * 1600),
    "Llama-2-7B": Shape(32, 32, 32, 128, 4096, 11008, 32000, 2 * 4096),
    "Llama-3.1-8B": Shape(32, 32, 8, 128, 4096, 14336, 128256, 2 * 4096),
    "Qwen2.5-7B": Shape(28, 28, 4, 128, 3584, 18944, 152064, 2 * 3584 + 36 * 128),
    "Llama-3.1-70B": Shape(80, 64, 8, 128, 8192, 28672, 128256, 2 * 8192),
}
LLAMA = SHAPES["Llama-3.1-8B"]


def program() -> None:
    """What small.py prints when it is run."""
    print(output(here / "small.py"), end="")


def token() -> None:
    """The formula for each model: bytes of a token, and how many tokens take as much memory as the weights."""
    print(f"{'':15}2 ·  L ·  K ·   D · b{'= bytes a token':>18}{'weights':>11}{'in tokens of cache':>22}")
    for name, s in SHAPES.items():
        factors = f"2 · {s.layers:2} · {s.key_heads:2} · {s.head_size:3} · {WIDTH}"
        print(f"{name:15}{factors}{s.token:>18,}{size(s.weights):>11}{s.weights / s.token:>22,.0f}")


def relative() -> None:
    """The score of one query and one key at several positions, turned by RoPE."""
    torch.manual_seed(1)
    q, k = torch.randn(2, 1, 1, 16)
    turns = small.frequencies(small.SHAPE, 16)
    print("query at   key at   apart   score")
    for m, n in ((5, 2), (6, 3), (1005, 1002), (6, 2), (2, 5)):
        score = small.turn(q, m * turns[None]) @ small.turn(k, n * turns[None]).mT
        print(f"{m:8}{n:9}{m - n:8}{float(score):8.3f}")


def recorded() -> None:
    """A turned key, recorded at position 5 and replayed at 6, with the position in a tensor and as a number."""
    torch.manual_seed(0)
    k, turns = torch.randn(1, 1, 16), small.frequencies(small.SHAPE, 16)
    tensor, number = torch.tensor([5]), {"position": 5}
    right = small.turn(k, 6 * turns[None])
    steps = {
        "in a tensor": lambda: small.turn(k, tensor[:, None] * turns),
        "a Python number": lambda: small.turn(k, number["position"] * turns[None]),
    }
    print("the position is       replayed at 6, the key is off by at most")
    for name, step in steps.items():
        tensor.fill_(5)
        number["position"] = 5
        graph, key = fake_graph.record(step)
        tensor.fill_(6)
        number["position"] = 6
        graph.replay()
        print(f"{name:22}{float((key - right).abs().max()):.2f}")


def _read(shape: Shape) -> str:
    """The time in which the H200 copies as many bytes as a step reads of the weights."""
    return seconds(shape.read / load("rungs", RESULTS).copy_bytes_per_s)


NUMBERS: dict[str, Callable[[], str]] = {
    "weights": lambda: size(LLAMA.weights),
    "head": lambda: size(LLAMA.head),
    "read": lambda: size(LLAMA.read),
    "weights read": lambda: _read(LLAMA),
    "gpt2 weights read": lambda: _read(SHAPES["gpt2"]),
    "rows as large": lambda: f"{LLAMA.weights / (1024 * LLAMA.token):.0f}",
    "gpt2 rows as large": lambda: f"{SHAPES['gpt2'].weights / (1024 * SHAPES['gpt2'].token):.1f}",
    "scales": lambda: f"{2 * LLAMA.layers * LLAMA.key_heads * WIDTH:,}",
    "8 bits": lambda: f"{LLAMA.token // 2:,}",
    **{f"{name} token": lambda s=s: f"{s.token:,}" for name, s in SHAPES.items()},  # type: ignore[misc]
}

if __name__ == "__main__":
    print_blocks(Path(__file__))
