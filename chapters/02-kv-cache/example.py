"""What the text of chapter 2 shows: each function prints one block of it, and NUMBERS gives its single numbers."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from nanobook.examples import load, print_blocks
from nanobook.running import best, decode, show, show_fault, word
from nanoinfer import LLM, SamplingParams
from nanoinfer.verify import verify_tokens

here = Path(__file__).parent
run, cost = load(here / "running.py"), load(here / "cost.py")
LONG = "Once upon a time there was a king who had three sons, and the youngest of them was"  # 19 tokens
work, memory, how_far, NUMBERS = cost.work, cost.memory, cost.how_far, cost.NUMBERS


def same_again() -> None:
    """One key of an old token, in the naive engine's first four steps; and where every query reads every key."""
    ids = run.text_ids(0, 3)
    print(f"{'step':6}{'text':40}key of {word(ids[1])}{'':17}where all read all")
    for step in range(4):
        seen = ids[: 3 + step]
        cells = []
        for both_ways in (False, True):
            key = run.states(seen, both_ways)[run.LAYER][1][1, run.HEAD, :4]
            cells.append(" ".join(f"{number:6.3f}" for number in key.tolist()))
        text = decode(seen)
        print(f"{step:<6}{text:40}{cells[0]:31}{cells[1]}")


def what_changes() -> None:
    """The largest change of the old tokens' queries, keys and values, layer by layer, when a token is added."""
    ids = run.text_ids(0, 1)
    layers = (0, 1, 2, 5, 11)
    print(f"{'':28}" + "".join(f"{f'layer {layer}':>10}" for layer in layers))
    for name, both_ways in (("causal", False), ("where all read all", True)):
        before, after = run.states(ids[:-1], both_ways), run.states(ids, both_ways)
        for at, tensor in enumerate(("queries", "keys", "values")):
            change = [float((after[i][at][:-1] - before[i][at]).abs().max()) for i in layers]
            cells = "".join(f"{'0' if c < 1e-9 else f'{c:.2f}':>10}" for c in change)
            print(f"{name if at == 0 else '':20}{tensor:8}{cells}")


def newest_alone() -> None:
    """The loop that feeds the newest token alone, without a cache and with one."""
    show("the whole text", run.one.continued(run.PROMPTS[0], run.NEW))
    show("the newest token alone", run.one.continued(run.PROMPTS[0], run.NEW, seen=1))
    show("alone, with a cache", run.continued(run.PROMPTS[:1])[0])


def slots() -> None:
    """Text where a token's slot is its position, and where it is something else."""
    for label, name in (
        ("slot = position", ""), ("slot = place in step", "column-is-slot"),
        ("offset counted twice", "offset-counted-twice"),
    ):  # fmt: skip
        show(label, run.continued(run.PROMPTS[:1], "2.2" if name else "", name)[0])


def top_left() -> None:
    """One query at position 5 and the cache's six keys, by PyTorch's is_causal and by position."""
    ids = run.text_ids(0, 3)
    q, k, _ = (part[:, run.HEAD] for part in run.states(ids)[run.LAYER])
    print(f"{'the newest query, a key a column':36}" + "".join(f"{word(i):>9}" for i in ids))
    for label, mask in (("is_causal", torch.ones(1, 6).tril().bool()), ("by position", torch.ones(1, 6).bool())):
        scores = (q[5:] @ k.T / k.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf)
        print(f"{label:36}" + "".join(f"{p:9.3f}" for p in scores.softmax(-1)[0].tolist()))


def masks_at_work() -> None:
    """Text with the triangle at the top left, and with slots off by one."""
    for label, name in (
        ("by position", ""), ("triangle of columns", "triangle-at-the-top-left"), ("own slot hidden", "itself-hidden"),
    ):  # fmt: skip
        show(label, run.continued(run.PROMPTS[:1], "2.3" if name else "", name)[0])


def padded() -> None:
    """Row 1 beside row 0, where it goes on at its own length and where at the padded one."""
    show("row 1 alone", run.continued(run.PROMPTS[1:])[0])
    show("beside row 0", run.continued()[1])
    show("continues at 3, not 2", run.continued(id="2.4", name="padded-length")[1])
    show("continues at 19", run.continued([LONG, run.PROMPTS[1]], "2.4", "padded-length")[1])


def padded_on_the_left() -> None:
    """What follows row 1 with its padding on the left."""
    right = run.one.probs(1)
    print(f"{'without padding':44}{best(right)}")
    for label, hidden, own in (
        ("on the left", False, False), ("on the left, hidden", True, False),
        ("on the left, hidden, positions of its own", True, True),
    ):  # fmt: skip
        print(f"{label:44}{best(run.left_padded(hidden, own))}")


def proof() -> None:
    """The dense engine's tokens held against the oracle, and those of an engine with a hidden key."""
    llm, params = LLM(run.model(), engine="dense"), SamplingParams(max_tokens=24, temperature=0)
    print(f"{'dense':24}{verify_tokens(llm.forward_logits, llm.generate(list(run.PROMPTS), params), params)}")
    with run.wrong("2.3", "itself-hidden"):
        told = llm.generate(list(run.PROMPTS), params)
    show_fault("one key hidden", llm.forward_logits, told, params)


def hidden_slots() -> None:
    """Attention over six slots of which three are read, by what stands in the others."""
    ids = run.text_ids(0, 3)
    q, k, v = (part[:, run.HEAD][None, None].clone() for part in run.states(ids)[run.LAYER])
    mask = (torch.arange(6) < 3)[None]
    print(f"{'slots 3 to 5 hold':26}result for the query at position 2")
    for label, number in (("zeros", 0.0), ("the rest of the text", None), ("10,000", 1e4), ("NaN", torch.nan)):
        values: Tensor = v.clone()
        if number is not None:
            values[:, :, 3:] = number
        out = F.scaled_dot_product_attention(q[:, :, 2:3], k, values, attn_mask=mask)[0, 0, 0, :5]
        print(f"{label:26}" + " ".join(f"{x:7.3f}" for x in out.tolist()))


def refilled() -> None:
    """Two texts through one row of a cache, one after the other."""
    prompts = [run.PROMPTS[0], run.PROMPTS[1]]
    params = SamplingParams(max_tokens=run.NEW, temperature=0)
    told = LLM(run.model(), engine="dense", max_batch=1).generate(prompts, params)
    show("first in the row", prompts[0] + told[0].text)
    show("then, in the same slots", prompts[1] + told[1].text)


if __name__ == "__main__":
    print_blocks(Path(__file__))
