"""A file of prompts into files of results, by shards that are written whole or not at all. Chapter 8.

A shard is named by its range of lines, written under another name and then renamed: a run that was ended at any moment
goes on with the shards that are missing. What comes of a line depends on the line and the run's seed alone, so that
nobody can tell from the results how the work was cut, or who did which part.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from nanoinfer.parallel.lines import Line, numbered, understood
from nanoinfer.records import MAX_SEED
from nanoinfer.requests import Completion, SamplingParams, to_json
from nanoinfer.text.samples import SampleMaker

RUN, VERSION = "run.json", 1  # what the results in a folder are of


class Shard(NamedTuple):
    """Lines start to stop - 1 of the input, counted from 0."""

    start: int
    stop: int

    @property
    def name(self) -> str:
        return f"{self.start:010}-{self.stop:010}.jsonl"


@dataclass(frozen=True)
class Job:
    """What is to be done, and where its results go.

    source: JSON Lines in UTF-8, or Parquet; what a line may be, `lines.understood` says. params: of lines that do not
    say otherwise. lines: how many there are. shard_lines: lines a shard. offsets: where in the file each shard begins,
    in bytes.
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
        return [shard for shard in shards if not self._has(shard)]

    def _has(self, shard: Shard) -> bool:
        """Whether a shard has a result for each sample of its lines, in order: a copy may be cut off, or misnamed."""
        try:
            with (self.out / shard.name).open("rb") as file:
                ids = [json.loads(line)["id"] for line in file if line.endswith(b"\n")]
        except (FileNotFoundError, ValueError, LookupError, TypeError, RecursionError):
            return False
        return ids == [line.id for line in self.read(shard) for _ in range(line.params.n)]

    def read(self, shard: Shard) -> list[Line]:
        """The lines of a shard. ValueError for one that cannot be understood."""
        offset = self.offsets[shard.start // self.shard_lines]
        records = numbered(self.source, shard.start, shard.stop, offset)
        return [understood(number, record, self.params, self.seed) for _, number, record in records]

    def write(self, shard: Shard, results: Iterator[str]) -> None:
        """Put the results of a shard into their place, all at once."""
        try:
            write_whole(self.out / shard.name, results)
        except FileNotFoundError:  # another run in this folder has done every shard, and cleaned up
            if not (self.out / shard.name).exists():
                raise

    def run(self, shard: Shard, llm: Any) -> int:
        """Compute one shard; returns how many tokens were generated."""
        lines = self.read(shard)
        done = llm.generate([line.prompt for line in lines], [line.params for line in lines])
        self.write(shard, (result(lines[each.index], each) for each in done))
        return sum(len(each.token_ids) for each in done)

    def clean(self) -> None:
        """Remove what runs that were ended have left; call it when no shard is missing."""
        for left in self.out.glob(".*.tmp"):
            with suppress(OSError):  # Windows keeps what another run still writes
                left.unlink()


def write_whole(path: Path, lines: Iterable[str]) -> None:
    """Write a file so that it is there with all its lines or not at all. OSError names the file."""
    # A name of its own: a worker that was taken for dead may still be writing the same shard.
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with beside.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException as error:
        with suppress(OSError):
            beside.unlink()
        if isinstance(error, OSError):
            raise type(error)(error.errno, error.strerror, str(path)) from error  # a full disk names none
        raise


def result(line: Line, done: Completion) -> str:
    """One line of results. No times: the same line gives the same bytes."""
    record = {"id": line.id} | {name: value for name, value in asdict(done).items() if value is not None}
    for name in ("index", "prompt_token_ids", "metrics"):
        del record[name]
    return to_json(record) + "\n"


def request_maker(model: str, revision: str | None, max_len: int | None) -> SampleMaker:
    """What checks the prompts for a model, whose weights are not loaded for it. ValueError for an unknown model."""
    from nanoinfer.model.weights import open_model
    from nanoinfer.text.tokenizer import gpt2_tokenizer

    with open_model(model, 0, revision) as (config, _):
        pass
    if max_len is not None and max_len > config.n_positions:
        raise ValueError(f"max_len must be at most the model's context of {config.n_positions} tokens, not {max_len}")
    context = max_len or config.n_positions
    return SampleMaker(gpt2_tokenizer(), context, config.vocab_size, Random(0), config.end_of_text)


def open_job(
    source: Path, out: Path, params: SamplingParams, shard_lines: int, maker: SampleMaker, settings: dict[str, Any]
) -> Job:
    """The job of this input, begun or gone on with: its folder is made, and says what its results are of.

    Every line is checked before anything is computed. A seed that is not given is that of the run that is gone on with,
    or a new one. settings: what else the results depend on, such as the model's name. ValueError for a bad line, an id
    that comes twice, or a folder with the results of another run.
    """
    if source.exists() and not (source.is_file() or source.is_dir()):
        raise ValueError(f"{source} must be a regular file: it is read more than once")
    place = out / RUN
    before = _run_before(place) if place.exists() else None
    seed = params.seed if params.seed is not None else before["seed"] if before else secrets.randbits(32)
    job = Job(source, out, replace(params, seed=None), seed, shard_lines)
    lines, offsets = _checked(job, maker)
    now = {"schema": "nanoinfer.batch", "schema_version": VERSION, "input_sha256": _hash(source), "lines": lines}
    now |= {"shard_lines": shard_lines, "seed": seed, **settings, "params": asdict(job.params)}
    now = json.loads(json.dumps(now))  # tuples become lists, as in the file
    if before is None:
        if out.exists() and any(not re.fullmatch(rf"\.{re.escape(RUN)}\..*tmp", each.name) for each in out.iterdir()):
            raise ValueError(f"{out} is not empty, and has no {RUN} of a run that could be gone on with")
        out.mkdir(parents=True, exist_ok=True)
        write_whole(place, [json.dumps(now, indent=1), "\n"])
    elif before != now:
        what = next(name for name in [*now, *before] if before.get(name, "missing") != now.get(name, "missing"))
        if what not in now:
            raise ValueError(
                f"{place} has a field {what!r} of another version: use that version, or give another folder"
            )
        raise ValueError(
            f"{out} holds results of another run: its {what} was {before.get(what)}, not {now[what]};"
            " give another folder, or what was given then"
        )
    return replace(job, lines=lines, offsets=tuple(offsets))


def _run_before(place: Path) -> dict[str, Any]:
    """What a folder's results are of. ValueError, naming the file, where it cannot be told."""
    again = "give another folder, or put the file back as it was"
    try:
        before = json.loads(place.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise ValueError(f"{place} is damaged: it is no JSON in UTF-8; {again}") from None
    if not isinstance(before, dict) or before.get("schema") != "nanoinfer.batch":
        raise ValueError(f"{place} is damaged: it is no record of a run; {again}")
    if before.get("schema_version") != VERSION:
        version = before.get("schema_version")
        raise ValueError(f"{place} has schema_version {version!r}, and this version of nanoinfer knows {VERSION} only")
    if type(before.get("seed")) is not int or not 0 <= before["seed"] <= MAX_SEED:
        raise ValueError(f"{place} is damaged: its seed is {before.get('seed')!r}; {again}")
    return before


def _checked(job: Job, maker: SampleMaker) -> tuple[int, list[int]]:
    """How many lines there are, and where each shard begins. ValueError for a line that cannot be computed."""
    ids, offsets = dict[str, int](), list[int]()
    for offset, number, record in numbered(job.source):
        line = understood(number, record, job.params, job.seed)
        if line.id in ids:
            raise ValueError(f"line {number} has the id {line.id!r}, which line {ids[line.id]} has too")
        ids[line.id] = number
        try:
            maker.requests([line.prompt], line.params)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        if number % job.shard_lines == 1 % job.shard_lines:
            offsets.append(offset)
    if not ids:
        raise ValueError(f"{job.source} holds no prompt")
    return len(ids), offsets


def _hash(source: Path) -> str:
    digest = sha256()
    with source.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def run_here(job: Job, shards: list[Shard], llm: Any, on_done: Callable[[Shard, int], None]) -> None:
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
