"""One launch a token, timed: `python -m nanobench.micro.persistent` prints a table and checks each row first.

Replays of one captured launch, a text of one token and `NEW` new ones; "nobody waits" is wrong on purpose, and says
what of the time is not waiting. No time is printed before the tokens are within rounding of float32's choice.
"""

from __future__ import annotations

import statistics
import time

import torch

from nanoinfer.cache.naive import forward_logits
from nanoinfer.cache.paged import PagedCache
from nanoinfer.engine.state import BatchState
from nanoinfer.kernels.persistent import Persistent
from nanoinfer.model.config import PRESETS
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model

NEW = 512
VARIANTS = {
    "as it is": {},
    "words side by side": {"spread": 1},
    "120 programs": {"programs": 120},
    "nobody waits": {"polls": 0},
}


def begin(state: BatchState, temperature: float) -> None:
    """Row 0 begins with token 464."""
    state.free(slice(0, 1))
    state.token[0], state.live[0], state.row[0], state.temperature[0] = 464, 1, 0, temperature


@torch.inference_mode()
def microseconds(model: GPT2, temperature: float = 0.0, **how: int) -> tuple[float, list[int]]:
    """Median time a token of three texts, and the tokens."""
    page, longest, device = 16, model.config.n_positions, model.device
    pages = longest // page
    cache = PagedCache(model.config, 1, longest, pages + 1, page, device, model.dtype)
    cache.tables[0] = torch.randperm(pages, device=device).int() + 1
    state = BatchState.empty(1, device)
    kernel = Persistent(model, cache, **how)
    begin(state, temperature)
    kernel.step(state)
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    with torch.cuda.stream(side), torch.cuda.graph(graph):
        kernel.step(state)
    times, tokens = [], torch.zeros(NEW, dtype=torch.int64, device=device)
    for _ in range(3):
        begin(state, temperature)
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(NEW):
            graph.replay()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - started) / NEW * 1e6)
    begin(state, temperature)
    for n in range(NEW):
        graph.replay()
        tokens[n] = state.token[0]
    return statistics.median(times), tokens.tolist()


def main() -> None:
    """Print us a token and tokens a second of each variant, greedy; and of the first, sampled."""
    device = torch.device("cuda")
    model = random_model(PRESETS["gpt2"], 1, device=device, dtype=torch.bfloat16)
    exact = random_model(PRESETS["gpt2"], 1, device=device, dtype=torch.bfloat16).float()
    for name, how in VARIANTS.items():
        spent, tokens = microseconds(model, **how)
        short = "wrong on purpose"
        if how.get("polls") != 0:
            logits = forward_logits(exact, torch.tensor([[464, *tokens[:-1]]], device=device))[0]
            gap = logits.amax(1) - logits.gather(1, torch.tensor(tokens, device=device)[:, None])[:, 0]
            short = f"{int((gap == 0).sum())} of {NEW} float32's own, the worst {float(gap.max()):.2g} short"
        print(f"{name:20} {spent:7.1f} us {1e6 / spent:7.0f} tok/s  {short}")
    print(f"{'sampled':20} {microseconds(model, 0.8)[0]:7.1f} us")


if __name__ == "__main__":
    main()
