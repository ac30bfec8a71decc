"""How a model is cut for the kernel that makes a token in one launch: numbers, and weights in its order. Chapter 6."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gpt2 import GPT2

SHARED = 212_000  # bytes of a multiprocessor's shared memory that tiles may take; 227 KB less what else is there
IN_REGISTERS = 20  # pieces of a matrix's tiles, in 16 bits, that a program can hold at once
HEAD_PROGRAMS = 15  # that serve one head at most: `join` has room for so many parts


def _up(a: int, b: int) -> int:
    return -(-a // b)


def _power(a: int) -> int:
    return 1 << (a - 1).bit_length()


@dataclass(frozen=True)
class Shape:
    """What the kernel is compiled for. A program is (head, j), j < P; a tile is eight rows of a matrix."""

    L: int  # layers
    H: int  # heads
    D: int  # numbers of a head
    C: int  # numbers of the stream
    V: int  # token ids
    P: int  # programs of a head
    RQ: int  # outputs that a program has of the matrix of queries, keys and values
    RF: int  # inner numbers that it has
    RJ: int  # outputs that it has of the projection
    N: int  # tokens of the context that it can read
    PAGE: int  # tokens of a page
    EPS: float
    STAGES: int = 1  # tiles of the head in flight
    POLLS: int = 1 << 22  # of one wait at most, some seconds; 0 waits for nothing
    DELAYS: int = 0  # nanoseconds before each wait at most, by chance: for tests
    SPREAD: int = 8  # how far apart lie the words that all programs add to
    AHEAD: bool = True  # whether tiles come ahead of their use; without, a program waits for them where it asks

    # What follows from these.
    G = property(lambda S: S.P * S.H)  # programs
    NC = property(lambda S: _up(S.C, 256))  # pieces of 256 columns that a row has
    NC_POWER = property(lambda S: _power(S.NC))
    TQ = property(lambda S: _up(S.RQ, 8))  # tiles that a program has of queries, keys and values
    TF = property(lambda S: _up(S.RF, 8))  # and of the inner numbers: of the matrix up, and of down
    TILES = property(lambda S: S.TQ + 2 * S.TF)  # of a layer
    TH = property(lambda S: _up(S.V, 8 * S.G))  # of the head
    RJ_POWER = property(lambda S: max(64, _power(S.RJ)))
    JOIN = property(lambda S: max(256, _power(max(S.P * S.D + 32, 16 * S.D))))  # numbers of all parts of a head
    SCORE = property(lambda S: float(S.D**-0.5))
    sum_words = property(lambda S: 2 * 2 * S.L * S.C * S.SPREAD)  # counted: 2 sets, 2 streams a layer
    stamped_words = property(lambda S: 3 * S.C + S.G * (S.D + 2) + S.G)  # queries...; attention's parts; best ids

    @classmethod
    def of(cls, config: ModelConfig, programs: int, max_len: int, page: int, itemsize: int, **settings: Any) -> Shape:
        """The cut for at most so many programs. ValueError, with the reason, for a model that it does not know.

        settings: of POLLS, DELAYS, SPREAD and AHEAD those that differ. Results depend on none of them but POLLS = 0.
        """
        H, D, C = config.n_head, config.head_size, config.n_embd
        P = min(programs // H, HEAD_PROGRAMS)
        if not P:
            raise ValueError(f"{H} heads need as many programs, and {programs} can run at once")
        if D not in (16, 32, 64) or C % 8:
            raise ValueError(
                f"head size {D} and width {C}: the kernel knows heads of 16, 32 and 64 and widths of a multiple of 8"
            )
        if config.n_layer < 2:
            raise ValueError("the kernel asks for the head's first tiles a layer ahead: it needs two layers at least")
        if config.padded_vocab >= 1 << 17 or P * H > 254:
            raise ValueError(f"{config.vocab_size} ids or {P * H} programs are more than its words count")
        rows = (_up(3 * D, P), _up(config.inner, P * H), _up(C, P))
        N = max(64, _power(_up(max_len, P)))
        self = cls(config.n_layer, H, D, C, config.vocab_size, P, *rows, N, page, config.layer_norm_epsilon, **settings)
        stages = min(8, SHARED // (self.NC * 2048 * itemsize) - self.TILES)
        if max(self.TQ, self.TF) * self.NC * itemsize > IN_REGISTERS * 2 or stages < 2:
            raise ValueError(f"a layer of width {C} over {self.G} programs does not fit into their memory")
        return replace(self, STAGES=stages)


@dataclass(frozen=True)
class Packed:
    """A model's weights in the order in which programs read them."""

    stream: Tensor  # (G, L, TILES, NC, 2048): of a tile's pieces, (8 rows, 256 columns); of down, (256 columns, 8 rows)
    projections: Tensor  # (L, G, RJ_POWER, D): (outputs, inputs) of each program
    row_sums: Tensor  # (L, G, 2 * (TQ + TF) * 8) float32: gain . row, and bias + shift . row, of queries..., then of up
    gains: Tensor  # (2 * L + 2, C): of both LayerNorms a layer, of the last one, and its shift
    biases: Tensor  # (L, 2, C) float32: of the projection, and of down


@torch.no_grad()
def pack(model: GPT2, S: Shape) -> Packed:
    """The weights as `S` cuts them: copies, which do not follow later changes of the model."""
    new: Any = partial(torch.empty, dtype=model.dtype, device=model.device)
    stream, gains = new(S.G, S.L, S.TILES, S.NC, 2048), new(2 * S.L + 2, S.C)
    projections, biases = new(S.L, S.G, S.RJ_POWER, S.D), new(S.L, 2, S.C, dtype=torch.float32)
    row_sums = new(S.L, S.G, 2 * (S.TQ + S.TF) * 8, dtype=torch.float32)
    qkv_rows = _qkv_rows(S).to(model.device)
    up_rows = _own_rows(S.G, S.RF, S.TF * 8, model.config.inner).to(model.device)
    outputs = _own_rows(S.P, S.RJ, S.RJ_POWER, S.C).to(model.device)  # (P, RJ_POWER)
    for index, layer in enumerate(model.layers):
        qkv, up = _rows(layer.c_attn[0].T, qkv_rows), _rows(layer.c_fc[0].T, up_rows)  # (G, rows, C)
        down = _tiles(_rows(layer.mlp_proj[0], up_rows), S).view(S.G, S.TF, S.NC, 8, 256).transpose(3, 4).flatten(3)
        stream[:, index] = torch.cat([_tiles(qkv, S), _tiles(up, S), down], 1)
        by_head = layer.attn_proj[0].T.view(S.C, S.H, S.D).transpose(0, 1)  # (H, C, D)
        projections[index] = torch.cat([_rows(head, outputs) for head in by_head])
        parts = []
        for rows, at, bias, norm in (
            (qkv, qkv_rows, layer.c_attn[1], layer.ln_1), (up, up_rows, layer.c_fc[1], layer.ln_2),
        ):  # fmt: skip
            gain, shift = (vector.double() for vector in norm)
            parts += [rows.double() @ gain, rows.double() @ shift + _rows(bias[:, None], at)[..., 0].double()]
        row_sums[index] = torch.cat(parts, 1)
        gains[2 * index], gains[2 * index + 1] = layer.ln_1[0], layer.ln_2[0]
        biases[index, 0], biases[index, 1] = layer.attn_proj[1], layer.mlp_proj[1]
    gains[2 * S.L], gains[2 * S.L + 1] = model.ln_f.weight, model.ln_f.bias
    return Packed(stream, projections, row_sums, gains, biases)


def _qkv_rows(S: Shape) -> Tensor:
    """(G, TQ * 8) which of the 3 * C outputs each program computes, -1 for none: a head's share of all three."""
    own = _own_rows(S.P, S.RQ, S.TQ * 8, 3 * S.D)  # (P, rows), of one head
    rows = own // S.D * S.C + torch.arange(S.H)[:, None, None] * S.D + own % S.D
    return torch.where(own < 0, -1, rows).flatten(0, 1)


def _own_rows(programs: int, each: int, room: int, rows: int) -> Tensor:
    """(programs, room) `each` rows in turn for each program, -1 where it has none."""
    r = torch.arange(room)
    own = torch.arange(programs)[:, None] * each + r
    return torch.where((r < each) & (own < rows), own, -1)


def _rows(matrix: Tensor, rows: Tensor) -> Tensor:
    """Rows of a matrix, zeros for -1."""
    return torch.where((rows >= 0)[..., None], matrix[rows.clamp(min=0)], 0)


def _tiles(rows: Tensor, S: Shape) -> Tensor:
    """(G, tiles * 8, C) -> (G, tiles, NC, 2048)."""
    padded = F.pad(rows, (0, S.NC * 256 - S.C)).view(S.G, -1, 8, S.NC, 256)
    return padded.transpose(2, 3).reshape(S.G, -1, S.NC, 2048)
