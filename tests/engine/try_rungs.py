import json, random, sys, time, statistics, torch
from nanoinfer import LLM, SamplingParams
from nanoinfer.engine.graphs import CudaRecorder
from nanoinfer.model.weights import random_model
from nanoinfer.model.config import PRESETS
from nanoinfer.rungs.engine import Engine, Sequence
from nanoinfer.rungs.none import NoCache
from nanoinfer.rungs.dense import DenseCache
from nanoinfer.rungs.paged import PagedCache
from nanoinfer.rungs.device import DeviceEngine
from nanoinfer.rungs.late import LateEngine
from nanoinfer.rungs.graphs import GraphEngine
from nanoinfer.rungs.captured import CapturedDense, CapturedPaged
from nanoinfer.text.prompts import RequestMaker
from nanoinfer.text.tokenizer import gpt2_tokenizer
from tests.engine.recorded import FILE, GROUPS
import traceback
print(torch.cuda.get_device_name(), torch.__version__)
recorded = json.loads(FILE.read_text())["odd"]
prompts, params = GROUPS["odd"].requests("odd")
def asked(model):
    maker = RequestMaker(gpt2_tokenizer(), 100, model.config.vocab_size, random.Random(0), model.config.end_of_text)
    return [(r.index, Sequence(r.prompt_token_ids, r.params, r.seed, r.limit, r.stop_ids, r.text)) for r in maker.requests(prompts, params) if not r.params.penalises]
for device in ("cpu", "cuda"):
    model = GROUPS["odd"].model("odd").to(device)
    kind = (model.device, model.dtype); c = model.config
    dense = lambda: CapturedDense(c, 8, 100, *kind)
    paged = lambda: CapturedPaged(c, 8, 100, 40, 16, *kind)
    engines = {"1": lambda: Engine(model, NoCache(), 8), "2": lambda: Engine(model, DenseCache(c, 8, 100, *kind), 8), "3": lambda: Engine(model, PagedCache(c, 8, 100, 40, 16, *kind), 8)}
    for n, make in (("dense", dense), ("paged", paged)):
        engines["device " + n] = lambda make=make: DeviceEngine(model, make(), 8)
        engines["late " + n] = lambda make=make: LateEngine(model, make(), 8)
        if device == "cuda": engines["graph " + n] = lambda make=make: GraphEngine(model, make(), 8, recorder=CudaRecorder(model.device), max_rows=8)
    for name, make in engines.items():
        try:
            e = make(); want = asked(model); t = time.time(); e.generate([s for _, s in want])
            wrong = [i for i, s in want if s.token_ids[len(s.prompt):] != recorded[i]]
            print(device, name, len(want), "requests,", len(wrong), "differ", wrong[:5], f"{time.time()-t:.1f} s", flush=True)
        except Exception: traceback.print_exc()
if "speed" in sys.argv:
    model = random_model(PRESETS["gpt2"], 0, device=torch.device("cuda"), dtype=torch.bfloat16)
    kind = (model.device, model.dtype); c = model.config
    rng = random.Random(0)
    for B in (1, 8, 64):
        ids = [[rng.randrange(50000) for _ in range(64)] for _ in range(B)]
        ours = {}
        ours["graph paged"] = GraphEngine(model, CapturedPaged(c, 64, 1024, 64 * 64 + 1, 16, *kind), 64, recorder=CudaRecorder(model.device), max_rows=64)
        ours["late paged"] = LateEngine(model, CapturedPaged(c, 64, 1024, 64 * 64 + 1, 16, *kind), 64)
        with LLM(model, engine="paged-graph", max_batch=64, fused=False) as llm, LLM(model, engine="paged", max_batch=64) as llm2:
            def run(name):
                torch.cuda.synchronize(); t = time.perf_counter()
                if name in ours:
                    ours[name].generate([Sequence(tuple(p), SamplingParams(max_tokens=128, temperature=0, ignore_eos=True), 0, 128, frozenset()) for p in ids])
                else: (llm if name == "product paged-graph" else llm2).generate(ids, SamplingParams(max_tokens=128, temperature=0, ignore_eos=True))
                torch.cuda.synchronize(); return B * 128 / (time.perf_counter() - t)
            got = {n: [] for n in [*ours, "product paged-graph", "product paged"]}
            for turn in range(6):
                for n in got:
                    r = run(n)
                    if turn: got[n].append(r)
            print(B, {n: round(statistics.median(v)) for n, v in got.items()}, flush=True)
