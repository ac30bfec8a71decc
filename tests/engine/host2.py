"""TEMP: host cost of 1,000 mixed requests."""

import cProfile
import os
import pstats
import random
import sys
import time
import warnings

import torch

warnings.simplefilter("ignore")
from nanoinfer import LLM, SamplingParams

B = 256
rng = random.Random(0)
ids = [[rng.randrange(600) for _ in range(rng.randint(10, 300))] for _ in range(1000)]
params = [SamplingParams(max_tokens=rng.randint(10, 200), temperature=0, ignore_eos=True) for _ in ids]
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.weights import random_model

model = random_model(
    ModelConfig(n_layer=1, n_head=2, n_embd=8, n_positions=1024, vocab_size=1000),
    0,
    device=torch.device("cpu"),
    dtype=torch.float32,
)
for old in (True, False):
    if old:
        os.environ["OLD"] = "1"
    else:
        os.environ.pop("OLD", None)
    llm = LLM(model, engine="paged-graph", max_batch=B, max_batched_tokens=2048)
    core = llm.core
    core.lag = 2
    out = torch.zeros(2048, dtype=torch.int64)
    if old:
        core.scheduler.mixed = True
        core.runner.prefill = lambda slots, chunks, sampler, *a: out[: len(slots) + sum(c.complete for c in chunks)]
        core.runner.decode = lambda b, longest, sampler: out[:b]
    else:
        core.mixed = True

        def pre(chunks, sampler):
            w = core.cache.wanted(chunks.layout)
            chunks.pack(core.cache.layout(*w), B)
            return out[: chunks.layout.rows]

        core.prefill = pre
        core.decode = lambda b, context, sampler: out[:b]
    for turn in range(3):
        reqs = llm.requests(ids, params)
        t = time.process_time()
        n = sum(1 for _ in core.generate(reqs))
        print("old" if old else "new", f"{time.process_time() - t:.3f} s", n, "steps", core.stats.prefill_steps)
    if len(sys.argv) > 1:
        reqs = llm.requests(ids, params)
        p = cProfile.Profile()
        p.enable()
        list(core.generate(reqs))
        p.disable()
        pstats.Stats(p).sort_stats("tottime").print_stats(22)
