"""Captured steps on a GPU: what the stand-in of test_graphs.py cannot show. G.. are names of the list of defects.

Tokens are held against the CPU's float32 logits by the one helper of the book. What may end a capture badly, or has to
be the first thing that a process does, runs in a process of its own.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch

from nanoinfer import LLM, Completion
from nanoinfer.cache.none import forward_logits
from nanoinfer.engine.graphs import ladder, pick
from nanoinfer.engine.step import Chunk, Prefill, Prompts, decode_step
from nanoinfer.model.config import PRESETS, ModelConfig
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model
from nanoinfer.verify import verify_tokens
from tests.conftest import SMALL, STD, prompts_of
from tests.engine.fake_graphed import (  # fmt: skip
    LENGTHS,
    PARAMS,
    Rerun,
    decodes,
    greedy_rows,
    idle,
    live_bits,
    same,
    state_bits,
    steps,
    tokens,
)
from tests.gpu.conftest import GRAPHS

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("error::RuntimeWarning")]
ROOT = Path(__file__).parents[2]
PIECE = "a piece of a prompt, where prompts are captured whole"


Kind = tuple[str, bool | None]  # the engine's name, and whether its operations are fused


@pytest.fixture(params=GRAPHS, ids=lambda kind: kind[0] + "-fused" * kind[1])
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture(scope="module", autouse=True)
def old_objects_rest() -> Iterator[None]:
    """Each capture collects garbage: what the process held before need not be looked through every time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def make(model: GPT2, kind: Kind, **settings: Any) -> LLM:
    return LLM(model, engine=kind[0], fused=kind[1], **settings)


def prove(cpu_model: GPT2, llm: LLM, lengths: list[int], params: Any) -> None:
    proven(cpu_model, llm.generate(prompts_of(lengths), params), params)


def proven(cpu_model: GPT2, done: Sequence[Completion], params: Any) -> None:
    verify_tokens(lambda text: forward_logits(cpu_model, text), done, params)


def poison(llm: LLM) -> None:
    cache: Any = llm.core.cache
    cache.k.fill_(float("nan"))
    cache.v.fill_(float("nan"))


def test_every_shape_of_the_ladder(small_model: GPT2, model: GPT2, kind: Kind) -> None:
    """G30, G31, G33: a batch that drains from 33 rows to none, all replayed; then refilled rows, sampled ones too."""
    llm = make(model, kind, max_batch=33)
    llm.warm_up()
    captures = llm.stats.captures
    prove(small_model, llm, [1 + 7 * i % 32 for i in range(33)], greedy_rows(*range(1, 34)))
    rows = sum(pick(ladder(33), batch) or 0 for batch in range(1, 33))
    assert llm.stats.captures == captures
    assert llm.stats.replayed_steps == llm.stats.decode_steps == 32
    assert llm.stats.replayed_rows == rows
    assert llm.stats.padding_rows == rows - sum(range(1, 33))
    assert llm.stats.replayed_prefills == llm.stats.prefill_steps == 1
    prove(small_model, llm, [1 + 5 * i % 60 for i in range(80)], PARAMS * 10)
    assert set(decodes(llm)) == set(ladder(33))
    assert llm.stats.replayed_steps == llm.stats.decode_steps
    assert set(llm.stats.fallbacks) <= {"a prefill of too many tokens"}


def test_no_request_captures_after_warm_up(small_model: GPT2, model: GPT2, kind: Kind) -> None:
    """Greedy, sampled, filtered, whole and in pieces: none waits for a capture, or reads what a cache held before."""
    for chunk in (None, 20):
        llm = make(model, kind, max_batch=4, prefill_chunk=chunk)
        llm.warm_up()
        captures = llm.stats.captures
        for params in (*([each] * 8 for each in PARAMS[:3]), PARAMS):
            prove(small_model, llm, LENGTHS, params)
            idle(llm)
            poison(llm)
        assert llm.stats.captures == captures
        assert llm.stats.replayed_steps == llm.stats.decode_steps > 0
        assert set(llm.stats.fallbacks) <= ({PIECE} if kind[0] == "dense-graph" and chunk else set())


def test_two_engines_capture_in_two_threads(small_model: GPT2, model: GPT2, kind: Kind) -> None:
    """Each in its own, on one GPU: neither ends a capture of the other, or is ended by one."""
    llms, both = [make(model, kind, max_batch=4) for _ in range(2)], Barrier(2)

    def run(llm: LLM) -> None:
        both.wait(60)
        for seed in range(3):
            proven(small_model, llm.generate(prompts_of(LENGTHS, seed=seed), PARAMS), PARAMS)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, llms))
    assert all(llm.stats.captures > 0 and not llm.stats.fallbacks for llm in llms)


def test_replays_are_the_step(model: GPT2, kind: Kind) -> None:
    """Three replays of one step give the same bits, and its state is that of the step called with the same rows."""
    llm = make(model, kind, max_batch=4)
    params = [replace(PARAMS[i], max_tokens=15) for i in (1, 5, 7)]
    running = steps(llm, [4, 9, 30], params)
    for _ in range(4):
        next(running)
    core, state = llm.core, llm.core.state
    key, captured = next((key, captured) for key, captured in core.graphs.items() if key.columns == 1)
    assert key.rows == 4
    saved, results = state.integers.clone(), []
    with torch.inference_mode():
        for number in range(4):
            state.integers.copy_(saved)
            if number < 3:
                captured.graph.replay()
            else:
                decode_step(core.model, core.cache, state, key.rows, key.longest, key.sampler)
            results.append((state_bits(llm), live_bits(llm)))
    (bits, memory), *others, (called, _) = results
    assert all(same(each[0], bits) and same(each[1], memory) for each in others)
    assert same(called, bits)
    assert not torch.equal(bits[0], saved[:, :-1])


def test_tokens_in_16_bits_are_those_of_the_step_called(kind: Kind) -> None:
    """Same shapes, same kernels: in bfloat16, too, a replay gives what the step gives that is called from Python."""
    low = random_model(SMALL, seed=1, std=STD, device="cuda", dtype=torch.bfloat16)
    replayed, called = (make(low, kind, max_batch=4) for _ in range(2))
    called.core.recorder = Rerun()
    assert tokens(replayed, LENGTHS, PARAMS) == tokens(called, LENGTHS, PARAMS)


def test_a_tensor_that_has_moved(small_model: GPT2, kind: Kind) -> None:
    """G16: all graphs go, with one warning, and with the last of them their memory; new ones are captured."""
    moving = random_model(SMALL, seed=1, std=STD, device="cuda")
    llm = make(moving, kind, max_batch=4)
    prove(small_model, llm, LENGTHS, PARAMS)
    old = moving.wte.weight.data
    moving.wte.weight.data = old.clone()
    with torch.inference_mode():
        old.fill_(-1)  # who still reads it is seen
    with pytest.warns(RuntimeWarning) as caught:
        prove(small_model, llm, LENGTHS, PARAMS)
    assert [str(w.message) for w in caught] == ["all graphs are dropped: a tensor that they knew has moved"]
    prove(small_model, llm, LENGTHS, PARAMS)
    assert llm.stats.replayed_steps == llm.stats.decode_steps


def test_memory_of_graphs(model: GPT2) -> None:
    """G34, G35: it is the driver's count that tells; torch's own has it as reserved, and not as allocated.

    The driver counts for all processes. Where another one comes in between, the next try may be undisturbed.
    """
    for _ in range(3):
        llm = make(model, ("paged-graph", True), max_batch=16)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
        llm.warm_up()
        torch.cuda.synchronize()
        taken = free - torch.cuda.mem_get_info()[0]
        apart = abs(taken - llm.stats.graph_bytes)
        if llm.stats.graph_bytes > 0 and apart < 2**25:
            break
    assert llm.stats.graph_bytes > 0
    assert apart < 2**25


@pytest.mark.parametrize("lag", [0, 2])
@pytest.mark.parametrize("kind", [*GRAPHS, ("fused", None), ("persistent", None)], indirect=True)
def test_the_loop_waits_in_one_place_alone(model: GPT2, kind: Kind, lag: int) -> None:
    """Promise 7: torch raises at any hidden synchronization. Waiting for an event is none of these."""
    llm = make(model, kind, max_batch=3)
    llm.core.lag = lag
    requests = llm.requests(prompts_of(LENGTHS), PARAMS)
    list(llm.core.generate(requests))
    torch.cuda.synchronize()
    captures = llm.stats.captures
    try:
        torch.cuda.set_sync_debug_mode("error")
        list(llm.core.generate(requests))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert llm.stats.captures == captures


def test_nothing_compiles_after_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """T01: over 512 steps, while rows leave and contexts grow, Triton compiles no kernel."""
    triton = pytest.importorskip("triton")
    config = ModelConfig(n_layer=2, n_head=4, n_embd=48, n_positions=600, vocab_size=211)
    long = random_model(config, seed=1, std=STD, device="cuda")
    compiled: list[str] = []
    monkeypatch.setattr(
        triton.knobs.runtime, "jit_post_compile_hook", lambda **info: compiled.append(info["fn"].name), raising=False
    )
    llm = make(long, ("paged-graph", True), max_batch=4)
    llm.warm_up()
    assert compiled  # the hook is called: of four rows and up to 2,048 tokens, some kernel is a new one
    compiled.clear()
    llm.generate(prompts_of([3, 20, 60, 1]), greedy_rows(513, 300, 100, 20))
    assert llm.stats.decode_steps == llm.stats.replayed_steps == 512
    assert compiled == []


def test_turned_off(small_model: GPT2, model: GPT2, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the environment: the same class with an empty dict, and the host waits for each step."""
    for on in (False, True):
        monkeypatch.setenv("NANOINFER_GRAPHS", str(int(on)))
        llm = make(model, kind, max_batch=4)
        prove(small_model, llm, LENGTHS, PARAMS)
        assert (llm.core.graphs != {}) == (llm.stats.captures > 0) == on
        assert llm.core.lag == (2 if on else 0)
        assert not llm.stats.fallbacks or on


# In a process of its own: a capture as the first thing that it does, then two that fail.
FRESH = """
import json, warnings
import torch
from nanoinfer import LLM
from nanoinfer.engine.graphs import CudaRecorder
from nanoinfer.verify import verify_tokens
from nanoinfer.model.weights import random_model
from tests.conftest import SMALL, STD, prompts_of
from tests.engine.fake_graphed import decodes, greedy_rows

model = random_model(SMALL, seed=1, std=STD, device="cuda")
counts = greedy_rows(9, 2, 7, 5)
# A first graph allocates two tensors for the random generator. Where these get no memory torch ends the process, in the
# graph's destructor; so the LLMs stay, and the failures are those of a step.
alive = []


def report(name, change=lambda llm: None, fused=True):
    llm = LLM(model, engine="paged-graph", fused=fused, max_batch=4)
    alive.append(llm)
    change(llm)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        done = llm.generate(prompts_of([4, 1, 9, 30]), counts)
    verify_tokens(llm.forward_logits, done, counts)
    print(json.dumps({
        "name": name, "warnings": [str(w.message) for w in caught if w.category is RuntimeWarning],
        "decodes": decodes(llm), "fallbacks": dict(llm.stats.fallbacks),
        "default_stream": llm.loop.worker.submit(
            lambda: torch.cuda.current_stream() == torch.cuda.default_stream()).result(),
    }), flush=True)


class Starved(CudaRecorder):
    first = True

    def record(self, step):
        if self.first:
            torch.cuda.set_per_process_memory_fraction(1e-6)
        self.first = False
        try:
            return super().record(step)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)


def starve(llm):
    llm.core.recorder = Starved(model.device)


def synchronize(llm):
    def sampler(logits, rows):
        if len(logits) == 2:
            logits[0, 0].item()
        return logits.argmax(-1)

    llm.core.samplers = llm.core.samplers._replace(greedy=sampler)


report("cold")
report("out of memory", starve)
report("synchronizes", synchronize, fused=False)
"""


@pytest.fixture(scope="module")
def fresh() -> dict[str, dict[str, Any]]:
    """What each part of the script said, by its name."""
    command = [sys.executable, "-c", FRESH]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    print(result.stdout, result.stderr[-3000:], sep="\n")
    return {line["name"]: line for line in lines}


def test_a_process_that_captures_first_thing(fresh: dict[str, dict[str, Any]]) -> None:
    """G23: each step is warmed before it is recorded, so nothing is compiled or set up within a capture."""
    cold = fresh["cold"]
    assert cold["warnings"] == []
    assert cold["fallbacks"] == {}
    assert sorted(cold["decodes"]) == [1, 2, 4]


def test_out_of_memory_at_a_capture(fresh: dict[str, dict[str, Any]]) -> None:
    """The first recording, the prefill's, gets no memory: it alone runs eagerly, and says why."""
    starved = fresh["out of memory"]
    (warning,) = starved["warnings"]
    assert warning.startswith("prefill of 4 rows, 64 wide runs without a graph: OutOfMemoryError: CUDA out of memory")
    assert starved["fallbacks"] == {"not captured": 1}
    assert sorted(starved["decodes"]) == [1, 2, 4]
    assert starved["default_stream"]


def test_a_step_that_synchronizes(fresh: dict[str, dict[str, Any]]) -> None:
    """CUDA ends such a capture with an error. The tokens are right, and work goes on where it was before.

    In torch before 2.12 (pytorch#180395) such a process captures nothing more: its allocator believes that it still is.
    """
    failed = fresh["synchronizes"]
    assert failed["warnings"][0].startswith("decode of 2 rows runs without a graph: ")
    assert failed["fallbacks"]["not captured"] >= 2
    assert failed["default_stream"]
    assert 4 in failed["decodes"]
    assert 2 not in failed["decodes"]
    if torch.__version__ >= "2.12":
        assert 1 in failed["decodes"]
        assert len(failed["warnings"]) == 1


def test_pages_beyond_32_bits() -> None:
    """P04: a page whose first number is past 2^31: what is written there is what is read, and its neighbour stays."""
    from nanoinfer.kernels import paged_attention as paged_kernels
    from nanoinfer.kernels import paged_attention_torch, ragged_attention, ragged_attention_torch

    device, H, D, page = torch.device("cuda"), 12, 64, 16
    pages = 2**31 // (H * page * D) + 2
    if torch.cuda.mem_get_info()[0] < 3 * 2 * pages * H * page * D:
        pytest.skip("needs 13 GB of free memory")
    k_pool, v_pool = (torch.zeros(pages, H, page, D, dtype=torch.float16, device=device) for _ in range(2))
    k, v, q = torch.randn(3, page + 4, H, D, device=device).half()
    table = torch.tensor([[pages - 1, 1]], dtype=torch.int32, device=device)
    at = torch.arange(page + 4, device=device)
    slots = table[0, at // page].long() * page + at % page
    paged_kernels.write_pages(k, v, k_pool, v_pool, slots)
    few = torch.tensor([0, 1, pages - 2, pages - 1], device=device)
    assert torch.equal(k_pool[few].any(-1).any(1).sum(-1).cpu(), torch.tensor([0, 4, 0, page]))
    done = torch.zeros(H, dtype=torch.int32, device=device)
    lengths = torch.tensor([page + 4], device=device)
    for splits in (1, 2):
        got = paged_kernels.attend_pages(q[:1], k_pool, v_pool, table, lengths, done, splits)
        expected = paged_attention_torch.attend_pages(q[:1], k_pool, v_pool, table, lengths, done)
        torch.testing.assert_close(got, expected, rtol=2e-3, atol=2e-3)
    prefill = Prefill([Chunk(0, page + 2, (7, 7))])
    batch = Prompts.of_packed(prefill.pack(prefill.layout, 1).to(device), prefill.layout)
    ragged = q[:2], k_pool, v_pool, table, batch
    got = ragged_attention.attend_ragged(*ragged, ragged_attention.work_list(batch))
    torch.testing.assert_close(got, ragged_attention_torch.attend_ragged(*ragged, None), rtol=2e-3, atol=2e-3)


def test_the_workspace_of_matrix_kernels_is_the_graphs_own(kind: Kind) -> None:
    """G22: torch.compile and others clear the workspaces that matrix kernels share; what is then there is another's.

    In gpt2's shape, since small matrices need no workspace.
    """
    wide = random_model(PRESETS["gpt2"], seed=2, std=0.1, device="cuda")
    llm, params = make(wide, kind, max_batch=8, max_len=64), greedy_rows(*[20] * 8)
    llm.warm_up()
    before = tokens(llm, [5] * 8, params)
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    others = [torch.full((2**22,), float("nan"), device="cuda") for _ in range(64)]  # over all that was given back
    assert tokens(llm, [5] * 8, params) == before
    assert all(bool(other.isnan().all()) for other in others)
