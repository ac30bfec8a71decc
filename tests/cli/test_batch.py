"""`nanoinfer batch`: results that depend on a line alone, runs that go on, bad lines, and workers that are lost."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nanoinfer import LLM, SamplingParams
from nanoinfer.model.files import save_model
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.parallel import batch
from nanoinfer.parallel.lines import line_seed
from tests.cli.commands import Result, assert_refused, ended, posix, start
from tests.serve.serving import until

LINES: list[Any] = [
    "Once upon",
    {"id": "b", "prompt": "zwölf", "max_tokens": 3, "n": 2},
    {"id": 7, "prompt": [1, 2, 3], "temperature": 0},
    {"prompt": "a", "seed": 5, "logprobs": 1},
    "There was",
]
OPTIONS = ["-n", "6", "--seed", "3", "--engine", "paged"]


@pytest.fixture(scope="module")
def model(tiny: GPT2, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_model(tiny, folder)
    return folder


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return write(tmp_path / "prompts.jsonl", LINES)


@pytest.fixture
def run(invoke: Any, model: Path) -> Callable[..., Result]:
    return lambda prompts, out, *more: invoke("batch", str(prompts), "-o", str(out), "-m", str(model), *OPTIONS, *more)


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    return path


def results(out: Path) -> list[Any]:
    return [json.loads(line) for path in sorted(out.glob("*.jsonl")) for line in path.read_text("ascii").splitlines()]


def test_a_line_is_what_the_library_makes_of_it(prompts: Path, model: Path, tmp_path: Path, run: Any) -> None:
    done = run(prompts, tmp_path / "out")
    assert done.code == 0
    assert "5 prompts" in done.err
    changes: list[dict[str, Any]] = [{}, {"max_tokens": 3, "n": 2}, {"temperature": 0}, {"seed": 5, "logprobs": 1}, {}]
    each = [
        {"max_tokens": 6, "temperature": 0.8, "top_k": 40, "seed": line_seed(3, name)} | changed
        for name, changed in zip(["1", "b", "7", "4", "5"], changes, strict=True)
    ]
    texts = ["Once upon", "zwölf", [1, 2, 3], "a", "There was"]
    expected = LLM(model).generate(texts, [SamplingParams(**given) for given in each])
    found = results(tmp_path / "out")
    assert [line["id"] for line in found] == ["1", "b", "b", "7", "4", "5"]
    assert [line["token_ids"] for line in found] == [list(done.token_ids) for done in expected]
    assert [line["seed"] for line in found] == [done.seed for done in expected]
    assert [line["sample"] for line in found] == [0, 0, 1, 0, 0, 0]
    assert [len(line.get("logprobs", ())) for line in found] == [0, 0, 0, 0, 6, 0]


def test_results_do_not_tell_how_the_work_was_cut(prompts: Path, tmp_path: Path, run: Any) -> None:
    for size in ("1", "2", "6"):
        assert run(prompts, tmp_path / size, "--shard", size, "--max-batch", size).code == 0
    assert len(list((tmp_path / "2").glob("*.jsonl"))) == 3
    assert results(tmp_path / "1") == results(tmp_path / "2") == results(tmp_path / "6")
    reordered = write(tmp_path / "other.jsonl", [LINES[2], LINES[1]])
    assert run(reordered, tmp_path / "other").code == 0
    assert results(tmp_path / "other") == [results(tmp_path / "6")[i] for i in (3, 1, 2)]


@posix
@pytest.mark.long
def test_a_run_that_is_stopped_at_any_moment_loses_nothing(model: Path, tmp_path: Path, run: Any) -> None:
    """Killed, and by Ctrl-C, which says how to go on; several engines do the rest."""
    prompts, out = write(tmp_path / "prompts.jsonl", [f"prompt {i}" for i in range(60)]), tmp_path / "out"
    assert run(prompts, tmp_path / "whole", "--shard", "1").code == 0
    main = (
        "import signal; from nanoinfer.cli import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job in the background begins without one
        "main()"
    )
    command = ["-c", main, "batch", str(prompts), "-m", str(model), "-o", str(out), "--shard", "1", *OPTIONS]
    for wanted, number in ((1, signal.SIGKILL), (20, signal.SIGINT)):
        process = start(*command)
        until(lambda wanted=wanted: len(list(out.glob("*.jsonl"))) >= wanted)  # type: ignore[misc]
        process.send_signal(number)
        stopped = ended(process)
        assert stopped.code == (130 if number == signal.SIGINT else -signal.SIGKILL)
    assert "shards are done; the same command goes on" in stopped.err
    assert stopped.err.count("\n") == 1
    assert run(prompts, out, "--shard", "1", "--replicas", "2").code == 0
    files = [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in (out, tmp_path / "whole")]
    assert files[0] == files[1]


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ('{"prompt": "a", "max_token": 3}', ["'max_token'", "max_tokens"]), ('{"prompt": [1, 99999]}', ["99999"]),
        ('{"prompt": "a", "temperature": -1}', ["temperature", "-1"]), ('{"text": "a"}', ["prompt"]),
        ('{"prompt": "a", "id": 1.5}', ["id", "1.5"]), ('{"prompt": "a", "id": "1"}', ["'1'", "line 1"]),
        ('{"prompt": "a", "id": "\\ud800"}', ["id", "UTF-8"]),
        (json.dumps({"prompt": [1] * 5000}), ["5000"]), ("[1]", ["prompt"]), ("", ["JSON"]),
    ],
)  # fmt: skip
def test_a_bad_line_is_refused_at_once(line: str, parts: list[str], tmp_path: Path, run: Any) -> None:
    """Before anything is computed."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(f'"good"\n{line}\n"good"\n', encoding="utf-8")
    assert_refused(run(prompts, tmp_path / "out"), "line 2", *parts)
    assert not (tmp_path / "out").exists()


def test_bad_files_and_folders(tmp_path: Path, run: Any) -> None:
    out, prompts = tmp_path / "out", tmp_path / "prompts.jsonl"
    assert_refused(run(prompts, out), "prompts.jsonl", "No such file")
    for content, parts in ((b"", ["no prompt"]), (b'"\xff"\n', ["line 1", "UTF-8"])):
        prompts.write_bytes(content)
        assert_refused(run(prompts, out), *parts)
    prompts.write_bytes(b'\xef\xbb\xbf"a"\r\n"b"')
    assert run(prompts, out).code == 0
    for more, parts in (
        (["--shard", "7"], ["another run", "shard_lines", "1000"]),
        *(([f"--{name}", "0"], [f"--{name}"]) for name in ("shard", "workers", "replicas")),
        (["--workers", "2", "--replicas", "2"], ["contradict"]),
    ):
        assert_refused(run(prompts, out, *more), *parts)
    assert_refused(run(prompts, tmp_path), "not empty")
    assert_refused(run(Path(os.devnull), out), "regular file")
    (shard,) = out.glob("0*.jsonl")
    shard.unlink()
    shard.mkdir()
    assert_refused(run(prompts, out), shard.name, "cannot be used")
    shard.rmdir()
    write(prompts, ["a", "c"])
    assert_refused(run(prompts, out), "another run", "input_sha256")


def test_a_run_goes_on_with_the_seed_it_drew(prompts: Path, model: Path, tmp_path: Path, invoke: Any) -> None:
    command = ["batch", str(prompts), "-o", str(tmp_path / "out"), "-m", str(model), "-n", "6", "--shard", "1"]
    assert invoke(*command).code == 0
    before = results(tmp_path / "out")
    (tmp_path / "out" / "0000000001-0000000002.jsonl").unlink()
    assert invoke(*command).code == 0
    assert results(tmp_path / "out") == before


@pytest.mark.long
def test_ray_gives_the_same_though_a_worker_is_lost(model: Path, tmp_path: Path, run: Any) -> None:
    ray = pytest.importorskip("ray", reason="needs Ray: pip install -e '.[ray]'")
    import pyarrow as pa
    from pyarrow import parquet

    from nanoinfer.parallel.ray_batch import Worker, run_on_ray

    table = pa.table({"id": [f"a{i}" for i in range(24)], "prompt": ["Once upon"] * 24, "max_tokens": [4, None] * 12})
    source, out, died, done = tmp_path / "prompts.parquet", tmp_path / "out", tmp_path / "died", list[int]()
    parquet.write_table(table, source, row_group_size=7)
    assert run(source, tmp_path / "whole", "--shard", "24").code == 0
    maker = batch.request_maker(str(model), None, None)
    job = batch.open_job(source, out, SamplingParams(6, 0.8, 40, seed=3), 2, maker, {})

    class Dies(Worker):
        """Its process ends with the third shard, once, before the shard is written."""

        def __call__(self, shard: dict[str, int]) -> dict[str, int]:
            if shard["start"] == 4 and not died.exists():
                died.touch()
                os._exit(1)
            return super().__call__(shard)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nanoinfer.parallel.ray_batch.Worker", Dies)
        try:
            make = partial(LLM, str(model), engine="paged")
            run_on_ray(job, job.missing(), make, 1, 2, lambda shard, _: done.append(shard.start))
        finally:
            ray.shutdown()
    assert died.exists()
    assert sorted(done) == [*range(0, 24, 2)]
    assert results(out) == results(tmp_path / "whole")
