"""What to guess in chapter 3 before it is measured: in a few seconds, on a CPU or a GPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from nanocourse.exercises import answers
from nanocourse.learner.predict import Prediction
from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.paged import PagedCache, choose_splits
from nanoinfer.model.config import PRESETS
from nanoinfer.model.weights import load_model

REPEATS = 31  # pairs of runs, by turns, so that what slows the machine slows both
H, D, PAGE = 12, 64, 16  # gpt2's heads
TEXTS = (12, 12, 16, 20, 20, 24, 30, 30, 40, 48, 64, 96)  # tokens of each text at its end; half of them are the prompt
ROWS, LONG = 3, 1024  # rows of a dense cache and their room, beside the dummy row


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """One run."""
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def ratio(one: Callable[[], object], other: Callable[[], object], device: torch.device) -> float:
    """How many times as long one takes as the other: the middle of all pairs, after one that is not counted."""
    found = [seconds(one, device) / seconds(other, device) for _ in range(REPEATS + 1)]
    return statistics.median(found[1:])


def blocks_of(tokens: int) -> int:
    """Blocks that a text of so many tokens needs."""
    return len(answers.reference("3.1")([[]], [tokens], list(range(tokens)), PAGE)[0][0])


def full_room(device: torch.device) -> float:
    """Slots of a dense cache over the slots of all texts' blocks, each text at its end."""
    return (len(TEXTS) + 1) * max(TEXTS) / (PAGE * sum(map(blocks_of, TEXTS)))


def room(device: torch.device) -> float:
    """The same in a run, by what its rows own in the mean of its steps."""
    with LLM(load_model("small", device, torch.float32), engine="paged") as llm:
        params = [SamplingParams(max_tokens=n // 2, temperature=0, ignore_eos=True) for n in TEXTS]
        requests = llm.requests([[464] * (n - n // 2) for n in TEXTS], params)
        engine, owned = llm.core, []
        for _ in engine.generate(requests):
            if engine.running:
                owned.append(PAGE * sum(map(len, engine.cache.blocks.owned)))
    return (len(TEXTS) + 1) * max(TEXTS) / statistics.mean(owned)


def mean_texts(device: torch.device) -> float:
    """Texts of the mean length in the slots of the dense cache."""
    return (ROWS + 1) * LONG / statistics.mean(TEXTS)


def texts(device: torch.device) -> float:
    """Texts that a paged cache of as many slots admits, one after the other."""
    blocks = (ROWS + 1) * LONG // PAGE
    cache, admitted = PagedCache(PRESETS["small"], 4096, LONG, blocks, PAGE, torch.device("cpu"), torch.float32), 0
    while cache.blocks.reserve(admitted, TEXTS[admitted % len(TEXTS)]):
        admitted += 1
    return admitted


def pages(batch: int, context: int, device: torch.device) -> tuple[Tensor, ...]:
    """Arguments of `attend_pages`, in random order: queries, pools, tables, lengths, counters."""
    count = batch * context // PAGE
    q, pool = torch.randn(batch, H, D, device=device), torch.randn(2, count + 1, H, PAGE, D, device=device)
    tables = (torch.randperm(count, device=device) + 1).view(batch, -1).int()
    done = torch.zeros(batch * H, dtype=torch.int32, device=device)
    return q, pool[0], pool[1], tables, torch.full((batch,), context, device=device), done


def attention(batch: int, context: int, device: torch.device) -> Callable[[], object]:
    """One layer's decode attention over pages: the kernel on a GPU, its PyTorch reference on a CPU."""
    if device.type == "cuda":
        from nanoinfer.kernels import paged_attention as kernels
    else:
        from nanoinfer.kernels import paged_attention_torch as kernels  # type: ignore[no-redef]
    asked, splits = pages(batch, context, device), choose_splits(batch, H, context)
    return lambda: kernels.attend_pages(*asked, splits)


def contiguous(batch: int, context: int, device: torch.device) -> Callable[[], object]:
    """The same over keys and values that lie side by side, by PyTorch's own attention."""
    q = torch.randn(batch, H, 1, D, device=device)
    k, v = torch.randn(2, batch, H, context, D, device=device)
    return lambda: F.scaled_dot_product_attention(q, k, v)


def _room(bound: float, measured: float) -> str:
    return (
        "texts take blocks as they grow and leave when they end, so that in the mean fewer are in use than at full "
        "length; the dense cache's rows stay what they are"
    )


def _rows(bound: float, measured: float) -> str:
    return "each text wastes the end of its last block, and one block is the null block: short texts feel that most"


def _context(bound: float, measured: float) -> str:
    if measured < 0.7 * bound:
        gpu = "a launch, and the way through length, table and key"
        rest = gpu if torch.cuda.is_available() else "some ten operations of PyTorch, one call each,"
        return f"the shorter one is not busy with bytes: {rest} take what they take"
    if measured > 1.3 * bound:
        return "more than the bytes' share: on a CPU pages are copied first, and a longer copy may fit no cache"
    return "bytes decide at both ends, so eight times the context is about eight times the time"


def _table(bound: float, measured: float) -> str:
    if not torch.cuda.is_available():
        return "there is no kernel on a CPU: the reference copies the pages side by side before it reads them"
    return "the kernel reads each page where it lies; looking up a page costs little beside reading it"


PREDICTIONS = (
    Prediction(
        "room", f"Twelve texts run at once and end at {', '.join(map(str, TEXTS))} tokens, half of them prompt. A "
        f"dense cache has a row of {max(TEXTS)} slots for each, and one more, the dummy row. How many times as many "
        f"slots is that as are in the texts' blocks of {PAGE}, in the mean over the run?", "times",
        full_room, "the same, if every text were at its end all the time", room, _room,
    ),
    Prediction(
        "rows", f"In {(ROWS + 1) * LONG:,} slots a dense cache of rows of {LONG} holds {ROWS} texts, since one row is "
        f"the dummy row. A paged cache has as many slots in blocks of {PAGE}, one of them the null block. It takes the "
        "twelve texts of question 1, each at its full length, over and over in this order. How many texts does it "
        "hold at once?", "texts",
        mean_texts, "the slots over the mean length of the texts", texts, _rows,
    ),
    Prediction(
        "context", "One row's decode attention over 1024 tokens, gpt2's heads: how many times as long does it take as "
        "over 128 tokens?", "times",
        lambda device: 8.0, "the ratio of the bytes",
        lambda device: ratio(attention(1, 1024, device), attention(1, 128, device), device), _context,
    ),
    Prediction(
        "table", "Eight rows of 512 tokens: how many times as long does attention over pages take as PyTorch's over "
        "keys that lie side by side?", "times", lambda device: 1.0, "both read the same bytes once",
        lambda device: ratio(attention(8, 512, device), contiguous(8, 512, device), device), _table,
    ),
)  # fmt: skip
