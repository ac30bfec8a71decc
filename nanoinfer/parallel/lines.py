"""The lines of a file of prompts, JSON Lines or Parquet, and what the result of each depends on. Chapter 8."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from nanoinfer.records import MAX_SEED
from nanoinfer.requests import SamplingParams

PARAMS = tuple(field.name for field in fields(SamplingParams))


class Line(NamedTuple):
    """One prompt, with all that its result depends on."""

    id: str
    prompt: str | list[int]
    params: SamplingParams


def understood(number: int, record: Any, params: SamplingParams, seed: int) -> Line:
    """What line `number`, from 1, asks for. ValueError where nobody can tell.

    record: a text, or an object with "prompt" (text or token ids) and, as far as they are given, "id" (text or a whole
    number; else the line's number) and fields of `SamplingParams`. params: where it does not say otherwise. seed: of
    the run.
    """
    record = {"prompt": record} if isinstance(record, str) else record
    if not isinstance(record, dict) or not isinstance(record.get("prompt"), str | list):
        raise ValueError(f'line {number} must be a text, or an object with "prompt", not {record!r:.80}')
    given = {name: value for name, value in record.items() if name not in ("id", "prompt") and value is not None}
    if unknown := [name for name in given if name not in PARAMS]:
        raise ValueError(f"line {number} has a field {unknown[0]!r}: known are id, prompt, {', '.join(PARAMS)}")
    name = record.get("id", number)
    if type(name) not in (str, int):
        raise ValueError(f"line {number} must have a text or a whole number as id, not {name!r:.80}")
    try:
        str(name).encode()
        params = replace(params, **({"seed": line_seed(seed, str(name))} | given))
    except UnicodeEncodeError:
        raise ValueError(f"line {number} must have an id that UTF-8 can hold, not {name!r:.80}") from None
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from None
    return Line(str(name), record["prompt"], params)


def line_seed(seed: int, name: str) -> int:
    """The seed of the line with this id, from 0 to 2^63 - 1."""
    return int.from_bytes(blake2b(f"{seed} {name}".encode(), digest_size=8).digest(), "big") & MAX_SEED


def numbered(source: Path, start: int = 0, offset: int = 0) -> Iterator[tuple[int, int, Any]]:
    """The lines of a file from number `start` on: where each is, its number from 1, and what it holds.

    offset: where line `start` is: its first byte, or the row group of a Parquet file; what is ahead of it is not read.
    ValueError for what is not JSON.
    """
    if source.suffix == ".parquet":
        yield from _rows(source, start, offset)
        return
    with source.open("rb") as file:
        file.seek(offset)
        for number, text in enumerate(file, start + 1):
            try:
                yield offset, number, json.loads(text.decode("utf-8-sig" if number == 1 else "utf-8"))
            except (ValueError, RecursionError):  # of the text's encoding too
                raise ValueError(f"line {number} is not JSON in UTF-8: {text!r:.80}") from None
            offset += len(text)


def _rows(source: Path, start: int, first: int) -> Iterator[tuple[int, int, Any]]:
    from pyarrow.parquet import ParquetFile  # comes with the extra `ray`

    try:
        file = ParquetFile(source)
    except ValueError as error:
        raise ValueError(f"{source} is no Parquet file: {error}") from None
    number = sum(file.metadata.row_group(group).num_rows for group in range(first))
    for group in range(first, file.num_row_groups):
        for record in file.read_row_group(group).to_pylist():
            number += 1
            if number > start:
                yield group, number, record
