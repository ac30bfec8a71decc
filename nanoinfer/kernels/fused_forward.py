"""A decode step of few rows by five kernels a layer, from token ids to the next ones. Chapter 6.

The kernels are those of kernels/few_rows*.py; here stand what they work in, how matrices are cut, and their order.
It costs a copy of the blocks' weights.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import triton
from torch import Tensor
from triton import knobs

from nanoinfer.engine.samplers import Sampler
from nanoinfer.engine.state import BatchState
from nanoinfer.engine.step import advance
from nanoinfer.kernels import few_rows, few_rows_attention, few_rows_head, sampling
from nanoinfer.model.gpt2 import GPT2

if TYPE_CHECKING:
    from nanoinfer.cache.paged import PagedCache

MAX_ROWS = 16  # of a step: what a matrix unit multiplies at once
MAX_HEAD = 128  # numbers of a head: with more, a tile of keys and values outgrows the registers
PROGRAMS = 264  # of the head: two a multiprocessor of an H200
COMPILES = (
    "nanoinfer: compiling the kernels of engine fused, once on this machine: about 10 s (warm_up, which compiles all of"
    " them, 30 s)"
)


@dataclass(frozen=True)
class Cut:
    """How a matrix is cut: columns a program, numbers of the inner side a run, warps that share a run."""

    columns: int
    run: int
    warps: int


@dataclass(frozen=True)
class Plan:
    """How a step of so many rows is cut. Chosen by timing on an H200."""

    qkv: Cut
    proj: Cut
    up: Cut
    down: Cut
    head: Cut
    tile: int  # tokens of a context that a program holds
    tile_warps: int
    head_by_columns: bool = False  # whether the head's columns are cut over warps, not its inner side


PLANS = {
    2: Plan(Cut(16, 256, 4), Cut(8, 256, 8), Cut(16, 256, 4), Cut(8, 512, 8), Cut(16, 256, 8), 256, 8),
    4: Plan(Cut(8, 256, 4), Cut(8, 256, 4), Cut(8, 256, 4), Cut(8, 512, 8), Cut(16, 256, 8), 256, 8),
    8: Plan(Cut(32, 256, 8), Cut(8, 256, 4), Cut(32, 256, 8), Cut(8, 512, 8), Cut(32, 256, 4), 256, 8, True),
    16: Plan(Cut(16, 256, 4), Cut(8, 256, 8), Cut(32, 256, 4), Cut(8, 512, 4), Cut(32, 256, 4), 64, 2, True),
}  # by rows, at most


class FusedForward:
    """A `Forward` over pages, by kernels that do a half block or a third of one each.

    Blocks' weights are copied, (out, in): a program's columns then lie side by side. So a change of weights in place
    needs `refresh`. Everything else is the model's, the cache's and the state's own.
    """

    name = "fused"

    def __init__(self, model: GPT2, cache: PagedCache, state: BatchState) -> None:
        self.model, self.cache, self.state = model, cache, state
        config, device = model.config, model.device
        self._interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        self._capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
        self.early = self._capability is not None and self._capability >= (9, 0)  # the first that can
        self._small = model.dtype == torch.float32 or config.head_size > 64  # tiles of fewer tokens fit into registers
        self.max_splits = 1 << (-(-cache.max_len // self._tile(PLANS[16])) - 1).bit_length()

        def new(*shape: int, dtype: torch.dtype = model.dtype) -> Tensor:
            return torch.empty(*shape, dtype=dtype, device=device)

        C, B = config.n_embd, MAX_ROWS
        self.x, self.q, self.o, self.h = new(B, C), new(B, C), new(B, C), new(B, config.inner)
        self.parts = new(B * config.n_head * self.max_splits * (config.head_size + 2), dtype=torch.float32)
        self.logits = new(B, config.padded_vocab)
        self.scores, self.ids = new(B, PROGRAMS, dtype=torch.float32), new(B, PROGRAMS, dtype=torch.int32)
        self.near, self.listed = new(B, sampling.TILE), new(B, sampling.TILE, dtype=torch.int32)
        self.refresh()
        self.uncompiled = not self._interpreted and not compiled().exists()

    def refresh(self) -> None:
        maps = [(layer.c_attn, layer.attn_proj, layer.c_fc, layer.mlp_proj) for layer in self.model.layers]
        self.turned = [[weight.detach().t().contiguous() for weight, _ in each] for each in maps]

    def why_not(self, rows: int, sampler: Sampler) -> str | None:
        if rows > MAX_ROWS:
            return "more rows than the fused kernels take"
        if self.model.config.head_size > MAX_HEAD:
            return "a head size that the fused kernels do not know"
        if self._capability is not None and self._capability < (8, 0):
            return "a GPU that the fused kernels were not made for"
        return None

    @torch.inference_mode()
    def decode(self, rows: int, longest: int, sampler: Sampler) -> Tensor:
        state, plan = self.state.at(slice(0, rows)), self._plan(rows)
        self._hidden(plan, rows, state)
        fused = sampler is sampling.sample
        programs = self._head(plan, rows, state, keep=not fused)
        if not fused:
            return advance(state, sampler(self.logits[:rows, : self.model.config.vocab_size], state))
        self.launch(
            few_rows_head.choose_kernel, (rows,), sampling.WARPS,
            self.logits, self.logits.stride(0), self.scores, self.ids, self.near, self.listed,
            state.temperature, state.top_k, state.top_p, state.seed, state.step, state.token, state.position,
            state.live, PROGRAMS=programs, POWER=triton.next_power_of_2(programs), V=self.model.config.vocab_size,
            TILE=sampling.TILE, FEW=sampling.FEW, GROUPS=sampling.GROUPS,
        )  # fmt: skip
        return state.token

    def _hidden(self, plan: Plan, B: int, state: BatchState) -> None:
        """The residual stream x (B, C) of the newest tokens, through all blocks; their keys and values into pages."""
        model, cache, config, eps = self.model, self.cache, self.model.config, self.model.config.layer_norm_epsilon
        C, H, D, inner, page = config.n_embd, config.n_head, config.head_size, config.inner, cache.block_size
        x, power, where = self.x, triton.next_power_of_2, (cache.tables, state.row, state.position)
        embeddings, stride = (model.wte.weight, model.wpe.weight), cache.tables.stride(0)
        self.launch(
            few_rows.embed_kernel, (B,), 4, state.token, state.position, *embeddings, x, C=C, C_POWER=power(C),
            first=True,
        )  # fmt: skip
        for i, (layer, (qkv, proj, up, down)) in enumerate(zip(model.layers, self.turned, strict=True)):
            pools = cache.k[i], cache.v[i]
            self._matrix(
                few_rows.qkv_kernel, plan.qkv, 3 * C, C, B, x, *layer.ln_1, qkv, layer.c_attn[1], self.q, *pools,
                *where, B, stride, eps, H=H, D=D, PAGE=page,
            )  # fmt: skip
            self.attend(plan, B, state, self.q, *pools)
            bias = layer.attn_proj[1]
            self._matrix(few_rows.update_kernel, plan.proj, C, C, B, self.o, proj, bias, x, B, K=C, C=C)
            bias = layer.c_fc[1]
            self._matrix(
                few_rows.up_kernel, plan.up, inner, C, B, x, *layer.ln_2, up, bias, self.h, B, eps, C=C, N=inner
            )
            bias = layer.mlp_proj[1]
            self._matrix(few_rows.update_kernel, plan.down, C, inner, B, self.h, down, bias, x, B, K=inner, C=C)

    def attend(self, plan: Plan, B: int, state: BatchState, q: Tensor, k: Tensor, v: Tensor) -> None:
        """o (B, C): attention of the newest tokens' queries q (B, C) over their pages of one layer."""
        cache, H, D, tile = self.cache, self.model.config.n_head, self.model.config.head_size, self._tile(plan)
        splits = triton.next_power_of_2(triton.cdiv(cache.max_len, tile))
        self.launch(
            few_rows_attention.attend_kernel, (B, H, splits), plan.tile_warps, q, k, v, cache.tables, state.row,
            state.position, self.o, self.parts, cache.splits_done, cache.tables.stride(0), D**-0.5, H=H, D=D,
            D_POWER=triton.next_power_of_2(D), PAGE=cache.block_size, TILE=tile, SPLITS=splits,
        )  # fmt: skip

    def _head(self, plan: Plan, B: int, state: BatchState, keep: bool) -> int:
        """Each row's best score and its id by program; logits of all rows if `keep`. Returns how many programs."""
        config, norm = self.model.config, self.model.ln_f
        cut = _fitting(plan.head, config.n_embd)
        programs: int = min(PROGRAMS // (1 + plan.head_by_columns), triton.cdiv(config.vocab_size, cut.columns))
        self.launch(
            few_rows_head.head_kernel, (programs,), cut.warps, self.x, norm.weight, norm.bias, self.model.wte.weight,
            self.logits, self.scores, self.ids, state.temperature, state.top_k, state.top_p, state.seed, state.step, B,
            self.logits.stride(0), config.layer_norm_epsilon, C=config.n_embd, V=config.vocab_size, KEEP=keep,
            ROWS=triton.next_power_of_2(B), COLUMNS=cut.columns, RUN=cut.run,
            WARPS=1 if plan.head_by_columns else cut.warps,
        )  # fmt: skip
        return programs

    def _matrix(self, kernel: Any, cut: Cut, columns: int, inner: int, B: int, *given: Any, **constants: Any) -> None:
        """Launch a kernel that takes `columns` columns of `inner` numbers each, for all B rows."""
        cut = _fitting(cut, inner)
        self.launch(
            kernel, (triton.cdiv(columns, cut.columns),), cut.warps, *given, **constants,
            ROWS=triton.next_power_of_2(B), COLUMNS=cut.columns, RUN=cut.run, WARPS=cut.warps,
        )  # fmt: skip

    def launch(
        self, kernel: Any, grid: tuple[int, ...], warps: int, *given: Any, first: bool = False, **constants: Any
    ) -> None:
        """first: of the step, which waits for all that came before; the others may begin early, and wait inside."""
        first_ever, self.uncompiled = self.uncompiled, False
        if first_ever:
            logging.getLogger(__name__).warning(COMPILES)
        options = {} if self._interpreted else {"num_warps": warps, "launch_pdl": self.early and not first}
        kernel[grid](*given, **constants, EARLY=self.early, **options)
        if first_ever:
            with suppress(OSError):  # the line comes again, and that is all
                compiled().touch()

    def _plan(self, rows: int) -> Plan:
        """float32, which is for proofs, has the plan of the narrowest strips: its tiles take twice the room."""
        return PLANS[4] if self.model.dtype == torch.float32 else next(PLANS[most] for most in PLANS if most >= rows)

    def _tile(self, plan: Plan) -> int:
        return 32 if self._interpreted else 64 if self._small else plan.tile


def compiled() -> Path:
    """What stands in Triton's cache once it holds kernels of a step: to look for these is to list the whole cache."""
    return Path(knobs.cache.dir) / f"nanoinfer-{triton.__version__}"


def _fitting(cut: Cut, inner: int) -> Cut:
    """The cut for a matrix of that inner side: a warp keeps 16 numbers of a run, the fewest a matrix unit takes."""
    run = min(cut.run, max(64, triton.next_power_of_2(inner)))
    return Cut(cut.columns, run, min(cut.warps, run // 16))
