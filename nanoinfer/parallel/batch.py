"""A file of prompts into files of results, by shards that are written whole or not at all. Chapter 8.

A shard is named by its range of lines, written under another name and then renamed: a run that was ended at any moment
goes on with the shards that are missing. What comes of a line depends on the line and the run's seed alone, so that
nobody can tell from the results how the work was cut, or who did which part.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields, replace
from hashlib import blake2b, sha256
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from nanoinfer.requests import MAX_SEED, Completion, SamplingParams
from nanoinfer.text.prompts import RequestMaker

if TYPE_CHECKING:
    from nanoinfer.llm import LLM

RUN, VERSION = "run.json", 1  # what the results in a folder are of
PARAMS = tuple(field.name for field in fields(SamplingParams))


class Shard(NamedTuple):
    """Lines start to stop - 1 of the input, counted from 0."""

    start: int
    stop: int

    @property
    def name(self) -> str:
        return f"{self.start:010}-{self.stop:010}.jsonl"


class Line(NamedTuple):
    """One prompt of the input, with all that its result depends on."""

    id: str
    prompt: str | list[int]
    params: SamplingParams


@dataclass(frozen=True)
class Job:
    """What is to be done, and where its results go.

    source: JSON Lines in UTF-8, or Parquet. A line is a text, or an object with "prompt" (text or token ids) and, as
    far as they are given, "id" (text or a whole number; else the line's number from 1) and fields of `SamplingParams`.
    params: of lines that do not say otherwise. lines: how many there are. shard_lines: lines a shard. offsets: where in
    the file each shard begins, in bytes.
    """

    source: Path
    out: Path
    params: SamplingParams
    seed: int
    shard_lines: int
    lines: int = 0
    offsets: tuple[int, ...] = ()

    def missing(self) -> list[Shard]:
        """The shards that have no results yet."""
        starts = range(0, self.lines, self.shard_lines)
        shards = [Shard(start, min(start + self.shard_lines, self.lines)) for start in starts]
        return [shard for shard in shards if not (self.out / shard.name).exists()]

    def read(self, shard: Shard) -> list[Line]:
        """The lines of a shard. ValueError for one that cannot be understood."""
        offset = self.offsets[shard.start // self.shard_lines]
        return [self.line(*each) for _, *each in numbered(self.source, shard.start, shard.stop, offset)]

    def line(self, number: int, record: Any) -> Line:
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
            params = replace(self.params, **({"seed": line_seed(self.seed, str(name))} | given))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        return Line(str(name), record["prompt"], params)

    def write(self, shard: Shard, results: Iterator[str]) -> None:
        """Put the results of a shard into their place, all at once."""
        # A name of its own: a worker that was taken for dead may still be writing the same shard.
        beside = self.out / f".{shard.name}.{secrets.token_hex(4)}.tmp"
        with beside.open("w", encoding="ascii", newline="\n") as file:
            file.writelines(results)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, self.out / shard.name)

    def run(self, shard: Shard, llm: LLM) -> int:
        """Compute one shard; returns how many tokens were generated."""
        lines = self.read(shard)
        done = llm.generate([line.prompt for line in lines], [line.params for line in lines])
        self.write(shard, (result(lines[each.index], each) for each in done))
        return sum(len(each.token_ids) for each in done)

    def clean(self) -> None:
        """Remove what runs that were ended have left; call it when no shard is missing."""
        for left in self.out.glob(".*.tmp"):
            left.unlink(missing_ok=True)


def line_seed(seed: int, name: str) -> int:
    """The seed of the line with this id, from 0 to 2^63 - 1."""
    return int.from_bytes(blake2b(f"{seed} {name}".encode(), digest_size=8).digest(), "big") & MAX_SEED


def result(line: Line, done: Completion) -> str:
    """One line of results. No times: the same line gives the same bytes."""
    record = {"id": line.id} | {name: value for name, value in asdict(done).items() if value is not None}
    for name in ("index", "prompt_token_ids", "metrics"):
        del record[name]
    return json.dumps(record, allow_nan=False) + "\n"


def numbered(source: Path, start: int = 0, stop: int | None = None, offset: int = 0) -> Iterator[tuple[int, int, Any]]:
    """Lines start to stop - 1 of a file: where in the file each begins, its number from 1, and what it holds.

    offset: where line `start` begins, in bytes; Parquet has no use for it. ValueError for what is not JSON.
    """
    if source.suffix == ".parquet":
        yield from ((0, number, record) for number, record in _rows(source, start, stop))
        return
    with source.open("rb") as file:
        file.seek(offset)
        for number, text in enumerate(file, start + 1):
            if stop is not None and number > stop:
                return
            try:
                yield offset, number, json.loads(text.decode("utf-8-sig" if number == 1 else "utf-8"))
            except ValueError:  # of the text's encoding too
                raise ValueError(f"line {number} is not JSON in UTF-8: {text!r:.80}") from None
            offset += len(text)


def _rows(source: Path, start: int, stop: int | None) -> Iterator[tuple[int, Any]]:
    """Of a Parquet file: only the row groups that hold the lines are read."""
    from pyarrow.parquet import ParquetFile  # comes with the extra `ray`

    file, number = ParquetFile(source), 0
    for group in range(file.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if number + rows > start and (stop is None or number < stop):
            for i, record in enumerate(file.read_row_group(group).to_pylist(), number):
                if i >= start and (stop is None or i < stop):
                    yield i + 1, record
        number += rows


def request_maker(model: str, revision: str | None, max_len: int | None) -> RequestMaker:
    """What checks the prompts for a model, whose weights are not loaded for it. ValueError for an unknown model."""
    from nanoinfer.model.hub import locate, random_config
    from nanoinfer.model.weights import read_config
    from nanoinfer.text.tokenizer import gpt2_tokenizer

    config = random_config(model) if model.startswith("random:") else read_config(locate(model, revision)[0])
    if max_len is not None and max_len > config.n_positions:
        raise ValueError(f"max_len must be at most the model's context of {config.n_positions} tokens, not {max_len}")
    context = max_len or config.n_positions
    return RequestMaker(gpt2_tokenizer(), context, config.vocab_size, Random(0), config.end_of_text)


def open_job(
    source: Path, out: Path, params: SamplingParams, shard_lines: int, maker: RequestMaker, settings: dict[str, Any]
) -> Job:
    """The job of this input, begun or gone on with: its folder is made, and says what its results are of.

    Every line is checked before anything is computed. A seed that is not given is that of the run that is gone on with,
    or a new one. settings: what else the results depend on, such as the model's name. ValueError for a bad line, an id
    that comes twice, or a folder with the results of another run.
    """
    place = out / RUN
    before = json.loads(place.read_text(encoding="utf-8")) if place.exists() else None
    seed = params.seed if params.seed is not None else before["seed"] if before else secrets.randbits(32)
    job = Job(source, out, replace(params, seed=None), seed, shard_lines)
    ids: dict[str, int] = {}
    offsets = []
    for offset, number, record in numbered(source):
        line = job.line(number, record)
        if line.id in ids:
            raise ValueError(f"line {number} has the id {line.id!r}, which line {ids[line.id]} has too")
        ids[line.id] = number
        try:
            maker.requests([line.prompt], line.params)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        if number % shard_lines == 1 % shard_lines:
            offsets.append(offset)
    if not ids:
        raise ValueError(f"{source} holds no prompt")
    digest = sha256()
    with source.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    now = {
        "schema": "nanoinfer.batch",
        "schema_version": VERSION,
        "input_sha256": digest.hexdigest(),
        "lines": len(ids),
    }
    now |= {"shard_lines": shard_lines, "seed": seed, **settings}
    now |= {"params": asdict(job.params)}
    now = json.loads(json.dumps(now))  # tuples become lists, as in the file
    if before is not None and before != now:
        what = next(name for name in now if before.get(name) != now[name])
        raise ValueError(
            f"{out} holds results of another run: its {what} was {before.get(what)}, not {now[what]};"
            " give another folder, or what was given then"
        )
    if before is None:
        if out.exists() and any(out.iterdir()):
            raise ValueError(f"{out} is not empty, and has no {RUN} of a run that could be gone on with")
        out.mkdir(parents=True, exist_ok=True)
        beside = out / f".{RUN}.tmp"
        beside.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
        os.replace(beside, place)
    return replace(job, lines=len(ids), offsets=tuple(offsets))


def run_here(job: Job, shards: list[Shard], llm: LLM, on_done: Callable[[Shard, int], None]) -> None:
    """Compute these shards here. on_done: called after each, with how many tokens it has.

    Two at a time, of each engine: while the last rows of one go on, those of the next fill the batch.
    """
    with ThreadPoolExecutor(2 * llm.config.replicas) as pool:
        try:
            running = {pool.submit(job.run, shard, llm): shard for shard in shards}
            for done in as_completed(running):
                on_done(running[done], done.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            llm.close()  # those that run give up
            raise
