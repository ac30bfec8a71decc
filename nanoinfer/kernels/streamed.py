"""A decode step of more rows, or of a wider model, than fit into registers: matrices stream past them. Chapter 6.

The kernels of few_rows.py hold all rows and all weights of a program at once. Here both come in runs of the inner side,
through shared memory, some ahead of their use, and LayerNorm is a kernel of its own. What stays: weights lie (out, in),
a new token's key and value go straight into their page, and each kernel begins before the one ahead has ended.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from nanoinfer.engine.samplers import Sampler
from nanoinfer.engine.state import BatchState
from nanoinfer.engine.step import advance
from nanoinfer.kernels import few_rows
from nanoinfer.kernels.few_rows import begin, wait
from nanoinfer.kernels.fused import keep_and_norm
from nanoinfer.kernels.fused_forward import MAX_ROWS as FEW
from nanoinfer.kernels.fused_forward import PLANS, FusedForward
from nanoinfer.kernels.paged_attention import attend_pages
from nanoinfer.model.gpt2 import GPT2

MAX_ROWS = 256  # of a step; above, a matrix library keeps a GPU busy by itself
PROGRAMS = 256  # of a matrix, about: so many keep a large GPU's memory busy
MAX_SPLITS = 8  # of the inner side of a narrow matrix


class Strip(NamedTuple):
    """How a program goes through a matrix: columns, bytes of the inner side at once, runs in flight, warps."""

    columns: int
    run_bytes: int
    stages: int
    warps: int


# By kind of matrix, chosen by timing on an H200; and of all kinds where rows are few, or shared by programs.
STRIPS = {"qkv": Strip(32, 256, 6, 4), "up": Strip(32, 256, 4, 4), "update": Strip(32, 256, 4, 4)}
LONG = Strip(32, 512, 4, 4)
MANY = Strip(64, 256, 3, 4)
ROWS = 64  # of a program at most


@triton.jit
def add_norm_kernel(
    x, parts, gain, shift, h, most, eps, PARTS: tl.constexpr, C: tl.constexpr, C_POWER: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Program b adds all parts (PARTS, most, C) of row b's update to the stream x (B, C); h is its LayerNorm."""
    begin(EARLY)
    b, c = tl.program_id(0), tl.arange(0, C_POWER)
    real = c < C
    gains = tl.load(gain + c, mask=real, other=0.0).to(tl.float32)
    shifts = tl.load(shift + c, mask=real, other=0.0).to(tl.float32)
    wait(EARLY)
    total = tl.load(x + b * C + c, mask=real, other=0.0).to(tl.float32)
    for part in tl.static_range(PARTS):  # in order, so that the sum has the same bits every time
        total += tl.load(parts + (part * most + b) * C + c, mask=real, other=0.0)
    keep_and_norm(total, x, h, gains, shifts, b, c, eps, C)


@triton.jit(do_not_specialize=["B"])
def product_kernel(
    h, weight, bias, out, k_pool, v_pool, tables, row, positions, B, most, table_stride,
    KIND: tl.constexpr, K: tl.constexpr, N: tl.constexpr, H: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, RUN: tl.constexpr, SPLITS: tl.constexpr, STAGES: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Program (n, m, s): a strip of columns of a matrix that lies as (N, K), of ROWS rows h (B, K), part s of K.

    KIND: "qkv" writes queries to out (B, C), keys and values into pages; "up" writes GELU of it to out (B, N); "update"
    writes parts (SPLITS, most, N) float32, whose sum it is.
    """
    begin(EARLY)
    n = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    m = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    split, k = tl.program_id(2), tl.arange(0, RUN)
    each: tl.constexpr = ((K + RUN - 1) // RUN + SPLITS - 1) // SPLITS * RUN
    added = tl.load(bias + n, mask=n < tl.where(split == 0, N, 0), other=0.0).to(tl.float32)
    real, columns = (m < B)[:, None], (n < N)[:, None]
    x_at, weight_at = h + m[:, None] * K + k[None, :], weight + n.to(tl.int64)[:, None] * K + k[None, :]
    wait(EARLY)
    acc = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in tl.range(split * each, tl.minimum(split * each + each, K), RUN, num_stages=STAGES):
        inside = (start + k < K)[None, :]
        rows = tl.load(x_at + start, mask=real & inside, other=0.0)
        strip = tl.load(weight_at + start, mask=columns & inside, other=0.0)
        acc = tl.dot(rows, tl.trans(strip), acc, input_precision="ieee")
    acc += added[None, :]
    mask = real & (n < N)[None, :]
    if KIND == "update":
        tl.store(out + (split * most + m[:, None]) * N + n[None, :], acc, mask=mask)
    elif KIND == "up":
        acc *= tl.sigmoid(1.5957691216057308 * (acc + 0.044715 * acc * acc * acc))  # as in few_rows.py
        tl.store(out + m[:, None] * N + n[None, :], acc.to(out.dtype.element_ty), mask=mask)
    else:
        C: tl.constexpr = H * D
        y, c = acc.to(out.dtype.element_ty), n % C
        position = tl.load(positions + m, mask=m < B, other=0)
        table = tl.load(row + m, mask=m < B, other=0) * table_stride
        page = tl.load(tables + table + position // PAGE, mask=m < B, other=0).to(tl.int64)
        tl.store(out + m[:, None] * C + c[None, :], y, mask=mask & (n < C)[None, :])
        at = page[:, None] * (H * PAGE * D) + (c // D * PAGE * D + c % D)[None, :] + (position % PAGE * D)[:, None]
        tl.store(k_pool + at, y, mask=mask & ((n >= C) & (n < 2 * C))[None, :])
        tl.store(v_pool + at, y, mask=mask & (n >= 2 * C)[None, :])


class StreamedForward:
    """A `Forward` over pages for up to 256 rows. Weights are those of the `FusedForward` beside it."""

    name = "streamed"

    def __init__(self, fused: FusedForward) -> None:
        self.fused, self.model, self.cache, self.state = fused, fused.model, fused.cache, fused.state
        config, model = self.model.config, self.model
        self.most = min(MAX_ROWS, len(self.state.token))

        def new(*shape: int, dtype: torch.dtype = model.dtype) -> Tensor:
            return torch.empty(*shape, dtype=dtype, device=model.device)

        C = config.n_embd
        self.x, self.h, self.q = (new(self.most, C) for _ in range(3))
        self.wide, self.logits = new(self.most, config.inner), new(self.most, config.padded_vocab)
        self.parts = new(MAX_SPLITS, self.most, C, dtype=torch.float32)

    def refresh(self) -> None:
        """Weights are refreshed where they lie."""

    def why_not(self, rows: int, sampler: Sampler) -> str | None:
        if rows > self.most:
            return "more rows than the streamed kernels take"
        return self.fused.why_not(1, sampler)

    @torch.inference_mode()
    def decode(self, rows: int, longest: int, sampler: Sampler) -> Tensor:
        state = self.state.at(slice(0, rows))
        self._hidden(rows, state)
        torch.mm(self.h[:rows], self.model.wte.weight.t(), out=self.logits[:rows])
        return advance(state, sampler(self.logits[:rows, : self.model.config.vocab_size], state))

    def _hidden(self, B: int, state: BatchState) -> None:
        """The last LayerNorm h (B, C) of the newest tokens; their keys and values into pages."""
        model, cache, config, launch = self.model, self.cache, self.model.config, self.fused.launch
        C, where, parts = config.n_embd, (cache.tables, state.row, state.position), 0
        embeddings = model.wte.weight, model.wpe.weight
        launch(
            few_rows.embed_kernel, (B,), 4, state.token, state.position, *embeddings, self.x, C=C,
            C_POWER=triton.next_power_of_2(C), first=True,
        )  # fmt: skip
        self.lengths = state.position + 1
        for i, (layer, (qkv, proj, up, down)) in enumerate(zip(model.layers, self.fused.turned, strict=True)):
            pools = cache.k[i], cache.v[i]
            self._norm(B, parts, *layer.ln_1)
            self._product("qkv", B, self.h, qkv, layer.c_attn[1], self.q, *pools, *where)
            o = self._attend(B, state, *pools)
            parts = self._product("update", B, o, proj, layer.attn_proj[1], self.parts, *pools, *where)
            self._norm(B, parts, *layer.ln_2)
            self._product("up", B, self.h, up, layer.c_fc[1], self.wide, *pools, *where)
            parts = self._product("update", B, self.wide, down, layer.mlp_proj[1], self.parts, *pools, *where)
        self._norm(B, parts, model.ln_f.weight, model.ln_f.bias)

    def _attend(self, B: int, state: BatchState, k: Tensor, v: Tensor) -> Tensor:
        """Attention (B, C) of the newest queries: of few rows as they have it, of more as chapter 3 does.

        There a program streams a whole context through small tiles, and many of them run at once.
        """
        H, D, cache = self.model.config.n_head, self.model.config.head_size, self.cache
        if B > FEW:
            q, tables, done = self.q[:B].view(B, H, D), cache.tables[:B], cache.splits_done
            return attend_pages(q, k, v, tables, self.lengths, done, cache.splits(B)).view(B, H * D)
        self.fused.attend(PLANS[16], B, state, self.q, k, v)
        return self.fused.o

    def _norm(self, B: int, parts: int, gain: Tensor, shift: Tensor) -> None:
        config = self.model.config
        self.fused.launch(
            add_norm_kernel, (B,), 4, self.x, self.parts, gain, shift, self.h, self.most, config.layer_norm_epsilon,
            PARTS=parts, C=config.n_embd, C_POWER=triton.next_power_of_2(config.n_embd),
        )  # fmt: skip

    def _product(self, kind: str, B: int, h: Tensor, weight: Tensor, *given: Any) -> int:
        """Launch a product; return of how many parts its result is the sum."""
        config, cache, (N, K) = self.model.config, self.cache, weight.shape
        rows = min(ROWS, max(16, triton.next_power_of_2(B)))
        strip = LONG if B <= FEW else STRIPS[kind] if B <= ROWS else MANY
        grid, splits = (triton.cdiv(N, strip.columns), triton.cdiv(B, rows)), 1
        while kind == "update" and 2 * splits * grid[0] * grid[1] <= PROGRAMS and 2 * splits <= MAX_SPLITS:
            splits *= 2
        self.fused.launch(
            product_kernel, (*grid, splits), strip.warps, h, weight, *given, B, self.most, cache.tables.stride(0),
            KIND=kind, K=K, N=N, H=config.n_head, D=config.head_size, PAGE=cache.block_size, ROWS=rows,
            COLUMNS=strip.columns, RUN=strip.run_bytes // h.element_size(), SPLITS=splits, STAGES=strip.stages,
        )  # fmt: skip
        return splits


def fused_forwards(model: GPT2, cache: Any, state: BatchState) -> list[Any]:
    """What engine fused may compute captured steps by."""
    fused = FusedForward(model, cache, state)
    return [fused, StreamedForward(fused)]
