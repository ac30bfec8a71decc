"""Compilations are counted by Triton's own hooks, and other hooks go on being called; a run of every batch size."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from nanobench.core.compile_counter import TritonLog
from nanobench.micro.recompiles import count
from nanoinfer import LLM
from nanoinfer.kernels import paged_attention_torch
from nanoinfer.model.gpt2 import GPT2

triton = pytest.importorskip("triton", reason="there are no wheels of Triton here")


def compile_kernel(name: str) -> None:
    """What Triton calls around a compilation."""
    info: dict[str, Any] = {"fn": SimpleNamespace(name=name), "key": "k", "compile": {}, "repr": name}
    for hook in (triton.knobs.runtime.jit_cache_hook, triton.knobs.runtime.jit_post_compile_hook):
        if hook is not None:
            hook(**info)


def test_kernels_are_counted_within_a_log_and_other_hooks_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(triton.knobs.runtime, "jit_cache_hook", lambda **info: called.append("before"))
    monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", lambda **info: called.append("after"))
    with TritonLog() as log:
        compile_kernel("attend")
    compile_kernel("write")
    assert log.kernels == {"attend": 1}
    assert called == ["before", "after"] * 2


def test_the_hooks_are_where_triton_looks() -> None:
    """Names that a newer Triton might change: then nothing would be counted, and all runs would look clean."""
    source = inspect.getsource(triton.runtime.jit.JITFunction._do_compile)
    assert "knobs.runtime.jit_cache_hook" in source
    assert "knobs.runtime.jit_post_compile_hook" in source


@pytest.mark.parametrize("compiles_as", ["batch", "length"])
def test_what_compiles_as_sequences_grow_is_caught(
    small_model: GPT2, monkeypatch: pytest.MonkeyPatch, compiles_as: str
) -> None:
    """The first run meets every batch size over the same tables, so a kernel that compiles for each is clean later."""
    seen: set[int] = set()
    calls: set[tuple[int, int]] = set()  # batch, and the stride of the tables however much of them is read
    attend = paged_attention_torch.attend_pages

    def compiling(q: Any, k: Any, v: Any, tables: Any, lengths: Any, *rest: Any) -> Any:
        key = len(q) if compiles_as == "batch" else int(lengths.max()) // 16
        if key not in seen:
            seen.add(key)
            compile_kernel("attend")
        calls.add((len(q), tables.stride(0)))
        return attend(q, k, v, tables, lengths, *rest)

    monkeypatch.setattr(paged_attention_torch, "attend_pages", compiling)
    first, later = count(LLM(small_model, engine="paged", max_batch=4), rows=4, steps=40)
    assert (first.decode_steps, later.decode_steps) == (4, 40)
    assert sorted(batch for batch, _ in calls) == [1, 2, 3, 4]
    if compiles_as == "batch":
        assert (first.kernels, later.kernels) == ({"attend": 4}, {})
    else:
        assert later.kernels["attend"] >= 1
