"""What to guess in chapter 8 before it is measured: in a few seconds, on a CPU or a GPU, and in one process."""

from __future__ import annotations

import statistics
import threading
import time
from multiprocessing import Pipe
from typing import Any

import torch
from torch import Tensor

from nanocourse.learner.predict import Prediction
from nanoinfer.model.batch import Batch
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import fill_model, load_model, random_model, random_weights
from nanoinfer.parallel.replicas import WORTH, Beginnings, block_names
from nanoinfer.parallel.shard import Shard
from nanoinfer.parallel.sharded import PartOf

CONFIG = ModelConfig(n_layer=3, n_head=12, n_embd=768, n_positions=64, vocab_size=512)
FEW, MANY, RUNS, ENGINES, REQUESTS = 16, 1_600, 40, 4, 400


class Alone:
    """What a rank that is alone is told by all others: nothing that it does not have."""

    rank, size, inbox = 0, 2, None

    def all_reduce(self, x: Tensor) -> Tensor:
        return x


def half(device: torch.device) -> float:
    """Each of two ranks has a half."""
    return 0.5


def memory(device: torch.device) -> float:
    """What rank 0 of two has of the small model, over the whole."""
    model = load_model("small", torch.device("cpu"), torch.float16)
    shard = Shard(0, 2)
    whole = part = 0
    for name, one in model.named_parameters():
        whole += one.numel()
        part += sum(one[index].numel() for index in shard.pieces(name, model.config))
    return part / whole


def step(model: GPT2, device: torch.device) -> float:
    """Seconds of a step of one row, without the head and without anything to attend to."""
    one = torch.zeros(1, dtype=torch.int64, device=device)
    batch, times = Batch(one, one, one, torch.arange(2, device=device), 1, 0), []
    for _ in range(RUNS):
        start = time.perf_counter()
        with torch.inference_mode():
            model.hidden(batch, lambda layer, q, k, v: v)[0, 0].item()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def part_of_a_step(device: torch.device) -> float:
    """A step of rank 0 of two, which waits for nobody, over a step of the whole."""
    group: Any = Alone()
    part, read = PartOf(group), random_weights(CONFIG, 8)
    rank = fill_model(part.make(CONFIG, device, torch.float32), lambda name: part.cut(name, read(name)))
    return step(rank, device) / step(random_model(CONFIG, seed=8, device=device), device)


def by_bytes(device: torch.device) -> float:
    """As many times the bytes."""
    return MANY / FEW


def exchanged(count: int) -> float:
    """Seconds in which two threads send each other so many numbers through a pipe, and add them up."""
    ends, numbers, times = Pipe(), torch.ones(count), []

    def rank(end: Any) -> None:
        end.send_bytes(numbers.numpy().tobytes())
        torch.frombuffer(bytearray(end.recv_bytes()), dtype=torch.float32).add_(numbers)

    for _ in range(RUNS):
        other = threading.Thread(target=rank, args=(ends[1],))
        start = time.perf_counter()
        other.start()
        rank(ends[0])
        other.join()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def pipe(device: torch.device) -> float:
    """A sum of many numbers over a sum of few."""
    few = exchanged(FEW)
    return exchanged(MANY) / few


def alike(device: torch.device) -> float:
    """All have equally many."""
    return 0.0


def busiest(device: torch.device) -> float:
    """Requests with one prompt: how far the engine with the most rows was ever ahead of the one with the fewest."""
    rows, known, ahead = [0] * ENGINES, [Beginnings() for _ in range(ENGINES)], 0
    prompt = block_names(range(512), 16)
    for _ in range(REQUESTS):
        best = min(range(ENGINES), key=lambda n: rows[n] - WORTH * known[n].share(prompt))
        known[best].note(prompt)
        rows[best] += 1
        ahead = max(ahead, max(rows) - min(rows))
    return float(ahead)


def _memory(bound: float, measured: float) -> str:
    return "both ranks hold the whole table of embeddings, and in a small model that is most of the numbers"


def _part(bound: float, measured: float) -> str:
    if measured > 0.9:
        return "nothing was gained: all but reading the weights is done by every rank"
    return "both ranks compute the norms and make every call from Python, and these are no smaller there"


def _pipe(bound: float, measured: float) -> str:
    return "one thread has to wake the other, and that takes equally long for any number of bytes"


def _busiest(bound: float, measured: float) -> str:
    return f"a known prompt outweighs {WORTH} rows, so one engine is ahead until the others know it too"


PREDICTIONS = (
    Prediction(
        "memory", "Two ranks share the small model of 12 layers. How much of all its numbers does rank 0 hold?",
        "of the whole", half, "half of everything", memory, _memory,
    ),
    Prediction(
        "part", f"A step of one sequence through {CONFIG.n_layer} layers of gpt2's width, in float32: how long does it "
        "take one rank of two, if it never waits for the other, over a single rank that has all?", "of the time",
        half, "half of the weights", part_of_a_step, _part,
    ),
    Prediction(
        "pipe", f"Two threads send each other {MANY:,} numbers and add them up, and then {FEW}. How many times as long "
        "do the many take?", "times", by_bytes, "as many times the bytes", pipe, _pipe,
    ),
    Prediction(
        "busiest", f"{REQUESTS} requests with one prompt go to {ENGINES} engines, each to the one with the fewest "
        f"rows; one that knows the prompt may have {WORTH} more. How far does the busiest get ahead of the idlest?",
        "rows",
        alike, "equally many", busiest, _busiest,
    ),
)  # fmt: skip
