"""TEMP: drafts, old against new by turns."""

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
from nanoinfer.speculate.coin import CoinDrafter

warnings.simplefilter("ignore")
print(torch.cuda.get_device_name(), torch.__version__, flush=True)
shape, B, k, turns = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
alphas = [float(a) for a in sys.argv[5].split(",")]
model = random_model(PRESETS[shape], 0, device=torch.device("cuda"), dtype=torch.bfloat16)


def make(old, **kw):
    if old:
        os.environ["OLD"] = "1"
    else:
        os.environ.pop("OLD", None)
    return LLM(model, engine="paged-graph", max_batch=B, **kw)


rng = random.Random(1)
ids = [[rng.randrange(50000) for _ in range(64)] for _ in range(B)]
ps = [SamplingParams(max_tokens=128, temperature=0, ignore_eos=True, seed=n) for n in range(B)]


def timed(llm):
    torch.cuda.synchronize()
    t = time.perf_counter()
    out = llm.generate(ids, ps)
    torch.cuda.synchronize()
    return B * 128 / (time.perf_counter() - t), [o.token_ids for o in out]


plain = make(False)
texts = timed(plain)[1]
for adaptive in (False,) if "fixed" in sys.argv else (False, True):
    arms = {}
    for old in (True, False):
        llm = make(old, speculate="lookup", draft_tokens=k, adaptive_drafts=adaptive)
        llm.core.begin_with(CoinDrafter(llm.max_batch, llm.max_len, k, model.device))
        arms[old] = llm
    for alpha in alphas:
        got = {True: [], False: [], None: []}
        for turn in range(turns + 1):
            for old in (True, False):
                arms[old].core.drafter.begin(dict(enumerate(texts)), alpha, turn)
            for arm in (None, True, False):
                r, toks = timed(plain if arm is None else arms[arm])
                if turn:
                    got[arm].append(r)
        m = {a: statistics.median(v) for a, v in got.items()}
        s = arms[False].stats
        print(
            f"{shape} B={B} k={k} adaptive={adaptive} alpha={alpha}: plain {m[None]:.0f} old {m[True] / m[None]:.3f} new {m[False] / m[None]:.3f}  new/old {m[False] / m[True]:.3f} same {toks == texts} verify {s.verify_steps} of {s.decode_steps}",
            flush=True,
        )
    for llm in arms.values():
        llm.close()
    gc.collect()
    torch.cuda.empty_cache()
