"""TEMP: old engine against new by turns, one process."""

import gc
import os
import random
import statistics
import sys
import time
import warnings

import torch

from nanoinfer import LLM, SamplingParams
from nanoinfer.model.config import PRESETS
from nanoinfer.model.weights import random_model

warnings.simplefilter("ignore")
cuda = torch.cuda.is_available()
print(torch.cuda.get_device_name() if cuda else "cpu", torch.__version__, flush=True)
rng = random.Random(0)


def make(old, **kw):
    if old:
        os.environ["OLD"] = "1"
    else:
        os.environ.pop("OLD", None)
    return LLM(model, **kw)


def sync():
    if cuda:
        torch.cuda.synchronize()


def timed(llm, ids, params):
    sync()
    t = time.perf_counter()
    out = llm.generate(ids, params)
    sync()
    return sum(len(o.token_ids) for o in out) / (time.perf_counter() - t)


def compare(name, ids, params, turns, **kw):
    got = {True: [], False: []}
    llms = {old: make(old, engine=name, **kw) for old in (True, False)}
    for turn in range(turns + 1):
        for old in (True, False) if turn % 2 else (False, True):
            r = timed(llms[old], ids, params)
            if turn:
                got[old].append(r)
    ratios = [n / o for n, o in zip(got[False], got[True])]
    print(
        f"{name:12} B={len(ids):5} old {statistics.median(got[True]):9.0f} new {statistics.median(got[False]):9.0f} ratio {statistics.median(ratios):.3f} [{min(ratios):.3f} {max(ratios):.3f}]",
        flush=True,
    )
    for llm in llms.values():
        llm.close()
    gc.collect()
    if cuda:
        torch.cuda.empty_cache()


engines = sys.argv[1].split(",")
batches = [int(b) for b in sys.argv[2].split(",")]
turns = int(sys.argv[3])
shape = sys.argv[4] if len(sys.argv) > 4 else "gpt2"
if shape == "small":
    llm = LLM("small")
    model = llm.model
else:
    model = random_model(
        PRESETS[shape],
        0,
        device=torch.device("cuda" if cuda else "cpu"),
        dtype=torch.bfloat16 if cuda else torch.float32,
    )
new = int(os.environ.get("NEW_TOKENS", "128"))
for e in engines:
    for B in batches:
        if B == 1000:
            ids = [[rng.randrange(model.config.vocab_size) for _ in range(rng.randint(10, 300))] for _ in range(1000)]
            params = [SamplingParams(max_tokens=rng.randint(10, 200), temperature=0, ignore_eos=True) for _ in ids]
            compare(e, ids, params, max(2, turns // 2), max_batch=256)
        else:
            ids = [[rng.randrange(model.config.vocab_size) for _ in range(64)] for _ in range(B)]
            compare(e, ids, SamplingParams(max_tokens=new, temperature=0, ignore_eos=True), turns, max_batch=max(B, 1))
