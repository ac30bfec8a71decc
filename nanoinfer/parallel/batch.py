"""A file of prompts into files of results, by shards that are written whole or not at all. Chapter 8.

A shard is named by its range of lines, written under another name and then renamed: a run that was ended at any moment
goes on with the shards that are missing. What comes of a line depends on the line and the run's seed alone, so that
nobody can tell from the results how the work was cut, or who did which part.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from nanoinfer.parallel.lines import Line, numbered, understood
from nanoinfer.records import MAX_SEED, check_int
from nanoinfer.requests import Completion, SamplingParams, to_json
from nanoinfer.text.samples import SampleMaker

RUN = "run.json"  # what the results in a folder are of
SCHEMA: dict[str, Any] = {"schema": "nanoinfer.batch", "schema_version": 1}


class Shard(NamedTuple):
    """Lines start to stop - 1 of the input, counted from 0. offset: where the first is, as `lines.numbered` says."""

    start: int
    stop: int
    offset: int

    @property
    def name(self) -> str:
        return f"{self.start:010}-{self.stop:010}.jsonl"


@dataclass(frozen=True)
class Job:
    """What is to be done, and where its results go.

    source: JSON Lines in UTF-8, or Parquet; what a line may be, `lines.understood` says. params: of lines that do not
    say otherwise. lines: how many there are.
    """

    source: Path
    out: Path
    params: SamplingParams
    seed: int
    lines: int
    shards: list[Shard]

    def missing(self) -> list[Shard]:
        """The shards that have no results yet."""
        return [shard for shard in self.shards if not self._has(shard)]

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
        records = islice(numbered(self.source, shard.start, shard.offset), shard.stop - shard.start)
        return [understood(number, record, self.params, self.seed) for _, number, record in records]

    def run(self, shard: Shard, llm: Any) -> int:
        """Compute one shard; returns how many tokens were generated."""
        lines = self.read(shard)
        done = llm.generate([line.prompt for line in lines], [line.params for line in lines])
        self.write(shard, (result(lines[each.index], each) for each in done))
        return sum(len(each.token_ids) for each in done)

    def write(self, shard: Shard, results: Iterator[str]) -> None:
        """Put the results of a shard into their place, all at once."""
        try:
            write_whole(self.out / shard.name, results)
        except FileNotFoundError:  # another run in this folder has done every shard, and cleaned up
            if not (self.out / shard.name).exists():
                raise

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
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path)) from error  # a full disk names none
    finally:
        with suppress(OSError):  # it has its own name by now, if all went well
            beside.unlink()


def result(line: Line, done: Completion) -> str:
    """One line of results. No times: the same line gives the same bytes."""
    record = {"id": line.id} | {name: value for name, value in asdict(done).items() if value is not None}
    for name in ("index", "prompt_token_ids", "metrics"):
        del record[name]
    return to_json(record) + "\n"


def request_maker(model: str, revision: str | None, max_len: int | None) -> SampleMaker:
    """What checks the prompts for a model, whose weights are not loaded for it. ValueError for an unknown model."""
    from nanoinfer.model.weights import model_config

    maker: SampleMaker = SampleMaker.of(model_config(model, revision), max_len, 0)
    return maker


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
    params = replace(params, seed=None)
    offsets = _checked(source, params, seed, maker)  # of every line
    lines = len(offsets)
    digest = sha256()
    with source.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    now = SCHEMA | {"input_sha256": digest.hexdigest(), "lines": lines}
    now |= {"shard_lines": shard_lines, "seed": seed, **settings, "params": asdict(params)}
    now = json.loads(json.dumps(now))  # tuples become lists, as in the file
    if before is None:
        if out.exists() and any(not each.match(f".{RUN}.*.tmp") for each in out.iterdir()):
            raise ValueError(f"{out} is not empty, and has no {RUN} of a run that could be gone on with")
        out.mkdir(parents=True, exist_ok=True)
        write_whole(place, [json.dumps(now, indent=1), "\n"])
    elif before != now:
        what = next(name for name in [*now, *before] if before.get(name, "missing") != now.get(name, "missing"))
        was, given = before.get(what, "missing"), now.get(what, "missing")
        raise ValueError(
            f"{out} holds results of another run, or of another version: its {what} was {was}, not {given};"
            " give another folder, or what was given then"
        )
    starts = range(0, lines, shard_lines)
    shards = [Shard(start, min(start + shard_lines, lines), offsets[start]) for start in starts]
    return Job(source, out, params, seed, lines, shards)


def _run_before(place: Path) -> dict[str, Any]:
    """What a folder's results are of. ValueError, naming the file, where it cannot be told."""
    try:
        before: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
        if before["schema"] != SCHEMA["schema"]:
            raise ValueError("it is no record of a run")
        check_int("its seed", before["seed"], 0, MAX_SEED)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        again = "give another folder, or put the file back as it was"
        raise ValueError(f"{place} is damaged ({type(error).__name__}: {error}); {again}") from None
    return before


def _checked(source: Path, params: SamplingParams, seed: int, maker: SampleMaker) -> list[int]:
    """Where each line is. ValueError for one that cannot be computed, or if there is none."""
    ids, offsets = dict[str, int](), list[int]()
    for offset, number, record in numbered(source):
        line = understood(number, record, params, seed)
        if line.id in ids:
            raise ValueError(f"line {number} has the id {line.id!r}, which line {ids[line.id]} has too")
        ids[line.id] = number
        try:
            maker.requests([line.prompt], line.params)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        offsets.append(offset)
    if not ids:
        raise ValueError(f"{source} holds no prompt")
    return offsets


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
