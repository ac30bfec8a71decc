"""Chapter 8's numbers from the results files of `bench ranks` and `bench replicas`, on two GPUs of one host.

`python -m bench ranks --out bench/results/h200-ranks.json` makes the first, and `replicas` the other one likewise;
`python -m nanobook draw 08-parallel` and `python -m nanobook prose` then make figures and text of them. What a step has
to read is computed, not measured.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from math import prod

from nanobench.core.records import Report
from nanobench.micro.ranks import Ranked, RanksReport
from nanobench.micro.replicas import ReplicasReport
from nanobench.report.values import factor, seconds
from nanobook.examples import only, results
from nanoinfer.model.config import PRESETS, ModelConfig
from nanoinfer.parallel.shard import UNIT, Shard

XL = "random:gpt2-xl"
BYTES = 2  # of a number
KINDS = {"one-shot": "one-shot", "two-shot": "two-shot", "norm alone": "a norm", "nccl and norm": "NCCL, norm",
         "in one kernel": "one kernel"}  # fmt: skip


report = partial(results, RanksReport, "h200-ranks", "ranks")


@cache
def replicas(machine: str) -> dict[int, float]:
    """Tokens/s of two engines over one's, by how many requests came at once. machine: h100 or h200."""
    known = results(ReplicasReport, f"{machine}-replicas", "replicas").cases
    rates = {(one.requests, one.replicas): one.tokens_per_s.median for one in known}
    return {requests: rates[requests, 2] / rates[requests, 1] for requests, count in rates if count == 2}


def copy_bytes_per_s() -> float:
    """How fast one of these GPUs copies memory, by the throughput runs of the book."""
    return results(Report, "h200-xl", "run --preset xl").copy_bytes_per_s


def short(model: str) -> str:
    """Its name in a table."""
    return model.removeprefix("random:")


def shape(model: str) -> ModelConfig:
    """Of a random model, by its name."""
    return PRESETS[short(model)]


# What a step has to read.


def step_bytes(config: ModelConfig, size: int, rows: int, context: float) -> dict[str, float]:
    """What the first of so many ranks reads in a step: its layers, its part of the head, its part of the cache."""
    shard = Shard(0, size)
    own, ids = shard.config(config), shard.vocab(config)
    shapes = own.parameter_shapes()
    layers = sum(prod(shape) for name, shape in shapes.items() if name.startswith("h.") or "ln_f" in name)
    return {
        "layers": BYTES * layers,
        "head": BYTES * (ids.stop - ids.start) * config.n_embd,
        "KV cache": BYTES * rows * context * own.kv_numbers,
    }


def limit_s(config: ModelConfig, size: int, rows: int, context: float) -> float:
    """The least time of a step: these bytes at the speed at which one GPU copies memory."""
    return sum(step_bytes(config, size, rows, context).values()) / copy_bytes_per_s()


def halved() -> None:
    """Bytes that a step of one sequence reads, on one GPU and on the first of two."""
    print(f"{'gpt2-xl, 512 tokens':30}{'one GPU':>12}{'larger of two':>16}")
    config = PRESETS["gpt2-xl"]
    one, two = (step_bytes(config, size, 1, 512) for size in (1, 2))
    for name in one:
        print(f"{name:30}{_megabytes(one[name]):>12}{_megabytes(two[name]):>16}")
    print(f"{'a step reads':30}{_megabytes(sum(one.values())):>12}{_megabytes(sum(two.values())):>16}")
    print(f"{'at the speed of memory':30}", f"{seconds(limit_s(config, 1, 1, 512)):>12}",
          f"{seconds(limit_s(config, 2, 1, 512)):>16}", sep="")  # fmt: skip


def _megabytes(count: float) -> str:
    return f"{count / 1e6:,.0f} MB"


# What an all-reduce takes.


def reduce_rows() -> list[int]:
    """Rows that were summed."""
    return sorted({one.rows for one in report().reduces})


def reduce_s(kind: str, rows: int) -> float:
    """Seconds of one all-reduce, inside a captured graph."""
    return only(report().reduces, kind=kind, rows=rows).seconds.median


def sum_s(kind: str, rows: int) -> float:
    """Seconds that a sum adds to the norm that follows it."""
    return reduce_s(kind, rows) - reduce_s("norm alone", rows)


def width() -> int:
    """Of the rows."""
    (found,) = {one.width for one in report().reduces}
    return found


def kinds() -> list[str]:
    """Ways that were measured."""
    return [kind for kind in KINDS if any(one.kind == kind for one in report().reduces)]


def reduces() -> None:
    """A sum of rows over two GPUs, by each way."""
    print(f"{'sequences':>9}{'bytes':>12}", *(f"{KINDS[kind]:>12}" for kind in kinds()), sep="")
    for rows in reduce_rows():
        times = [seconds(reduce_s(kind, rows)) for kind in kinds()]
        print(f"{rows:>9}{rows * width() * BYTES:>12,}", *(f"{time:>12}" for time in times), sep="")


# Where two GPUs overtake one.


def models() -> list[str]:
    """In the order of the file."""
    return list(dict.fromkeys(one.model for one in report().cases))


def rows_measured(model: str) -> list[int]:
    """Rows at once, from the fewest."""
    return sorted({one.rows for one in report().cases if one.model == model})


def case(model: str, ranks: int, rows: int) -> Ranked:
    """One case."""
    return only(report().cases, model=model, ranks=ranks, rows=rows)


def step_s(model: str, ranks: int, rows: int) -> float:
    """Seconds from a row's token to its next."""
    return case(model, ranks, rows).step_s.median


def gain(model: str, rows: int) -> float:
    """How many times as fast a step is on two."""
    return step_s(model, 1, rows) / step_s(model, 2, rows)


def added_s(model: str, rows: int) -> float:
    """What comes on with a second GPU: two sums a layer in the kernel of a norm, and one exchange of rows' best ids."""
    near = min(reduce_rows(), key=lambda known: abs(known - rows))
    return 2 * shape(model).n_layer * sum_s("in one kernel", near) + sum_s("nccl and norm", near)


def predicted(model: str, rows: int, all_halves: bool) -> float:
    """How many times as fast a step on two GPUs ought to be, by the formula.

    all_halves: all of the step takes half the time; else no more comes off than the bytes that a rank need not read
    take at the full speed of memory.
    """
    config, context, one = shape(model), report().prompt_tokens + report().new_tokens / 2, step_s(model, 1, rows)
    spared = one / 2 if all_halves else limit_s(config, 1, rows, context) - limit_s(config, 2, rows, context)
    return one / (one - spared + added_s(model, rows))


def overtakes() -> None:
    """Steps on one GPU and on two, and the two ends of the formula."""
    print(f"{'':11}{'sequences':>9}{'one GPU':>9}{'two':>9}{'over half':>11}{'sums':>8}{'bytes halve':>13}"
          f"{'all halves':>12}{'measured':>10}")  # fmt: skip
    for model in models():
        for rows in rows_measured(model):
            one, two = (seconds(step_s(model, ranks, rows)) for ranks in (1, 2))
            over, added = seconds(over_half_s(model, rows)), seconds(added_s(model, rows))
            ends = [factor(predicted(model, rows, all_halves)) for all_halves in (False, True)]
            print(f"{short(model):11}{rows:>9}{one:>9}{two:>9}{over:>11}{added:>8}{ends[0]:>13}{ends[1]:>12}"
                  f"{factor(gain(model, rows)):>10}")  # fmt: skip


def over_half_s(model: str, rows: int) -> float:
    """By how much a step on two takes longer than half of one GPU's."""
    return step_s(model, 2, rows) - step_s(model, 1, rows) / 2


def _of_it_sums() -> list[float]:
    """Which part of that the sums are, by their own measurement, every case."""
    return [added_s(model, rows) / over_half_s(model, rows) for model in models() for rows in rows_measured(model)]


def one_gpu() -> None:
    """Steps on one GPU."""
    print(f"{'sequences':14}", *(f"{rows:>10}" for rows in rows_measured(XL)), sep="")
    for model in models():
        print(
            f"{short(model):14}", *(f"{seconds(step_s(model, 1, rows)):>10}" for rows in rows_measured(model)), sep=""
        )


# Tensor against data parallelism.


def tokens_per_s(model: str, ranks: int, rows: int) -> float:
    """From one step to the next, of all rows together."""
    return rows / step_s(model, ranks, rows)


def either() -> None:
    """One model on two GPUs, and a model on each: the first as measured, the second from one GPU's steps."""
    titles = [f"{way:>18}{'token gap':>13}" for way in ("one model on two", "a model on each")]
    print(f"{'':12}{'of a model':>13}", *titles, sep="")
    for model in models():
        for rows in rows_measured(model):
            cells = [
                (rate, seconds(step_s(model, ranks, rows)))
                for rate, ranks in ((tokens_per_s(model, 2, rows), 2), (2 * tokens_per_s(model, 1, rows), 1))
            ]
            told = "".join(f"{f'{rate:,.0f} tok/s':>18}{wait:>13}" for rate, wait in cells)
            print(f"{short(model):12}{rows:>13}{told}")


def between_s(model: str, rows: float) -> float:
    """A step of one GPU with so many rows, on a straight line between the measured ones next to it."""
    known = rows_measured(model)
    low, high = max(n for n in known if n <= rows), min(n for n in known if n >= rows)
    share = (rows - low) / (high - low) if high > low else 0.0
    return step_s(model, 1, low) + share * (step_s(model, 1, high) - step_s(model, 1, low))


def readers() -> None:
    """gpt2-xl with the same sequences in all: the model cut in two, as measured, and two models, from `between_s`."""
    print(f"{'sequences':>9}{'one model on two':>24}{'a model on each':>26}")
    for rows in rows_measured(XL)[1:]:
        steps = step_s(XL, 2, rows), between_s(XL, rows / 2)
        cells = [f"{seconds(step)}, {rows / step:,.0f} tok/s" for step in steps]
        print(f"{rows:>9}{cells[0]:>24}{cells[1]:>26}")


def _more() -> list[float]:
    """Tokens of two models over those of one model on two GPUs, every case."""
    return [2 * tokens_per_s(model, 1, rows) / tokens_per_s(model, 2, rows)
            for model in models() for rows in rows_measured(model)]  # fmt: skip


def _spared(name: str) -> float:
    """What a step of one row saves at the speed of memory, as in section 1."""
    return limit_s(PRESETS[name], 1, 1, 512) - limit_s(PRESETS[name], 2, 1, 512)


def _inbox_rows() -> int:
    """Of a step that sums in its norms."""
    from nanoinfer.parallel.inbox import ROWS  # not every torch has what it imports

    return ROWS


def _few() -> int:
    return reduce_rows()[0]


def _many() -> int:
    return reduce_rows()[-1]


NUMBERS: dict[str, Callable[[], str]] = {
    "reduce": lambda: seconds(sum_s("nccl and norm", _few())),
    "reduce many": lambda: factor(sum_s("nccl and norm", _many()) / sum_s("nccl and norm", _few())),
    "reduce one kernel": lambda: seconds(sum_s("in one kernel", _few())),
    "inbox rows": lambda: str(_inbox_rows()),
    "spared": lambda: seconds(_spared("gpt2-xl")),
    "spared gpt2": lambda: seconds(_spared("gpt2")),
    "added gpt2": lambda: seconds(added_s("gpt2", 1)),
    "prompt": lambda: str(report().prompt_tokens),
    "new": lambda: str(report().new_tokens),
    "width": lambda: f"{width():,}",
    "sums least": lambda: f"{100 * min(_of_it_sums()):.0f}%",
    "sums most": lambda: f"{100 * max(_of_it_sums()):.0f}%",
    "free sums": lambda: factor(step_s(XL, 1, 1) / (step_s(XL, 2, 1) - added_s(XL, 1))),
    "xl step": lambda: seconds(step_s(XL, 1, 1)),
    "near": lambda: f"{100 * max(abs(between_s(m, 32) / step_s(m, 2, 64) - 1) for m in models()):.1f}%",
    "unit": lambda: str(UNIT),
    "ids": lambda: f"{PRESETS['gpt2-xl'].vocab_size:,}",
    "no ids": lambda: str(2 * Shard(0, 2).vocab_width(PRESETS["gpt2-xl"]) - PRESETS["gpt2-xl"].vocab_size),
    "layers xl": lambda: str(shape(XL).n_layer),
    "rows most": lambda: str(_many()),
    "reduces xl": lambda: seconds(2 * shape(XL).n_layer * sum_s("nccl and norm", _few())),
    "one kernel xl": lambda: seconds(2 * shape(XL).n_layer * sum_s("in one kernel", _few())),
    "gain most": lambda: factor(max(gain(model, rows) for model in models() for rows in rows_measured(model))),
    "gain least": lambda: factor(min(gain(model, rows) for model in models() for rows in rows_measured(model))),
    "xl one": lambda: factor(gain(XL, 1)),
    "xl many": lambda: factor(gain(XL, rows_measured(XL)[-1])),
    "both most": lambda: factor(max(_more())),
    "both least": lambda: factor(min(_more())),
    "replicas few": lambda: factor(replicas("h200")[1000]),
    "replicas many": lambda: factor(replicas("h200")[4000]),
    "replicas few, h100": lambda: factor(replicas("h100")[1000]),
    "replicas many, h100": lambda: factor(replicas("h100")[4000]),
}
