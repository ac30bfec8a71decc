"""What the text of chapter 5 shows: each function prints one block of it, and NUMBERS gives its single numbers."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from nanobook.examples import load, print_blocks
from nanobook.running import encode, show, show_fault
from nanocourse.exercises import answers
from nanoinfer import LLM
from nanoinfer.verify import verify_tokens

here = Path(__file__).parent
clock, measured, run = load(here / "clock.py"), load(here / "measured.py"), load(here / "running.py")
budgets, too_small, knee = measured.budgets, measured.too_small, measured.knee
Ask = clock.Ask
FIVE = (("Once upon a time", 28), ("The fox", 8), ("The old king said that he would go to the sea", 24),
        ("Where are you", 16), ("She", 8))  # small.py's own texts, and their lengths  # fmt: skip
LONG = "Once upon a time there was a king who had three sons, and the youngest of them was"  # 19 tokens
NEW = (44, 9, 14, 6, 30, 8, 12, 5, 40, 7, 10, 16)  # new tokens of twelve requests
RATES = (0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 1.05)  # of the capacity


def ms(seconds: float) -> str:
    """Milliseconds, as the blocks print them."""
    return f"{1e3 * seconds:,.1f} ms" if seconds < 0.1 else f"{1e3 * seconds:,.0f} ms"


@cache
def twelve(static: bool) -> Any:
    """Twelve requests in a batch of four rows: four at once, and then one every two milliseconds."""
    asks = [Ask(2e-3 * max(0, n - 3), 16, new) for n, new in enumerate(NEW)]
    return clock.run(asks, clock.engine(4), static=static)


def static_or_not() -> None:
    """The same requests in batches that end together, and in one that changes at every step."""
    print(f"{'':12}{'steps':>7}{'rows idle':>11}{'all done':>11}{'first token: mean':>20}{'longest':>10}")
    for name, static in (("static", True), ("continuous", False)):
        made = twelve(static)
        print(f"{name:12}{len(made.steps):>7}{made.idle(4):>11.0%}{ms(made.seconds):>11}{ms(mean(made.waits)):>20}"
              f"{ms(max(made.waits)):>10}")  # fmt: skip


@cache
def small() -> Any:
    """The chapter's one file."""
    return load(here / "small.py")


def five(static: bool = False) -> tuple[list[dict[int, int]], list[list[int]]]:
    """What small.py logs of its five requests, and their texts' ids."""
    file = small()
    rows = [file.Row(3 * n, encode(text), length) for n, (text, length) in enumerate(FIVE)]
    return file.serve(rows, static=static), [row.ids for row in rows]


def steps() -> None:
    """Ten steps of small.py, a column for each request."""
    for n, fed in list(enumerate(five()[0]))[3:13]:
        print(f"step {n:2}", *(f"{tokens or '.':>3}" for tokens in fed.values()))


def long_prompt() -> None:
    """Three rows decode, and a prompt of 900 tokens arrives; with several budgets."""
    asks = [*[Ask(0.0, 8, 120)] * 3, Ask(0.005, 900, 8)]
    print(f"{'tokens a step':18}{'longest gap of the three':>26}{'first token of the long prompt':>34}")
    for budget in (1024, 256, 64):
        made = clock.run(asks, clock.engine(4, budget))
        print(f"{budget:>13}{ms(max(made.gaps(0))):>31}{ms(made.waits[3]):>34}")


def chunks() -> None:
    """A prompt of 19 tokens whole and in chunks: steps, tokens, and how far the logits are from each other."""
    ids = encode(LONG)
    whole, T = run.two.one.logits(torch.tensor([ids]))[0, -1], len(ids)
    print(f"{'chunk':8}{'steps':>6}{'tokens each':>16}   largest difference of the logits")
    for chunk in (T, 8, 1):
        sizes = [min(chunk, T - start) for start in range(0, T, chunk)]
        each = f"{sizes[0]}" if len(set(sizes)) == 1 else f"{sizes[0]}, last {sizes[-1]}"
        difference = float((run.after_chunks(ids, chunk) - whole).abs().max())
        print(f"{chunk:<8}{len(sizes):>6}{each:>16}   {'below 1e-5' if difference < 1e-5 else f'{difference:.1e}'}")
    params = run.SamplingParams(max_tokens=14, temperature=0)
    show("in chunks of 8", run.told(run.llm(prefill_chunk=8), [LONG], params)[0])
    with answers.mistake("5.8", "chunk-by-itself"):
        llm = run.llm(prefill_chunk=8)
        llm.core.cache.k.zero_(), llm.core.cache.v.zero_()  # it reads unwritten slots: the same on every machine
        show("each chunk by itself", run.told(llm, [LONG], params)[0])


def who_first() -> None:
    """One row decodes, and prompts arrive without a pause: who goes first?"""
    asks = [Ask(0.0, 8, 40), *(Ask(2e-3 + 2.4e-3 * n, 240, 1) for n in range(40))]
    print(f"{'':28}{'longest gap of the forty':>26}{'mean first token of a prompt':>32}")
    for name, kind, mixed in (
        ("prompts first, always", clock.PromptsFirst, False),
        ("by turns", clock.Timed, False),
        ("in one step, decode first", clock.Timed, True),
    ):
        made = clock.run(asks, clock.engine(8, 256, kind=kind, mixed=mixed))
        print(f"{name:28}{ms(max(made.gaps(0))):>26}{ms(mean(made.waits[1:])):>32}")


def head_of_line() -> None:
    """A request that needs most of the pool, small ones behind it, and two rules of who may begin."""
    asks = [*[Ask(0.0, 16, 48)] * 4, Ask(1e-3, 400, 100), *(Ask(2e-3 + 6e-3 * n, 16, 48) for n in range(60))]
    print(f"{'':24}{'the large one waits':>21}{'small ones wait: mean':>24}{'longest':>11}")
    for name, kind in (("in order of arrival", clock.Timed), ("any that fits", clock.FirstThatFits)):
        made = clock.run(asks, clock.engine(16, 512, 40, kind))
        small = made.waits[5:]
        print(f"{name:24}{ms(made.waits[4]):>21}{ms(mean(small)):>24}{ms(max(small)):>11}")


def never_fits() -> None:
    """What a request hears that no pool of this size could hold."""
    try:
        clock.engine(4, blocks=8).check(clock.request_of(3, Ask(0.0, 100, 60)))
    except ValueError as error:
        print(f"ValueError: {error}")


@cache
def mixture(share: float, seed: int = 7) -> Any:
    """800 requests at a share of the capacity, eight rows; prompts of 16 to 128 tokens, 8 to 64 new ones."""
    return clock.run(clock.poisson(share * capacity(), 800, sizes, seed), clock.engine(8, 256))


def p99_growth() -> str:
    """By what factor p99 grows from a fifth of the capacity to four fifths: the range over twelve draws of arrivals."""
    p99 = [[clock.quantile(mixture(share, seed).waits, 0.99) for share in (0.2, 0.8)] for seed in range(12)]
    growth = [high / low for low, high in p99]
    return f"{min(growth):.0f} to {max(growth):.0f}×"


def sizes(draws: random.Random) -> tuple[int, int]:
    """Tokens of a prompt, and new ones."""
    return draws.randint(16, 128), draws.randint(8, 64)


@cache
def capacity() -> float:
    """Requests a second, if all of 400 come at once."""
    made = clock.run([Ask(0.0, *size) for size in map(sizes, [random.Random(n) for n in range(400)])], clock.engine(8))
    return 400 / made.seconds


def explodes() -> None:
    """Throughput and waiting against the rate."""
    print(f"{'asked':>7}{'done':>8}{'engine busy':>14}{'rows in use':>13}{'first token: p50':>19}{'p99':>10}")
    for share in RATES:
        made = mixture(share)
        done = len(made.rows) / made.seconds / capacity()
        use = 1 - made.idle(8)
        p50, p99 = (clock.quantile(made.waits, q) for q in (0.5, 0.99))
        print(f"{share:>7.0%}{done:>8.0%}{made.busy:>14.0%}{use:>13.0%}{ms(p50):>19}{ms(p99):>10}")


def one_server() -> None:
    """A single row that serves one request at a time: the wait that comes out, and the one that the formula gives."""
    print(f"{'busy':>5}{'mean wait, in service times':>30}{'formula':>10}")
    for share in (0.5, 0.8, 0.9, 0.95):
        draws, free, now, waited = random.Random(3), 0.0, 0.0, 0.0
        for _ in range(100_000):
            now += draws.expovariate(share)
            waited += max(0.0, free - now)
            free = max(free, now) + draws.expovariate(1.0)
        print(f"{share:>5.0%}{waited / 100_000:>30.1f}{share / (1 - share):>10.1f}")


def little() -> None:
    """Little's law in three of these runs."""
    head = f"{'asked':>7}{'arrivals a second':>19}{'mean stay':>12}{'their product':>15}"
    print(f"{head}{'requests there, by the steps':>31}")
    for share in (0.4, 0.8, 0.95):
        made = mixture(share)
        rate, stay = len(made.rows) / made.seconds, mean(made.stays)
        there = present(made)
        print(f"{share:>7.0%}{rate:>19.1f}{ms(stay):>12}{rate * stay:>15.2f}{there:>31.2f}")


def present(made: Any) -> float:
    """Requests that were there on average: counted at every step, and not computed from their times."""
    arrived, left, area = sorted(row.asked for row in made.rows), sorted(row.times[-1] for row in made.rows), 0.0
    for start, end, _ in made.steps:
        area += (end - start) * (bisect_right(arrived, start) - bisect_right(left, start))
    return area / made.seconds


def names() -> None:
    """The third text's blocks are known by their own tokens alone: the second of them is another text's."""
    texts = [f"{run.FINE}.", f"{run.KING}{run.DAYS}. The", f"{run.FINE}{run.DAYS}. The"]
    show("by all before it", run.one_by_one(run.llm(), texts)[2][len(texts[2]) :])
    with run.hash_without_parent():
        wrong = run.one_by_one(run.llm(), texts)[2]
    show("by its own tokens", wrong[len(texts[2]) :])


def found_twice() -> None:
    """How many tokens of three texts that begin alike are computed."""
    made, texts = run.llm(), [f"{run.KING}{run.THEN}{end}" for end in (" man", " and an old man", ". He said")]
    for text in texts:
        before = made.stats.cached_tokens
        prompt = len(made.tokenizer.encode(text))
        made.generate([text], run.GREEDY)
        found = made.stats.cached_tokens - before
        print(f'{prompt} tokens, {found:2} found, {prompt - found:2} computed    "...{text[-28:]}"')


def not_full() -> None:
    """Two samples of one prompt of seven tokens, whose only block both write to."""
    prompt, seeds = "Once upon a time there was a little", (5, 6)
    params = [run.SamplingParams(12, temperature=0.9, seed=seed) for seed in seeds]
    right = [row.text for row in run.llm().generate([prompt] * 2, params)]
    wrong = [text[len(prompt) :] for text in run.last_block_shared(run.llm(), prompt, seeds)]
    for row in range(2):
        show(f"{row}: its own block", right[row])
        show("   one block for both", wrong[row])


def not_written() -> None:
    """Two equal prompts of three blocks, in chunks of one block, asked for at once."""
    text = f"{run.KING}{run.THEN}{run.STORM}."
    made = run.llm(prefill_chunk=16)
    show("found once planned", run.told(made, [text] * 2)[1][len(text) :])
    with run.found_at_reservation():
        wrong = run.llm(prefill_chunk=16)
        for pool in (wrong.core.cache.k, wrong.core.cache.v):
            pool.zero_()  # a new pool holds whatever lay there, and the text would be another each time
        show("found once reserved", run.told(wrong, [text] * 2)[1][len(text) :])
    print(f"tokens found: {made.stats.cached_tokens} once planned, {wrong.stats.cached_tokens} once reserved")


def preempted() -> None:
    """Four sampled rows in a large pool, in one that is too small, and there with noise that begins anew."""
    texts = ["Once upon a time", "The old fox looked up at", "Where are you", "She was"]
    right = run.told(run.llm(), texts, run.SAMPLED)
    made, little_room = run.small_pool(9)
    with little_room():
        told = run.told(made, texts, run.SAMPLED)
    wrong, _ = run.small_pool(9)
    with little_room(), run.noise_restarts():
        restarted = run.told(wrong, texts, run.SAMPLED)
    (at,) = [n for n, text in enumerate(restarted) if text != right[n]]
    begin = len(texts[at]) + right[at][len(texts[at]) :].index(".") + 2  # all three begin with the same sentence
    for name, text in (("a large pool", right[at]), ("a small one", told[at]), ("noise from 0 again", restarted[at])):
        show(name, text[begin:])
    print(f"preemptions: {made.stats.preemptions}; tokens fed again: {made.stats.recomputed_tokens}")


def proof() -> None:
    """Chunks, shared blocks and preemptions at once against the oracle, and the same with blocks under wrong names."""
    oracle = LLM(run.model(), engine="naive").forward_logits
    rows, stats = run.all_at_once()
    print(f"{'all of it at once':24}{verify_tokens(oracle, rows, run.SAMPLED)}")
    print(f"{'':24}{stats.cached_tokens} tokens found, {stats.preemptions} preemptions, "
          f"{stats.recomputed_tokens} tokens fed again")  # fmt: skip
    with run.hash_without_parent():
        rows, _ = run.all_at_once()
    show_fault("by its own tokens", oracle, rows, run.SAMPLED)


def clients() -> tuple[list[float], list[float], list[float]]:
    """Times of a server that answers in 10 ms and once stalls for a second, as three clients see them.

    The first two send a request when it is due, or after the last answer, if that is later, and start its clock at the
    send or when it is due. The third sends each when it is due.
    """
    every, work, stall = 0.02, 0.01, (2.0, 3.0)

    def served(sent: float, free: float) -> float:
        start = max(sent, free)
        return (stall[1] if stall[0] <= start < stall[1] else start) + work

    due, free, now = [every * n for n in range(500)], 0.0, 0.0
    closed, late, scheduled = list[float](), list[float](), list[float]()
    for then in due:
        free = served(then, free)
        scheduled.append(free - then)
    for then in due:
        now = max(now, then)  # the client waits for the answer before
        end = served(now, 0.0)
        closed.append(end - now)
        late.append(end - then)
        now = end
    return closed, late, scheduled


def omission() -> None:
    """What the three clients say of the server."""
    print(f"{'a request is sent':36}{'p50':>8}{'p90':>9}{'p99':>9}{'longest':>10}")
    names = "when due, or after the last answer", "... and its clock starts when due", "when due"
    for name, times in zip(names, clients(), strict=True):
        quantiles = [clock.quantile(times, share) for share in (0.5, 0.9, 0.99)]
        print(f"{name:36}{ms(quantiles[0]):>8}{ms(quantiles[1]):>9}{ms(quantiles[2]):>9}{ms(max(times)):>10}")


def mean_of() -> None:
    """Percentiles of two clients' times, and the mean of their percentiles."""
    draws = random.Random(5)
    clients = [[draws.expovariate(100) for _ in range(900)], [draws.expovariate(4) for _ in range(100)]]
    each = [clock.quantile(times, 0.99) for times in clients]
    both = clock.quantile([time for times in clients for time in times], 0.99)
    print(f"p99 of 900 fast answers {ms(each[0])}, of 100 slow ones {ms(each[1])}")
    print(f"the mean of the two {ms(mean(each))}; p99 of all 1,000 {ms(both)}")


NUMBERS: dict[str, Callable[[], str]] = {
    **measured.NUMBERS,
    "p99 growth": p99_growth,
    "rows in a step": lambda: f"{8 * (1 - mixture(0.2).idle(8)):.1f}",
    "sent late": lambda: f"{sum(late > closed for closed, late, _ in zip(*clients(), strict=True))}",
}


if __name__ == "__main__":
    print_blocks(Path(__file__))
