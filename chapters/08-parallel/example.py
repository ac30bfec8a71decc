"""What the text of chapter 8 shows: each function prints one block of it, and NUMBERS gives its single numbers."""

from __future__ import annotations

import os
import signal
import tempfile
import textwrap
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from nanobook.examples import load, print_blocks
from nanobook.running import model, output, show, show_fault
from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.captured import CapturedDense
from nanoinfer.engine.penalties import AllSamplers, PenaltySampler
from nanoinfer.engine.samplers import SAMPLERS
from nanoinfer.model.config import PRESETS
from nanoinfer.parallel.batch import open_job, request_maker
from nanoinfer.parallel.joined import JoinedSamplers
from nanoinfer.parallel.leader import RankEngine
from nanoinfer.parallel.rank import Rank
from nanoinfer.parallel.replicas import ReplicaLoop
from nanoinfer.parallel.shard import Shard
from nanoinfer.parallel.sharded import PartOf
from nanoinfer.verify import verify_tokens

here = Path(__file__).parent
measured, run = load(here / "measured.py"), load(here / "running.py")
seven = load(here.parent / "07-speculation" / "running.py")
halved, reduces, overtakes, either = measured.halved, measured.reduces, measured.overtakes, measured.either
one_gpu, readers = measured.one_gpu, measured.readers
A = torch.tensor([[1, 0, 2, -1], [0, 1, 1, 3], [2, -1, 0, 1], [1, 2, -2, 0]])
B = torch.tensor([[1, 2, 0, 1], [0, 1, -1, 2], [3, 0, 1, 0], [1, 1, 2, -1]])
X = torch.tensor([1, 2, -1, 3])
ALONE: dict[str, Any] = {"recorder": None, "max_rows": 0, "lag": 0, "budget": 64}  # of an engine


def cells(numbers: Sequence[float]) -> str:
    """Whole numbers in a row."""
    return "".join(f"{int(n):>4}" for n in numbers)


def two_processes() -> None:
    """What small.py prints, one process after the other."""
    told = output(here / "small.py", PYTHONUNBUFFERED="")  # so each line is written at once, not in parts
    for line in sorted(told.splitlines()):
        print(textwrap.fill(line, 100, subsequent_indent=" " * 8))


def matrices() -> None:
    """x, A and B, to be copied onto paper."""
    print(f"x{cells(X)}\n")
    for at, (a, b) in enumerate(zip(A, B, strict=True)):
        print(f"{' A'[at == 0]}{cells(a)}{'B' if at == 0 else ' ':>12}{cells(b)}")


def wrong_way() -> None:
    """A cut by rows, too: each rank has a term of x A, and sets to 0 what is negative in it."""
    terms = [X[own] @ A[own] for own in (slice(0, 2), slice(2, 4))]
    for rank, term in enumerate(terms):
        print(f"{f'rank {rank}':16}{cells(term)}   with negatives set to 0 {cells(term.relu())}")
    print(f"{'their sum':16}{cells(sum(terms))}   {'':24}{cells(sum(term.relu() for term in terms))}")


def layer() -> None:
    """The text by two ranks, and by two with a mistake."""
    show("two ranks", run.texts()[0])
    show("bias on every rank", run.texts(run.BiasEverywhere)[0])
    show("residual in the sum", run.texts(run.ResidualReduced)[0])


def heads() -> None:
    """Where a rank's heads lie in c_attn of gpt2-xl."""
    config = PRESETS["gpt2-xl"]
    print(f"{'c_attn of gpt2-xl':22}{'heads':>10}{'queries':>16}{'keys':>16}{'values':>16}")
    for rank in range(2):
        shard = Shard(rank, 2)
        own = shard.heads(config)
        thirds = [piece[1] for piece in shard.pieces("h.0.attn.c_attn.weight", config)]
        runs = [f"{third.start} to {third.stop - 1}" for third in thirds]
        print(f"{f'rank {rank}':22}{f'{own.start} to {own.stop - 1}':>10}", *(f"{one:>16}" for one in runs), sep="")


def straight() -> None:
    """The text where c_attn is cut as one matrix."""
    show("cut straight", run.texts(run.CutStraight)[0])


def joined() -> None:
    """Each rank's best id, and the winner, for a head whose logits are made up."""
    config = PRESETS["gpt2-xl"]
    cut, V = Shard(0, 2).vocab(config).stop, config.vocab_size
    print(f"{'':44}{'rank 0':>16}{'rank 1':>16}{'next':>9}")
    for what, raised in (
        ("one best id", {cut + 5: 3.0}),
        ("a tie across the cut", {cut - 1: 3.0, cut: 3.0}),
        ("all are negative, the last id is best", {V - 1: -1.0}),
    ):
        logits = torch.full((V,), -2.0 if "negative" in what else 0.0)
        for token, value in raised.items():
            logits[token] = value
        halves = [(part.max(), int(part.argmax()) + first) for part, first in ((logits[:cut], 0), (logits[cut:], cut))]
        best = max(halves, key=lambda half: (half[0], -half[1]))[1]
        pairs = [f"{float(score):g} by {token}" for score, token in halves]
        print(f"{what:44}", *(f"{pair:>16}" for pair in pairs), f"{best:>9}", sep="")
        assert best == int(logits.argmax())
    width = Shard(0, 2).vocab_width(config)
    print(f"{f'and with {2 * width - V} rows of zeros after it':44}{f'-2 by {0}':>16}{f'0 by {V}':>16}{V:>9}")


def own_numbers() -> None:
    """Sampled texts with noise by the model's ids, and by each rank's own numbers."""
    for heat in (run.HEAT, 1.2):
        right, wrong = (run.texts(run.Part, heat, kind)[0] for kind in (JoinedSamplers, run.OwnNumbers))
        print(f"temperature {heat}: the same text: {right == wrong}")


def ways() -> None:
    """What each rank sends, for n bytes on every rank, and how often it waits for another."""
    print(f"{'ranks':>5}{'ring':>26}{'one-shot':>26}{'two-shot':>26}")
    for size in (2, 4, 8):
        ring = f"{2 * (size - 1)} steps, {2 * (size - 1) / size:.2f} n"
        shots = f"1 step, {size - 1:.2f} n", f"2 steps, {2 * (size - 1) / size:.2f} n"
        print(f"{size:>5}{ring:>26}{shots[0]:>26}{shots[1]:>26}")


class Heard:
    """Stands for the other ranks: notes what they are told."""

    cause = since = None

    def __init__(self) -> None:
        self.orders: list[tuple[Any, ...]] = []

    def tell(self, *order: Any) -> None:
        self.orders.append(deepcopy(order))

    def check(self) -> None:
        """None of them can fail."""

    def watched(self, what: str) -> AbstractContextManager[None]:
        """Nor hang."""
        return nullcontext()


def orders() -> None:
    """What the first rank tells the others of two rows with two tokens to come."""
    heard: Any = Heard()
    net = model()
    kv = CapturedDense(net.config, 2, 64, run.CPU, torch.float64)
    scoring = PenaltySampler(2, net.config.vocab_size, run.CPU, SAMPLERS.filtered)
    core = RankEngine(net, kv, 2, rank=heard, samplers=AllSamplers(*SAMPLERS, scoring), **ALONE)
    params = SamplingParams(max_tokens=2, temperature=0, ignore_eos=True)
    for request in LLM(net, engine="dense").requests(["The fox", "Once upon a time"], params):
        core.submit(request)
    while core.busy:
        core.step()
    for order, step in heard.orders:
        name = order.rpartition(".")[2]
        begun = [f"row {b.row}, temperature {b.params.temperature:g}, {b.step} tokens generated" for b in step.begun]
        fed = [f"row {chunk.row} {list(chunk.token_ids)}" for chunk in (step.prefill.chunks if step.prefill else ())]
        fed = fed or [f"row {slot} its newest token" for slot in range(step.live)]
        if begun:
            print(f"{name}  begin: {'; '.join(begun)}")
        print(f"{'' if begun else name:6}  feed:  {'; '.join(fed)}")


def killed() -> None:
    """A rank's process is killed while a text is written."""
    params = SamplingParams(max_tokens=200, temperature=0, ignore_eos=True)
    with LLM(engine="dense", tensor_parallel=2, device="cpu", threads=1, max_batch=1, max_len=256) as llm:
        assert llm.rank
        stream, (other,) = llm.stream("Once upon a time", params), llm.rank.processes
        text = "".join(next(stream).text for _ in range(6))
        os.kill(other.pid, signal.SIGKILL)
        try:
            for _ in stream:
                pass
        except RuntimeError as error:
            print(f"{text!r}\nRuntimeError: {error}\nstill running: {other.poll() is None}")


def proof() -> None:
    """Two ranks' tokens held against one process that keeps nothing, and those of ranks that each add the bias."""
    params = SamplingParams(max_tokens=run.NEW, temperature=0)
    with LLM("small", engine="naive", device="cpu") as one:
        with LLM(engine="dense", tensor_parallel=2, device="cpu", threads=1, max_batch=2, max_len=64) as two:
            told = two.generate([run.PROMPT, "The fox"], params)
        print(f"{'two ranks':24}{verify_tokens(one.forward_logits, told, params)}")
        wrong = replace(told[0], token_ids=tuple(run.new_ids(run.BiasEverywhere)[0]))
        show_fault("bias on every rank", one.forward_logits, [wrong], params)


def captured() -> None:
    """Two ranks capture steps of 1, 2 and 4 rows, and on the second one the capture of 2 rows fails."""
    for rank, (ok, failed) in enumerate(run.on_ranks(2, _captures)):
        print(f"rank {rank}: captured for {ok} rows, not for {failed}")


class Refuses:
    """A recorder whose replays run the step again, and that cannot record a step of so many rows."""

    def __init__(self, refused: int) -> None:
        self.refused = refused

    def warm(self, step: Callable[[], object]) -> None:
        step()

    def record(self, step: Any) -> Any:
        if step.args[3] == self.refused:
            raise RuntimeError("no memory")
        return SimpleNamespace(replay=step)


def _captures(group: Any) -> tuple[list[int], list[int]]:
    part = PartOf(group)
    model = part.load("small", run.CPU, torch.float32)
    kv = CapturedDense(model.config, 4, 32, run.CPU, torch.float32)
    rank = Rank([])
    rank.group = group
    engine = RankEngine(model, kv, 4, rank=rank, **ALONE | {"recorder": Refuses(2 * group.rank), "max_rows": 4})
    engine.shapes = []  # of prefills
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine.warm_up([JoinedSamplers(model, SAMPLERS).greedy])
    return sorted(key.rows for key in engine.graphs), sorted(key.rows for key in engine.failed)


def overwritten() -> None:
    """Sums of 1 + 10, then 2 + 20, and so on, where rank 1 reads late: with one buffer a rank, and with two in turn."""
    for buffers in (1, 2):
        sums = one_shot(5, buffers)
        print(f"{buffers} buffer{'s' * (buffers > 1)} a rank")
        for rank, row in enumerate(sums):
            print(f"  rank {rank} gets{cells(row)}")


def one_shot(calls: int, buffers: int) -> list[list[int]]:
    """Both write, each waits for the other, both read; rank 1 reads only when rank 0 has written for the next sum."""
    place = [[0] * buffers for _ in range(2)]
    sums: list[list[int]] = [[], []]
    for call in range(calls):
        slot = call % buffers
        place[0][slot] = call + 1  # rank 0 is quick: it has the last sum, and writes for this one
        if call:
            sums[1].append(place[0][(call - 1) % buffers] + 10 * call)  # rank 1 reads for the last one
        place[1][slot] = 10 * (call + 1)
        sums[0].append(call + 1 + place[1][slot])
    sums[1].append(place[0][(calls - 1) % buffers] + 10 * calls)
    return sums


class Engine:
    """Stands for an engine in a process of its own: it counts its sequences, and none ends."""

    failure = leave_behind = None
    closed = False

    def __init__(self, name: str) -> None:
        self.name, self.load = name, 0


def routed() -> None:
    """Where requests go, three of which begin with the same 64 tokens."""
    engines = [Engine("A"), Engine("B")]
    loop, shared = ReplicaLoop(engines, 16), list(range(64))
    asked = [("shared", [*shared, 1]), ("other", [2] * 40), ("shared", [*shared, 3]), ("shared", [*shared, 4]),
             ("other", [5] * 40), ("other", [6] * 40), ("other", [7] * 40)]  # fmt: skip
    print(f"{'':12}{'A has':>10}{'B has':>10}   {'known to':>10}   goes to")
    told: dict[str, str] = {}
    for kind, text in asked:
        loads = [one.load for one in engines]
        best = loop._choose(text)
        best.load += 1
        print(f"{kind:12}{loads[0]:>10}{loads[1]:>10}   {told.get(str(text[:64]), '-'):>10}   {best.name}")
        told[str(text[:64])] = best.name


def moved() -> None:
    """A sampled text whose engine dies after 12 tokens: continued, as a longer prompt, and without the death."""
    whole = seven.Plain(run.PROMPT, run.HEAT).run(run.NEW)
    for label, counts in (("continued elsewhere", True), ("as a longer prompt", False)):
        half = seven.Plain(run.PROMPT, run.HEAT)
        half.ids = list(whole.ids[: whole.prompt + 12])
        if not counts:
            half.prompt = len(half.ids)
        half.run(run.NEW - 12 if not counts else run.NEW)
        show(label, seven.decode(half.ids[whole.prompt :]))
    show("no engine dies", str(whole))


LINES = [
    '"Once upon a time"', '{"id": "fox", "prompt": "The fox", "max_tokens": 8}', '"Where are you"',
    '"The old king"', '{"prompt": "A little bird", "temperature": 0}',
]  # fmt: skip


def resumed() -> None:
    """Five lines in shards of two; the run ends while the second shard is being written, and is begun again."""
    maker = request_maker("small", None, 64)
    with tempfile.TemporaryDirectory() as folder, LLM(max_len=64, engine="dense", device="cpu") as llm:
        source = Path(folder) / "prompts.jsonl"
        source.write_text("\n".join(LINES) + "\n", encoding="utf-8")
        params = SamplingParams(max_tokens=12, seed=7)
        outs = {}
        for size in (2, 3):
            job = open_job(source, Path(folder) / f"by{size}", params, size, maker, {"model": "small"})
            first, *rest = job.missing()
            job.run(first, llm)
            (job.out / f".{rest[0].name}.3f9c01aa.tmp").write_text('{"id": "3", "te')  # as a killed run leaves it
            if size == 2:
                _listed("killed while writing", job.out)
            for shard in open_job(source, job.out, params, size, maker, {"model": "small"}).missing():
                job.run(shard, llm)
            job.clean()
            if size == 2:
                _listed("the same command again", job.out)
            outs[size] = b"".join(path.read_bytes() for path in sorted(job.out.glob("*.jsonl")))
        print(f"shards of 3 give the same bytes: {outs[2] == outs[3]}")


def _listed(title: str, folder: Path) -> None:
    print(title)
    for path in sorted(folder.iterdir(), key=lambda path: path.name.lstrip(".")):
        lines = path.read_text().count("\n")
        print(f"  {path.name:48}{'' if path.suffix == '.json' else f'{lines} lines'}".rstrip())


NUMBERS: dict[str, Callable[[], str]] = {**measured.NUMBERS}


if __name__ == "__main__":
    print_blocks(Path(__file__))
