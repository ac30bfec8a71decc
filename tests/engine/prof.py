import os
import random
import sys
import time
import warnings

import torch

warnings.simplefilter("ignore")
from nanoinfer import LLM, SamplingParams
from nanoinfer.model.config import PRESETS
from nanoinfer.model.weights import random_model

B = int(sys.argv[1])
model = random_model(PRESETS["gpt2"], 0, device=torch.device("cuda"), dtype=torch.bfloat16)
rng = random.Random(0)
ids = [[rng.randrange(50000) for _ in range(64)] for _ in range(B)]
P = SamplingParams(max_tokens=128, temperature=0, ignore_eos=True)
for old in (True, False):
    if old:
        os.environ["OLD"] = "1"
    else:
        os.environ.pop("OLD", None)
    llm = LLM(model, engine="paged-graph", max_batch=B)
    core = llm.core
    llm.generate(ids, P)
    graphs = (core.runner if old else core).graphs
    for key, c in graphs.items():
        torch.cuda.synchronize()
        t = time.perf_counter()
        for _ in range(20):
            c.graph.replay()
        h = time.perf_counter() - t
        torch.cuda.synchronize()
        print(
            "old" if old else "new", key, f"gpu {(time.perf_counter() - t) / 20 * 1e6:.0f} us, host {h / 20 * 1e6:.0f}"
        )
    times = {}

    def wrap(o, name):
        f = getattr(o, name)

        def g(*a, **k):
            t = time.perf_counter()
            r = f(*a, **k)
            times.setdefault(name, []).append(time.perf_counter() - t)
            return r

        setattr(o, name, g)

    if not old:
        for n in (
            "schedule",
            "with_room",
            "pack",
            "places",
            "fetch",
            "launch",
            "settle",
            "place",
            "take_in",
            "decode",
            "_captured",
        ):
            wrap(core, n)
    else:
        wrap(core, "_launch")
        wrap(core, "_collect")
        wrap(core.scheduler, "schedule")
        wrap(core, "run")
        wrap(core.runner, "decode")
    g = core.generate(llm.requests(ids, P))
    for _ in range(30):
        next(g)
    times.clear()
    torch.cuda.synchronize()
    t = time.perf_counter()
    for _ in range(60):
        next(g)
    print(
        "step",
        f"{(time.perf_counter() - t) / 60 * 1e6:.0f}",
        {n: f"{sorted(v)[len(v) // 2] * 1e6:.0f}" for n, v in times.items()},
        flush=True,
    )
    list(g)
    llm.close()
