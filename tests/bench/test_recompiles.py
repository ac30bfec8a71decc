"""Compilations are counted by Triton's own hooks, and other hooks go on being called; a run of every batch size."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from nanobench.core.compile_counter import TritonLog, torch_graphs, torch_seconds
from nanobench.micro.recompiles import RecompileReport, count, measure
from nanoinfer import LLM
from nanoinfer.kernels import paged_attention_torch
from nanoinfer.model.gpt2 import GPT2

triton = pytest.importorskip("triton", reason="there are no wheels of Triton here")


def compile_kernel(name: str) -> bool | None:
    """What Triton calls around a compilation; True where a hook forbade it."""
    info: dict[str, Any] = {"fn": SimpleNamespace(name=name), "key": "k", "compile": {}, "repr": name}
    runtime = triton.knobs.runtime
    if runtime.jit_cache_hook is not None and runtime.jit_cache_hook(**info):
        return True
    if runtime.jit_post_compile_hook is not None:
        runtime.jit_post_compile_hook(**info)
    return None


@pytest.fixture
def hooks() -> Iterator[list[str]]:
    """Hooks that somebody else has set."""
    called: list[str] = []
    runtime = triton.knobs.runtime
    before = runtime.jit_cache_hook, runtime.jit_post_compile_hook
    runtime.jit_cache_hook = lambda **info: called.append("before")
    runtime.jit_post_compile_hook = lambda **info: called.append("after")
    yield called
    runtime.jit_cache_hook, runtime.jit_post_compile_hook = before


def test_kernels_are_counted_while_it_is_in_force(hooks: list[str]) -> None:
    with TritonLog() as log:
        compile_kernel("attend")
        compile_kernel("attend")
        compile_kernel("write")
    compile_kernel("write")
    assert log.kernels == {"attend": 2, "write": 1}
    assert log.seconds >= 0
    assert hooks == ["before", "after"] * 4  # the others' hooks stand, and were called meanwhile


def test_one_log_within_another(hooks: list[str]) -> None:
    with TritonLog() as outer:
        compile_kernel("a")
        with TritonLog() as inner:
            compile_kernel("b")
        compile_kernel("c")
    assert outer.kernels == {"a": 1, "b": 1, "c": 1}
    assert inner.kernels == {"b": 1}


def test_a_hook_may_forbid_a_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.knobs.runtime, "jit_cache_hook", lambda **info: True)
    with TritonLog() as log:
        assert compile_kernel("attend") is True
    assert not log.kernels


def test_the_hooks_are_where_triton_looks() -> None:
    """Names that a newer Triton might change: then nothing would be counted, and all runs would look clean."""
    import inspect

    from triton.runtime.jit import JITFunction

    source = inspect.getsource(JITFunction._do_compile)
    assert "knobs.runtime.jit_cache_hook" in source
    assert "knobs.runtime.jit_post_compile_hook" in source


def test_torch_counts_too() -> None:
    assert torch_graphs() >= 0
    assert torch_seconds() >= 0.0


def test_the_run_meets_every_batch_size_and_long_contexts(small_model: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a kernel that compiles for each batch size: all in the first run, though its texts are as long."""
    seen: set[int] = set()
    numbers: list[tuple[int, int]] = []
    attend = paged_attention_torch.attend_pages

    def compiling(q: Any, *rest: Any) -> Any:
        if len(q) not in seen:
            seen.add(len(q))
            compile_kernel("attend")
        numbers.append((len(q), rest[2].stride(0)))  # tables
        return attend(q, *rest)

    monkeypatch.setattr(paged_attention_torch, "attend_pages", compiling)
    llm = LLM(small_model, engine="paged", max_batch=4)
    first, later = count(llm, rows=4, steps=40)
    assert (first.decode_steps, later.decode_steps) == (4, 40)
    assert first.kernels == {"attend": 4}
    assert later.kernels == {}
    assert {batch for batch, _ in numbers} == {1, 2, 3, 4}
    assert len({stride for _, stride in numbers}) == 1  # however much of the tables is read


def test_a_kernel_that_compiles_as_texts_grow_is_caught(small_model: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[int] = set()
    attend = paged_attention_torch.attend_pages

    def compiling(q: Any, k: Any, v: Any, tables: Any, lengths: Any, *rest: Any) -> Any:
        pages = int(lengths.max()) // 16
        if pages not in seen:
            seen.add(pages)
            compile_kernel("attend")
        return attend(q, k, v, tables, lengths, *rest)

    monkeypatch.setattr(paged_attention_torch, "attend_pages", compiling)
    _, later = count(LLM(small_model, engine="paged", max_batch=4), rows=4, steps=40)
    assert later.kernels["attend"] >= 1


def test_without_a_gpu_there_is_nothing_to_count(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="on a CPU there is nothing to count"):
        measure("cpu", tmp_path / "x.json", "random:tiny", "paged")
    assert RecompileReport.model_fields["kind"].default == "recompiles"
