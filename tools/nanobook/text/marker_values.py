"""Looks up the words of a marker in a results file: `h200-gpu dense B=64 tok/s` is `21,899 tok/s`.

The file's name without `.json` comes first, or `rungs` for the run that all chapters quote; then what names the case,
and the quantity last. An engine or a batch size written as `a/b` asks for the ratio of the two. One of times or speeds
that the repeats do not tell from 1 is refused, unless `between` stands behind, for its interval. What the file has only
one of, such as its model, can be left out.
If the first word is a chapter, as in `01-naive tied`, the number comes from its example.py. `lines 2` are those that
chapter 2 adds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from nanobench.core.records import Report, Result
from nanobench.report import values
from nanobench.report.intervals import interval, verdict
from nanobench.systems import OTHERS
from nanobook.examples import EXAMPLE, number
from nanobook.syllabus import syllabus
from nanobook.text.ledger import RUNGS

RUNGS_RUN = "h200-gpu"  # every engine and peer, one run on one machine: what the pages call `rungs`
QUANTITIES: dict[str, tuple[Callable[[Result], float | None], Callable[[float], str]]] = {
    "tok/s": (lambda r: r.tokens_per_s, values.rate),
    "step": (lambda r: r.case.batch / r.tokens_per_s if r.tokens_per_s else None, values.seconds),
    "ttft": (lambda r: r.ttft_s.median if r.ttft_s else None, values.seconds),
    "memory": (values.case_bytes, values.size),
    "launches": (lambda r: r.launches_per_step, lambda v: f"{v:.0f} launches"),
    "first": (lambda r: r.first_s, values.seconds),
}
SPEEDS = {"tok/s": "tok/s", "step": "tok/s", "ttft": "TTFT"}  # quantities whose ratio has an interval
KEYS = {"B": "batch", "batch": "batch", "prompt": "prompt_tokens", "new": "new_tokens", "model": "model"}


def value(words: str, folder: Path) -> str:
    """The value that a marker names, as the text prints it. ValueError with one sentence if it names nothing."""
    first, *rest = words.split()
    example = folder.parent.parent / "chapters" / first / EXAMPLE
    if example.is_file():
        return number(example, rest)
    if first == "lines":
        return f"{syllabus().chapters[int(rest[0]) - 1].lines(rest[1:] == ['labs']):,}"
    report = load(first, folder)
    between = rest[-1:] == ["between"]
    rest = rest[:-1] if between else rest
    if not rest:
        raise ValueError(f"{words!r} names no quantity")
    quantity = rest[-1]
    if quantity == "copy" and len(rest) == 1:  # of the file
        return f"{values.significant(report.copy_bytes_per_s / 1e12)} TB/s"
    if quantity not in QUANTITIES:
        raise ValueError(f"{words!r}: quantity must be one of {', '.join(QUANTITIES)}, copy, not {quantity!r}")
    read, show = QUANTITIES[quantity]
    wanted = _wanted(rest[:-1], words)
    ratios = {key: text for key, text in wanted.items() if "/" in text and key in ("engine", "batch")}
    if not ratios:
        return show(_number(_one(report, wanted, words), read, words))
    if len(ratios) > 1:
        raise ValueError(f"{words!r} asks for two ratios at once")
    ((key, pair),) = ratios.items()
    top, bottom = (_one(report, {**wanted, key: part}, words) for part in pair.split("/", 1))
    ratio = _number(top, read, words) / _number(bottom, read, words)
    return values.factor(ratio) if quantity not in SPEEDS else _claimed(top, bottom, quantity, ratio, between, words)


def _claimed(top: Result, bottom: Result, quantity: str, ratio: float, between: bool, marker: str) -> str:
    """A ratio of times or speeds, or its interval. ValueError for one that the repeats do not tell from 1."""
    low, high = interval(top, bottom, SPEEDS[quantity])
    if quantity == "step":  # the inverse of tokens/s, but for the rows
        rows = top.case.batch / bottom.case.batch
        low, high = rows / high, rows / low
    span = f"{values.significant(low)} to {values.factor(high)}"
    if not between and verdict(low, high) == "even":
        raise ValueError(f"{marker!r}: the repeats do not carry {values.factor(ratio)}, only {span}; say `between`")
    return span if between else values.factor(ratio)


def load(stem: str, folder: Path) -> Report:
    """A results file by its name."""
    stem = RUNGS_RUN if stem == "rungs" else stem
    path = folder / f"{stem}.json"
    if not path.is_file():
        raise ValueError(f"no results file {stem}.json")
    return Report.load(path)


def _wanted(words: list[str], marker: str) -> dict[str, str]:
    """The fields of the case that a marker names: the engine as a bare word, the others as key=value."""
    found: dict[str, str] = {}
    for word in words:
        key, _, text = word.partition("=")
        if not text:
            key, text = "engine", word
            for part in text.split("/"):
                if part not in RUNGS and part not in OTHERS:
                    raise ValueError(f"{marker!r}: no engine is called {part!r}")
        elif key not in KEYS:
            raise ValueError(f"{marker!r}: key must be one of {', '.join(KEYS)}, not {key!r}")
        found[KEYS.get(key, key)] = text
    return found


def _one(report: Report, wanted: dict[str, str], marker: str) -> Result:
    """The one case that fits. ValueError if none or several do."""
    fits = [r for r in report.results if all(_fits(r, key, text) for key, text in wanted.items())]
    if len(fits) != 1:
        raise ValueError(f"{marker!r} fits {len(fits) or 'no'} cases of the file; it must fit one")
    return fits[0]


def _number(result: Result, read: Callable[[Result], float | None], marker: str) -> float:
    """The quantity of a case. ValueError if it has no number."""
    number = read(result)
    if number is None:
        raise ValueError(f"{marker!r}: the case has no such number ({result.status})")
    return number


def _fits(result: Result, key: str, text: str) -> bool:
    field = str(getattr(result.case, key))
    return text in ((field, field.removeprefix("random:")) if key == "model" else (field,))
