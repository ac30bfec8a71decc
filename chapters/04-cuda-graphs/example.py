"""What the text of chapter 4 shows: each function prints one block of it, and NUMBERS gives its single numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from nanobench.micro.graphs import padded_share
from nanobook.examples import load, print_blocks
from nanobook.running import decode, encode, show, word
from nanocourse.exercises.chapters import run_file
from nanoinfer import SamplingParams
from nanoinfer.cache.ragged import CapturedRagged
from nanoinfer.engine.fake_graph import CaptureRefused, record
from nanoinfer.engine.graphs import PREFILL_TOKENS, Key, ladder
from nanoinfer.engine.step import Rows
from nanoinfer.model.config import PRESETS

here = Path(__file__).parent
run, measured = load(here / "running.py"), load(here / "measured.py")
costs, drained, breakdown_table = measured.costs, measured.drained, measured.breakdown_table
LADDERS: dict[str, Callable[[int], Sequence[int]]] = {
    "every size": lambda n: range(1, n + 1),
    "powers of two": lambda n: [1 << i for i in range(n.bit_length()) if 1 << i <= n],
    "1, 2, 4, 8, then by 16": lambda n: [1, 2, 4, 8, *range(16, n + 1, 16)],
    "1, 2, 4, then by 8": lambda n: [1, 2, 4, *range(8, n + 1, 8)],
    "this engine's": ladder,
}


@cache
def small() -> Any:
    """The chapter's one file, loaded as on a machine without a GPU; its buffers are the file's own."""
    with patch.object(torch.cuda, "is_available", return_value=False):
        return run_file(here / "small.py", "chapter_04_small_eager")


@cache
def right() -> tuple[Any, list[str]]:
    """The engine with graphs, and what it makes of the running example."""
    made = run.llm()
    return made, run.told(made)


def operations(made: Any) -> int:
    """Operations of the captured decode step of four rows."""
    (graph,) = [graph for key, graph in run.decode_graphs(made).items() if key.rows == 4]
    return len(graph.operations)


def escaped() -> None:
    """A decode step whose attention is launched where the capture does not look."""
    made, texts = right()
    with run.attention_escapes():
        wrong = run.llm()
        told = run.told(wrong)
    show("right", texts[0])
    show("attention escaped", told[0])
    left = round(10 * operations(wrong) / operations(made))  # a rough number, as PyTorch's operations change
    print(f"a replay of the second does about {left} in 10 of the first one's PyTorch operations")


def python_runs() -> None:
    """A step that counts its calls, and binds a name; three replays of it."""
    calls, box = [], {"x": torch.ones(2), "y": torch.zeros(2)}

    def step() -> torch.Tensor:
        calls.append(1)
        box["y"] = box["x"] * 3
        return box["y"]

    print("step():  calls.append(1);  y = x * 3")
    graph, y = record(step)
    first, box["y"], box["x"] = box["x"], torch.zeros(2), torch.full((2,), 100.0)
    graph.replay()
    print(f"the name x is bound to a tensor of 100s: a replay gives {y.tolist()}")
    first.fill_(5.0)
    graph.replay()
    print(f"the first x is filled with 5s:           a replay gives {y.tolist()}")
    print(f"calls: {len(calls)}; y, bound to zeros after the recording: {box['y'].tolist()}")


def refused() -> None:
    """What a capture refuses, in the stand-in's words."""
    x = torch.arange(3.0)
    steps: dict[str, Callable[[], object]] = {
        "if x.sum() > 2:": lambda: bool(x.sum() > 2),
        "int(x.argmax())": lambda: int(x.argmax()),
        "x[x > 1]": lambda: x[x > 1],
        "torch.tensor([1, 2], device=x.device)": lambda: torch.tensor([1, 2], device=x.device),
    }
    for name, step in steps.items():
        try:
            record(step)
        except CaptureRefused as error:
            reason = str(error).partition(": ")[2].removesuffix(", and the host would wait for the device")
            print(f"{name:41}{reason}")


def addresses() -> None:
    """One word after the other through a recorded step of small.py, handed over in two ways."""
    file = small()
    words = ["They", "When", "I"]
    ids = [encode(name)[0] for name in words]
    file.position.zero_()
    graph, _ = record(partial(file.step, 1))
    buffer, rows = file.token, []
    for new_tensor in (True, False):
        buffer.zero_()
        for id in ids:
            file.position.zero_()
            if new_tensor:
                file.token = torch.tensor([id, 0, 0, 0])
            else:
                buffer[:1].copy_(torch.tensor([id]))
            read = int(buffer[0])
            graph.replay()
            rows.append(f"{word(read):8} -> {word(int(buffer[0])):8}")
        file.token = buffer
    print(f"{'fed':8} {'as a new tensor':22} {'copied into the old one'}")
    for name, fresh, copied in zip(words, rows[:3], rows[3:], strict=True):
        print(f'"{name}"'.ljust(9) + f"{fresh:23}{copied}")


def position_baked() -> None:
    """The position embedding by a Python number, as it was at the capture."""
    _, texts = right()
    with run.position_is_a_number():
        told = run.told(run.llm())
    for at in (0, 2):
        show("right", texts[at])
        show("position is a number", told[at])


def key_too_short() -> None:
    """The dense engine, reading up to multiples of 16, with a key that does not say how far."""
    good = run.told(run.llm("dense-graph", read_multiple=16))
    with run.key_without_length():
        bad = run.told(run.llm("dense-graph", read_multiple=16))
    show("right", good[1])
    show("key without the length", bad[1])


def keys() -> None:
    """The dict after a generation whose rows end one after the other, and what each graph was replayed for."""
    made = run.llm("dense-graph", read_multiple=32)
    kinds = ((40, 0.0), (9, 0.0), (20, 0.9))  # new tokens and temperature of each row
    params = [SamplingParams(temperature=heat, max_tokens=n, seed=5, ignore_eos=True) for n, heat in kinds]
    made.generate(list(run.PROMPTS), params)  # captures
    with run.counted(made) as counts:
        made.generate(list(run.PROMPTS), params)
    print("rows  columns  reads  sampler   replays")
    for key in sorted(made.core.graphs, key=lambda key: (-key.columns, key.longest, -key.rows)):
        assert isinstance(key, Key)
        print(f"{key.rows:>4}{key.columns:>9}{key.longest:>7}  {key.sampler.__name__:8}{counts.get(key, 0):>9}")


def noise_baked() -> None:
    """Sampled rows, and the same with noise that is made from the number of the capture's step."""
    params = run.SAMPLED
    good, wrong = run.llm(), run.llm()
    run.noise_is_a_number(wrong)
    for label, made in (("right", good), ("noise baked", wrong)):
        show(label, run.told(made, params)[1])


def warmed() -> None:
    """A text of small.py, with the warm-up of a capture in the middle of it."""
    file, texts = small(), []
    for warm_at in (None, 8):
        ids = encode(run.PROMPTS[0])
        file.position.zero_()
        for at in range(27):
            if at == warm_at:
                file.step(1)
            file.token[:1] = ids[at]
            file.step(1)
            if len(ids) == at + 1:
                ids.append(int(file.token[0]))
        texts.append(decode(ids))
    show("captured before", texts[0])
    show("in the middle", texts[1])


@torch.inference_mode()
def nobody() -> None:
    """Three live rows in the graph of four, after some steps: what the captured step computes with."""
    made = run.llm()
    engine, requests = made.core, made.requests(list(run.PROMPTS), run.GREEDY)
    for _ in engine.generate(requests):
        pass  # captures
    steps = engine.generate(requests)
    for _ in range(6):
        next(steps)
    rows = engine.state.at(slice(0, 4))
    plan = engine.cache.plan(Rows(rows.token, rows.position, rows.row, rows.row, 1, 63))
    fed, slots = rows.integers.clone(), plan.places.tolist()
    engine.decode(3, 64, engine.samplers.greedy)
    print(f"{'row':5}{'live':>6}{'token':>12}{'position':>10}{'writes to slot':>16}{'reads slots':>13}{'keeps':>12}")
    for row in range(4):
        token, position, _, live = fed[:4, row].tolist()
        cells = f"{live:>6}{word(token):>12}{position:>10}{slots[row]:>16}{int(plan.lengths[row]):>13}"
        print(f"{row:<5}{cells}{word(int(rows.token[row])):>12}")
    steps.close()


def nobody_moves_on() -> None:
    """The same where rows of nobody advance like any other: two generations."""
    with run.nobody_advances():
        made = run.llm(max_len=32)
        for turn in ("first", "second"):
            try:
                told = run.told(made)
                show(f"{turn} generation", told[0])
            except (IndexError, RuntimeError):
                print(f"{f'{turn} generation':24}an index is out of bounds: row 3 is past the end of its table")


def ladders() -> None:
    """Ladders by their arithmetic: graphs, the share of padding where each batch size comes once, and their ends."""
    print(f"{'':24}{'to 64 rows':>22}{'to 256 rows':>22}{'of 100 rows':>22}")
    print(f"{'':24}" + f"{'graphs':>12}{'padded':>10}" * 2 + f"{'the largest':>22}")
    for name, sizes in LADDERS.items():
        cells = ""
        for top in (64, 256):
            share = padded_share(list(sizes(top)), range(1, top + 1))
            cells += f"{len(sizes(top)):>12}{share:>10.1%}"
        print(f"{name:24}{cells}{max(sizes(100)):>22}")


def captures_today(rows: int) -> int:
    """What `warm_up` captures for the paged engine on a GPU: each shape for chapter 4's sampler and for penalties."""
    paged: Any = SimpleNamespace(tables=range(rows + 1), max_len=PRESETS["gpt2"].n_positions)
    return 2 * (len(CapturedRagged.shapes(paged, rows, PREFILL_TOKENS)) + len(ladder(rows)))


def kept() -> None:
    """A result that is kept over the next replay, as it is and as a copy."""
    file = small()
    file.position.zero_()
    file.token[0] = encode("There")[0]
    graph, _ = record(partial(file.step, 1))
    graph.replay()
    held, copied = file.token[:1].detach(), file.token[:1].clone()
    print(f"after the first replay    kept {word(int(held))}   copied {word(int(copied))}")
    graph.replay()
    print(f"after the second replay   kept {word(int(held))}   copied {word(int(copied))}")


def found() -> None:
    """Four ways to record a step wrongly, and what four tests say of each; `finds` where one fails."""
    _, oracle = right()
    lies = {
        "attention escapes": ("paged-graph", run.attention_escapes),
        "key without length": ("dense-graph", run.key_without_length),
        "position a number": ("paged-graph", run.position_is_a_number),
        "padding moves on": ("paged-graph", run.nobody_advances),
    }
    print(f"{'':22}{'it runs':>10}{'5 tokens':>11}{'one text':>11}{'three texts':>14}{'three, twice':>15}")
    for name, (engine, lie) in lies.items():
        with lie():
            made = run.llm(engine, read_multiple=16 if engine == "dense-graph" else None, max_len=32)
            last = run.PROMPTS[2:]
            (one,) = run.told(made, prompts=last)
            tests = (
                cut(one, last[0], 5) != cut(oracle[2], last[0], 5),
                one != oracle[2],
                run.told(made) != oracle,
                breaks(made, oracle),
            )
        cells = zip(tests, (11, 11, 14, 15), strict=True)
        print(f"{name:22}{'–':>10}" + "".join(f"{'finds' if test else '–':>{width}}" for test, width in cells))


def cut(text: str, prompt: str, tokens: int) -> str:
    """The prompt and the first new tokens of a text."""
    return decode(encode(text)[: len(encode(prompt)) + tokens])


def breaks(made: Any, oracle: list[str]) -> bool:
    """Whether one more generation differs, or fails."""
    try:
        return bool(run.told(made) != oracle)
    except (IndexError, RuntimeError):
        return True


NUMBERS: dict[str, Callable[[], str]] = {
    **measured.NUMBERS,
    "prefill tokens": lambda: f"{PREFILL_TOKENS:,}",
    "captures today": lambda: f"{captures_today(512)}",
}


if __name__ == "__main__":
    print_blocks(Path(__file__))
