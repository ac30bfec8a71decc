"""TEMP: recorded tokens on a GPU."""

import json
import time
import traceback

import tests.engine.test_recorded as T
from nanoinfer.model.gpt2 import Layer
from nanoinfer.rungs.graphs import CudaRecorder

recorded = json.loads(T.FILE.read_text())["odd"]
model = T.GROUPS["odd"].model("odd").to("cuda")
model.layers = [Layer.of(b) for b in model.h]
T.model_of = lambda name: model
for name, (kind, cname) in T.LAYERS.items():
    for rec in [None, "cuda"] if "graph" in name else [None]:
        try:
            e = kind(model, T.caches(model)[cname](), T.ROWS)
            if rec:
                e.recorder = CudaRecorder(model.device)
            req = [r for r in T.asked() if name.startswith("queue") or not r.params.penalises]
            t = time.time()
            found = {}
            for settled in e.generate(req):
                for s in settled:
                    if s.finish_reason:
                        found[s.request.index] = s.tokens[len(s.request.prompt_token_ids) :]
            bad = [r.index for r in req if found.get(r.index) != recorded[r.index]]
            print(
                name,
                rec,
                len(req),
                "differ",
                len(bad),
                bad[:4],
                f"{time.time() - t:.1f}s",
                hasattr(e, "graphs") and len(e.graphs),
                flush=True,
            )
        except Exception:
            print(name, rec)
            print(traceback.format_exc()[-800:])
