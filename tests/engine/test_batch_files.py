"""What a batch finds in its folder: full disks, damaged files, files of other versions. Each is named in a sentence."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from random import Random
from typing import Any

import pytest

from nanoinfer.parallel import batch
from nanoinfer.parallel.batch import RUN, Job, open_job
from nanoinfer.requests import SamplingParams
from nanoinfer.text.samples import SampleMaker
from nanoinfer.text.tokenizer import gpt2_tokenizer

PARAMS = SamplingParams(max_tokens=2)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text('"a"\n"b"\n"c"\n')
    return path


def opened(source: Path, **settings: Any) -> Job:
    maker = SampleMaker(gpt2_tokenizer(), 64, 50257, Random(0), ())
    return open_job(source, source.parent / "out", PARAMS, 2, maker, {"model": "small", **settings})


def done(job: Job) -> None:
    for shard in job.missing():
        job.write(shard, (f'{{"id": "{at + 1}"}}\n' for at in range(shard.start, shard.stop)))


def test_a_damaged_run_json_is_named(source: Path) -> None:
    """At whatever byte it ends, or where it is no record of a run at all."""
    opened(source)
    place = source.parent / "out" / RUN
    whole = place.read_bytes()
    cut = [whole[:length] for length in range(len(whole) - 1)]  # its last byte is a line's end
    for held in (*cut, b"[]", b"null", b"7", b"{}", b'{"schema": "nanoinfer.batch"}', b"[" * 100_000, b"\xff"):
        place.write_bytes(held)
        with pytest.raises(ValueError, match="damaged") as refused:
            opened(source)
        assert str(place) in str(refused.value)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"schema_version": 2}, "schema_version was 2, not 1"),
        ({"colour": "blue"}, "its colour was blue, not missing"),
        ({"seed": -1}, "its seed must be .*, not -1"),
        ({"seed": "1"}, "its seed must be .*, not '1'"),
        ({"lines": 9}, "its lines was 9, not 3"),
    ],
)
def test_a_newer_or_another_run_is_told_by_its_field(source: Path, changed: dict[str, Any], said: str) -> None:
    opened(source)
    place = source.parent / "out" / RUN
    place.write_text(json.dumps(json.loads(place.read_text()) | changed))
    with pytest.raises(ValueError, match=said):
        opened(source)


def test_a_shard_that_is_cut_off_or_of_other_lines_is_computed_again(source: Path) -> None:
    job = opened(source)
    done(job)
    assert job.missing() == []
    shard = next(iter(sorted((source.parent / "out").glob("0*.jsonl"))))
    whole = shard.read_bytes()
    others = whole.replace(b"1", b"3"), b"".join(reversed(whole.splitlines(keepends=True))), b"[]\n[]\n"
    for held in (*(whole[:length] for length in range(len(whole))), *others):
        shard.write_bytes(held)
        assert [each.name for each in job.missing()] == [shard.name]
    done(job)
    assert job.missing() == []


def test_a_disk_that_fails_is_named_and_the_next_run_goes_on(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = [True]

    def fsync(descriptor: int) -> None:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # the kernel names no file

    out = source.parent / "out"
    monkeypatch.setattr(batch.os, "fsync", fsync)
    with pytest.raises(OSError, match="No space left") as failed:
        opened(source)
    assert failed.value.filename == str(out / RUN)
    assert list(out.iterdir()) == []
    full.clear()
    job = opened(source)
    full.append(True)
    with pytest.raises(OSError, match="No space left") as failed:
        done(job)
    assert failed.value.filename == str(out / job.missing()[0].name)
    full.clear()
    done(opened(source))
    assert sorted(path.suffix for path in out.iterdir()) == [".json", ".jsonl", ".jsonl"]
