"""What the text of chapter 1 shows: each function prints one block of it, and NUMBERS gives its single numbers."""

from __future__ import annotations

from pathlib import Path

import torch

from nanobook.examples import load, print_blocks
from nanobook.running import best, decode, encode, show, show_fault, word
from nanoinfer import LLM, SamplingParams
from nanoinfer.engine.sampling import gumbel, random_bits, scaled, threshold
from nanoinfer.model.config import PRESETS
from nanoinfer.requests import Completion, Metrics
from nanoinfer.verify import verify_tokens

here = Path(__file__).parent
run, cost = load(here / "running.py"), load(here / "cost.py")
costs, totals, NUMBERS = cost.costs, cost.totals, cost.NUMBERS


def without_a_model() -> None:
    """Twelve tokens of equal probability each."""
    for row in range(2):
        steps = torch.arange(12)[:, None]
        ids = gumbel(torch.full((12,), row), steps[:, 0], 50257).argmax(-1).tolist()
        show(f"seed {row}", decode(ids))


def step() -> None:
    """The two prompts, and the most probable tokens after each."""
    for row, ids in enumerate(run.rows()):
        print("  ".join(f"{i} {word(i)}" for i in ids))
        print(f"   then {best(run.probs(row), 4)}")


def packed() -> None:
    """The two prompts as one step."""
    fed = run.packed()
    print(f"{'':12}" + "".join(f"{word(i):>9}" for i in fed.token_ids.tolist()))
    for name in ("token_ids", "positions", "row"):
        print(f"{name:12}" + "".join(f"{value:>9}" for value in getattr(fed, name).tolist()))
    print(f"starts at {fed.starts.tolist()}")


def positions() -> None:
    """The same loop with the right positions, with none, and with all shifted by one."""
    show("positions 0, 1, 2, ...", run.continued("The fox"))
    show("all 0", run.continued("The fox", positions=lambda T: torch.zeros(T, dtype=torch.int64)))
    show("1, 2, 3, ...", run.continued("The fox", positions=lambda T: torch.arange(1, T + 1)))


def no_attention() -> None:
    """Each token reads itself alone."""
    show("attention", run.continued("The fox"))
    show("every token for itself", run.continued("The fox", reads=run.OwnValue()))


def no_mask() -> None:
    """Text without a mask."""
    show("with the mask", run.continued("The fox"))
    show("without", run.continued("The fox", reads=run.NoMask()))


def attention() -> None:
    """One head of one layer in row 0: scores, then weights."""
    watch, words = run.watched(), [word(i) for i in run.rows()[0]]
    print(f"{'':10}{'scores against the keys of':33}{'weights'}")
    print(f"{'query':10}" + 2 * ("".join(f"{w:>9}" for w in words) + "      "))
    for at, w in enumerate(words):
        scores = "".join(f"{s:9.2f}" for s in watch.scores[run.HEAD, at].tolist())
        weights = "".join(f"{p:9.2f}" for p in watch.weights[run.HEAD, at].tolist())
        print(f"{w:10}{scores}      {weights}")


def mask_by_columns() -> None:
    """Two queries at positions 3 and 4 among five keys, by the right rule and by the wrong one."""
    queries, keys = torch.tensor([3, 4]), torch.arange(5)
    by_position = keys <= queries[:, None]
    by_column = torch.ones(2, 5, dtype=torch.bool).tril()
    for name, mask in (("key position <= query position", by_position), ("column <= row, a triangle", by_column)):
        for at, row in zip(queries.tolist(), mask.tolist(), strict=True):
            reads = " ".join(str(key) for key, seen in enumerate(row) if seen)
            print(f"{name:32} the query at position {at} reads keys {reads}")


def stream() -> None:
    """How large the residual stream is along the layers, and the text where it is normalised itself."""
    sizes = run.stream_sizes()
    print(f"{'the stream at layer':24}" + "".join(f"{at:>8}" for at in range(0, 13, 3)))
    print(f"{'root mean square':24}" + "".join(f"{sizes[at]:8.2f}" for at in range(0, 13, 3)))
    show("stream left alone", run.continued("The fox"))
    show("stream normalised", run.continued("The fox", 10, ops=run.StreamNormalised()))


def parameters() -> None:
    """What a head of its own would add."""
    print(f"{'':8}{'layers':>7}{'heads':>7}{'C':>6}{'all':>15}{'token embedding':>17}{'a head besides':>16}")
    for name in ("small", "gpt2", "gpt2-xl"):
        config = PRESETS[name]
        table = config.vocab_size * config.n_embd
        shape = f"{config.n_layer:>7}{config.n_head:>7}{config.n_embd:>6}"
        print(f"{name:8}{shape}{config.parameters:>15,}{table:>17,}{table / config.parameters:>11.0%} more")


def one_token_seen() -> None:
    """The loop that feeds the newest token alone."""
    show("the prompt", "Once upon a time")
    show("the whole text", run.continued("Once upon a time"))
    show("the newest token alone", run.continued("Once upon a time", seen=1))


def ragged() -> None:
    """Row 1 by its last real column and by the last column, with two paddings."""
    for padding in (0, 262):
        ids, lengths = run.batch(padding)
        after = run.logits(ids)[1]
        for name, column in (("last real token", lengths[1] - 1), ("last column", -1)):
            print(f"padded with {word(padding):8} {name:16} {best(after[column].softmax(-1))}")


def ties() -> None:
    """How often the two highest logits are equal, in float32 and rounded to bfloat16, after 400 tokens of nonsense."""
    at = torch.arange(400)
    ids = random_bits(at, at, at) % 50257
    scores = run.logits(ids[None])[0]  # (T, V)
    for dtype in (torch.float32, torch.bfloat16):
        best = scores.to(dtype).topk(2).values
        print(f"{str(dtype).removeprefix('torch.'):10} {int((best[:, 0] == best[:, 1]).sum())} of {len(best)} tie")


def tail() -> None:
    """Row 0 without a filter and with one, from the same noise; and how much probability lies beyond the 50 best."""
    llm = LLM(run.model(), engine="naive")
    for name, k, temperature in (("all 50,257 tokens", 0, 1.0), ("top 50, temperature 0.8", 50, 0.8)):
        params = SamplingParams(max_tokens=24, temperature=temperature, top_k=k, seed=5)
        show(name, run.PROMPTS[1] + llm.generate(run.PROMPTS[1], params)[0].text)
    best = run.probs(1).double().topk(50).values
    print(f"beyond the 50 best: {1 - float(best.sum()):.2f} of the probability")


def kept() -> None:
    """Row 1's candidates through temperature, top-k and top-p, in that order."""
    print(f"{'':10}{'logit':>8}{'p':>8}   {'/ 0.8: p':>9}   {'top_k 8: p':>10}   {'before':>8}   top_p 0.7")
    for line in run.candidates():
        cut = ("kept" if line.kept else "dropped") if line.in_k else ""
        cells = f"{line.after_k:10.3f}   {line.before:8.3f}   {cut}" if line.in_k else f"{'dropped':>10}"
        print(f"{word(line.token_id):10}{line.logit:8.2f}{line.plain:8.3f}   {line.cooled:9.3f}   {cells}")


def order() -> None:
    """How many ids pass, by the order in which temperature and top-p come."""
    scores = run.logits(torch.tensor([run.rows()[1]]))[:, -1]  # (1, V)
    none, half = torch.zeros(1, dtype=torch.int32), torch.tensor([0.8])
    for top_p in (0.5, 0.7, 0.9):
        p = torch.tensor([top_p])
        cooled = scaled(scores, half)
        first = int((cooled >= threshold(cooled, none, p)).sum())
        last = int((scores >= threshold(scores, none, p)).sum())
        print(f"top_p {top_p:<5} keeps {first:>4} ids after temperature 0.8, {last:>4} before it")


def one_generator() -> None:
    """Row 0 alone and with a row beside it: random numbers handed out in order, then a row's own."""
    alone, beside = run.by_generator(run.PROMPTS[:1]), run.by_generator(run.PROMPTS)
    show("one generator, alone", alone)
    show("a row beside it", beside)
    llm = LLM(run.model(), engine="naive")
    params = SamplingParams(max_tokens=14, temperature=0.8, top_k=50, seed=7)
    show("a row's own, alone", run.PROMPTS[0] + llm.generate(run.PROMPTS[0], params)[0].text)
    show("a row beside it", run.PROMPTS[0] + llm.generate(list(run.PROMPTS), params)[0].text)


def gumbel_max() -> None:
    """Four tokens, ten thousand seeds: how often each has the highest log p + noise."""
    probs = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    seeds = torch.arange(10_000)
    noise = gumbel(seeds, torch.zeros_like(seeds), 4)
    won = (probs.log() + noise).argmax(-1).bincount(minlength=4)
    print(f"{'log p + noise of':18}" + "".join(f"{f'token {i}':>10}" for i in range(4)) + "   wins")
    for seed in range(3):
        scores = (probs.log() + noise[seed]).tolist()
        print(f"{f'seed {seed}':18}" + "".join(f"{s:10.3f}" for s in scores) + f"   token {scores.index(max(scores))}")
    print(f"{'p':18}" + "".join(f"{p:10.2f}" for p in probs.tolist()))
    shares = "".join(f"{n / len(seeds):10.3f}" for n in won.tolist())
    print(f"{'share of wins':18}{shares}   of {len(seeds):,} seeds")


def stops() -> None:
    """What ends a row, and what comes where nothing does."""
    llm = LLM(run.model(), engine="naive")
    prompt = "So the king gave him his daughter, and they lived happily"
    asked = {
        "end of text": SamplingParams(max_tokens=16, temperature=0.8, top_k=50, seed=1),
        "ignored": SamplingParams(max_tokens=16, temperature=0.8, top_k=50, seed=1, ignore_eos=True),
        'stop=("after",)': SamplingParams(max_tokens=16, temperature=0.8, top_k=50, seed=1, stop=("after",)),
        "max_tokens=2": SamplingParams(max_tokens=2, temperature=0.8, top_k=50, seed=1),
    }
    print(f"{'prompt':17} {prompt!r}")
    for name, params in asked.items():
        (row,) = llm.generate(prompt, params)
        print(f"{name:17} {row.finish_reason:7} {len(row.token_ids):>3} tokens, the last {word(row.token_ids[-1])}")
        print(f"{'':17} {row.text!r}")


def equal() -> None:
    """The naive engine's ragged batch, and an engine with a hidden key, held against the oracle."""
    llm, params = LLM(run.model(), engine="naive"), SamplingParams(max_tokens=24, temperature=0)
    print(f"{'the engine':24}{verify_tokens(llm.forward_logits, llm.generate(list(run.PROMPTS), params), params)}")
    prompt, ids = "Once upon a time", run.greedy_ids("Once upon a time", 24, reads=run.HiddenSelf())
    show("one key hidden, after", prompt)
    show("", decode(ids))
    asked = encode(prompt)
    told = Completion(0, tuple(asked), tuple(ids[len(asked) :]), "", "length", 0, Metrics(0.0, ()))
    show_fault("what the oracle says", llm.forward_logits, [told], params)


if __name__ == "__main__":
    print_blocks(Path(__file__))
