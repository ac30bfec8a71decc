"""How a model is cut for the kernel that makes a token in one launch: numbers, and weights in its order. Chapter 6."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gpt2 import GPT2

SHARED = 212_000  # bytes of a multiprocessor's shared memory that the ring may take; 227 KB less what else is there
IN_REGISTERS = 20  # pieces of a matrix's tiles that a program can hold at once
HEAD_PROGRAMS = 15  # that serve one head at most: `_join` has room for so many parts


def _up(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True)
class Shape:
    """What the kernel is compiled for. A program is (head, j), j < P; a tile is eight rows of a matrix.

    RQ, RF, RJ: outputs of a program in the matrix of queries, keys and values; inner numbers; outputs of the
    projection. TQ, TF: tiles of these. TILES: of a layer. TH: of the head. N: tokens of the context that a program can
    read. STAGES: tiles of the head in flight. SPREAD: how far apart lie the
    words that all programs add to. AHEAD: whether tiles come ahead of their use. JOIN: room for the parts of a head.
    """

    L: int
    H: int
    D: int
    C: int
    V: int
    P: int
    RQ: int
    RF: int
    RJ: int
    N: int
    PAGE: int
    STAGES: int
    EPS: float
    POLLS: int
    DELAYS: int = 0
    SPREAD: int = 8
    AHEAD: bool = True

    @classmethod
    def of(
        cls, config: ModelConfig, programs: int, max_len: int, page: int, itemsize: int, polls: int, delays: int = 0,
        spread: int = 8, ahead: bool = True,
    ) -> Shape:  # fmt: skip
        """The cut for at most so many programs. ValueError, with the reason, for a model that it does not know."""
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
        N = max(64, 1 << (_up(max_len, P) - 1).bit_length())
        tile = _up(C, 256) * 2048 * itemsize
        self = cls(
            config.n_layer, H, D, C, config.vocab_size, P, _up(3 * D, P), _up(config.inner, P * H), _up(C, P), N, page,
            1, config.layer_norm_epsilon, polls, delays, spread, ahead,
        )  # fmt: skip
        stages = min(8, SHARED // tile - self.TILES)
        if max(self.TQ, self.TF) * self.NC * itemsize > IN_REGISTERS * 2 or stages < 2:
            raise ValueError(f"a layer of width {C} over {self.G} programs does not fit into their memory")
        return replace(self, STAGES=stages)

    @property
    def G(self) -> int:
        """Programs."""
        return self.P * self.H

    @property
    def NC(self) -> int:
        """Pieces of 256 columns that a row has."""
        return -(-self.C // 256)

    @property
    def NC_POWER(self) -> int:
        return 1 << (self.NC - 1).bit_length()

    @property
    def TQ(self) -> int:
        return -(-self.RQ // 8)

    @property
    def TF(self) -> int:
        return -(-self.RF // 8)

    @property
    def TF_POWER(self) -> int:
        return 1 << (self.TF - 1).bit_length()

    @property
    def TILES(self) -> int:
        return self.TQ + 2 * self.TF

    @property
    def TH(self) -> int:
        return -(-self.V // (8 * self.G))

    @property
    def RJ_POWER(self) -> int:
        return max(64, 1 << (self.RJ - 1).bit_length())

    @property
    def JOIN(self) -> int:
        return max(256, 1 << (max(self.P * self.D + 32, 16 * self.D) - 1).bit_length())

    @property
    def SCORE(self) -> float:
        return float(self.D**-0.5)

    @property
    def sum_words(self) -> int:
        """Counted words: two sets, of which launches take turns; in each, two streams a layer."""
        return 2 * 2 * self.L * self.C * self.SPREAD

    @property
    def stamped_words(self) -> int:
        """Queries, keys and values; the parts of attention; each program's best id."""
        return 3 * self.C + self.G * (self.D + 2) + self.G


@dataclass(frozen=True)
class Packed:
    """A model's weights in the order in which programs read them."""

    stream: (
        Tensor  # (G, L, TILES, NC, 2048): a tile is (8 rows, 256 columns) a piece, or (256 columns, 8 rows) for down
    )
    projections: Tensor  # (L, G, RJ_POWER, D): (outputs, inputs) of each program
    row_sums: Tensor  # (L, G, 2 * (TQ + TF) * 8) float32: gain . row, and bias + shift . row, of queries..., then of up
    gains: Tensor  # (2 * L + 2, C): of both LayerNorms a layer, of the last one, and its shift
    biases: Tensor  # (L, 2, C) float32: of the projection, and of down


@torch.no_grad()
def pack(model: GPT2, shape: Shape) -> Packed:
    """The weights as `shape` cuts them: copies, which do not follow later changes of the model."""
    S, L = shape, shape.L
    device, dtype = model.device, model.dtype
    stream = torch.empty(S.G, L, S.TILES, S.NC, 2048, dtype=dtype, device=device)
    projections = torch.zeros(L, S.G, S.RJ_POWER, S.D, dtype=dtype, device=device)
    row_sums = torch.empty(L, S.G, 2 * (S.TQ + S.TF) * 8, dtype=torch.float32, device=device)
    gains = torch.empty(2 * L + 2, S.C, dtype=dtype, device=device)
    biases = torch.empty(L, 2, S.C, dtype=torch.float32, device=device)
    qkv_rows = _qkv_rows(shape).to(device)
    up_rows = _own_rows(S.G, S.RF, S.TF * 8, model.config.inner).to(device)
    outputs = _own_rows(S.P, S.RJ, S.RJ_POWER, S.C).to(device)  # (P, RJ_POWER)
    for index, layer in enumerate(model.layers):
        first = S.TQ
        qkv, up = _rows(layer.c_attn[0].T, qkv_rows), _rows(layer.c_fc[0].T, up_rows)  # (G, rows, C)
        stream[:, index, :first] = _tiles(qkv, S)
        stream[:, index, first : first + S.TF] = _tiles(up, S)
        stream[:, index, first + S.TF :] = _tiles(_rows(layer.mlp_proj[0], up_rows), S).view(
            S.G, S.TF, S.NC, 8, 256
        ).transpose(3, 4).reshape(S.G, S.TF, S.NC, 2048)  # fmt: skip
        by_head = layer.attn_proj[0].T.view(S.C, S.H, S.D).transpose(0, 1)  # (H, C, D)
        cut = torch.stack([_rows(head, outputs) for head in by_head])  # (H, P, RJ_POWER, D)
        projections[index] = cut.view(S.G, S.RJ_POWER, S.D)
        parts = []
        for rows, bias, at, norm in (
            (qkv, layer.c_attn[1], qkv_rows, layer.ln_1),
            (up, layer.c_fc[1], up_rows, layer.ln_2),
        ):
            gain, shift = (vector.double() for vector in norm)
            parts += [rows.double() @ gain, rows.double() @ shift + _rows(bias[:, None], at)[..., 0].double()]
        row_sums[index] = torch.cat(parts, 1).float()
        gains[2 * index], gains[2 * index + 1] = layer.ln_1[0], layer.ln_2[0]
        biases[index, 0], biases[index, 1] = layer.attn_proj[1], layer.mlp_proj[1]
    gains[2 * L], gains[2 * L + 1] = model.ln_f.weight, model.ln_f.bias
    return Packed(stream, projections, row_sums, gains, biases)


def _qkv_rows(S: Shape) -> Tensor:
    """(G, TQ * 8) which of the 3 * C outputs each program computes, -1 for none: a head's share of all three."""
    own = _own_rows(S.P, S.RQ, S.TQ * 8, 3 * S.D)  # (P, rows), of one head
    head = torch.arange(S.H)[:, None, None]
    rows = own // S.D * S.C + head * S.D + own % S.D
    return torch.where(own < 0, -1, rows).view(S.G, S.TQ * 8)


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
