"""What `python -m bench one-kernel` writes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from nanobench.core.records import Record, ResultsFile, Spread

NEW = 512  # tokens of a text


class MatrixTime(Record):
    """A product of so many rows with a matrix that no cache holds."""

    matrix: str
    weight_bytes: int
    rows: int
    seconds: Spread


class NodeTime(Record):
    """A kernel that does nothing, in a graph of many: `early` ones begin before the one ahead has ended."""

    early: bool
    seconds: Spread


class Exchange(Record):
    """Every program gives a number away and gets the sum of all."""

    kind: str
    programs: int
    seconds: Spread


class StepTime(Record):
    """One row's token. short: of the largest logit, how far the worst choice is below float32's; None where wrong."""

    arm: str
    sampled: bool
    seconds: Spread
    same: int | None
    short: float | None


class Generated(Record):
    """Texts of an engine, which takes turns with the others. prompt_tokens above 1: few tokens behind a long prompt.

    tokens_per_s: of whole texts; behind a long prompt by the median gap between a row's tokens.
    """

    engine: str
    rows: int
    prompt_tokens: int
    sampled: bool
    tokens_per_s: Spread


class OneKernelReport(ResultsFile):
    """One run of `python -m bench one-kernel`."""

    kind: Literal["one-kernel"] = "one-kernel"
    model: str
    new_tokens: int
    copy_bytes_per_s: float
    matrix: tuple[MatrixTime, ...] = ()
    nodes: tuple[NodeTime, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    steps: tuple[StepTime, ...] = ()
    generated: tuple[Generated, ...] = ()
    timed: dict[str, dict[str, float]] = Field(default_factory=dict)  # as the engine's own `ChoiceStats.timed`
