"""TEMP: host cost of a decode step."""

import cProfile
import pstats
import sys
import time
import warnings

import torch

warnings.simplefilter("ignore")
from nanoinfer import LLM, SamplingParams

B = int(sys.argv[1])
prof = len(sys.argv) > 2
import os

for old in (True, False):
    if old:
        os.environ["OLD"] = "1"
    else:
        os.environ.pop("OLD", None)
    llm = LLM("random:tiny", engine="paged-graph", max_batch=B)
    core = llm.core
    core.lag = 2
    out = torch.zeros(B, dtype=torch.int64)
    if old:
        core.runner.prefill = lambda slots, chunks, sampler, *a: out[: len(slots) + len(chunks)]
        core.runner.decode = lambda b, longest, sampler: out[:b]
    else:
        core.prefill = lambda chunks, sampler: out[: chunks.layout.rows]
        core.decode = lambda b, context, sampler: out[:b]
    reqs = llm.requests([[1] * 16] * B, SamplingParams(max_tokens=40, temperature=0, ignore_eos=True))
    list(core.generate(reqs))
    best = 9
    for _ in range(5):
        reqs = llm.requests([[1] * 16] * B, SamplingParams(max_tokens=40, temperature=0, ignore_eos=True))
        g = core.generate(reqs)
        for _ in range(5):
            next(g)
        t = time.process_time()
        for _ in range(20):
            next(g)
        best = min(best, (time.process_time() - t) / 20)
        list(g)
    print("old" if old else "new", B, f"{best * 1e6:.0f} us a step, {best * 1e6 / B:.2f} a row")
    if prof:
        reqs = llm.requests([[1] * 16] * B, SamplingParams(max_tokens=40, temperature=0, ignore_eos=True))
        p = cProfile.Profile()
        p.enable()
        list(core.generate(reqs))
        p.disable()
        pstats.Stats(p).sort_stats("tottime").print_stats(16)
