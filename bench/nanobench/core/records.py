"""Results files: what a measurement writes down, as JSON with a schema.

The numbers in the text of the book come out of such files. So a file states all that its numbers depend on: the device,
its clocks, the versions, the commit, dtype and seed, and how often and in which order it was measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from typing_extensions import Self

SCHEMA_VERSION = 1
LISTED = 8  # entries of a list that is printed whole
PLACE = Path(__file__).resolve().parents[2]
BOOK = PLACE / "nanocourse" / "book" / "bench" / "results"  # where the wheel has them, once for all packages
RESULTS = BOOK if BOOK.is_dir() else PLACE / "results"  # the published results

Status = Literal["ok", "over budget", "out of memory", "failed", "missing"]


class Record(BaseModel):
    """A frozen record; unknown fields are refused, so that a file of another schema is not half read.

    It prints itself in a line: all its fields, then the properties that `SHOWN` names.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    SHOWN: ClassVar[tuple[str, ...]] = ()

    def __str__(self) -> str:
        names = (*type(self).model_fields, *self.SHOWN)
        return ", ".join(f"{name.replace('_', ' ')} {_printed(name, getattr(self, name))}" for name in names)


def _printed(name: str, value: object) -> str:
    """A field in short: the median of a spread, the length of a long list, a unit where the name says it is a time."""
    if isinstance(value, Spread):
        value = value.median
    if isinstance(value, Record):
        return f"({value})"
    if isinstance(value, tuple):
        whole = len(value) <= LISTED and not any(isinstance(each, Record) for each in value)
        return " ".join(_printed(name, each) for each in value) if whole else f"of {len(value)}"
    if not isinstance(value, float):
        return f"{value:,}" if type(value) is int else str(value)
    scale, unit = 1.0, ""
    if name == "seconds" or (name.endswith("_s") and not name.endswith("_per_s")):
        scale, unit = (1.0, " s") if value >= 1 else (1e3, " ms") if value >= 1e-3 else (1e6, " us")
    value *= scale
    return f"{value:,.0f}{unit}" if abs(value) >= 1000 else f"{value:.3g}{unit}"


Older = tuple[dict[str, Any], ...]  # what a command once measured besides: files have it, and nothing reads it


class Spread(Record):
    """Repeated measurements of one quantity."""

    median: float
    p10: float
    p90: float
    samples: tuple[float, ...]

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """Median and 10-90% range, interpolated between the samples."""
        p10, median, p90 = np.quantile(samples, (0.1, 0.5, 0.9)).tolist()
        return cls(median=median, p10=p10, p90=p90, samples=tuple(samples))


class Memory(Record):
    """Bytes on the device at one moment."""

    allocated: int  # in tensors
    reserved: int  # held by torch's allocator
    driver: int | None = None  # in use on the whole device, by anybody


class Stages(Record):
    """The device's memory while a system was made. The model's weights are loaded before all three."""

    before: Memory  # other systems may exist already
    made: Memory  # its cache, where it makes one of a fixed size
    ready: Memory  # after warm_up: its graphs


class Graphs(Record):
    """What an engine with CUDA graphs counted."""

    captures: int  # since it was made, and so are the next two
    capture_s: float
    bytes: int  # that captures took of the device's memory, as its driver counts
    steps: int  # decode steps of the timed runs; after an interruption, of those since
    replayed: int  # of them, by a graph
    padding_share: float | None = None  # of the rows that graphs computed in them
    fallbacks: dict[str, int] = {}  # steps that ran eagerly, by reason

    @property
    def hit_rate(self) -> float | None:
        """Share of the decode steps that were replayed."""
        return self.replayed / self.steps if self.steps else None


class Clocks(Record):
    """Clocks over a case, sampled before and after each repeat."""

    sm_mhz_min: int
    sm_mhz_max: int
    throttled: tuple[str, ...]  # reasons that the driver gave


class Case(Record):
    """One thing that is measured."""

    model: str
    engine: str
    batch: int
    prompt_tokens: int
    new_tokens: int


class Result(Record):
    """The result of one case. Times in seconds, on the host's clock, between two synchronizations of the device."""

    case: Case
    status: Status
    reason: str = ""  # why status is not ok; else the system's own remark, if any
    generate_s: Spread | None = None  # prompts in, all tokens out
    ttft_s: Spread | None = None  # the same call for one new token
    itl_s: Spread | None = None  # of single steps, in older runs, and so is the next
    itl_p99_s: float | None = None
    tokens: int = 0  # of one repeat, recounted from the ids
    tokens_per_s: float | None = None  # decode: tokens after the first of each row over generate - ttft, medians
    floor_share: float | None = None  # of the bandwidth limit; None where the weights fit into L2 twice
    make_s: float | None = None  # until the system is made, weights not included
    warm_up_s: float | None = None  # its warm_up: graphs captured, where it captures any ahead
    first_s: float | None = None  # its first run of this case: allocation, autotuning, compilation, late captures
    compile_s: float | None = None  # of all that came before the timed runs: in torch.compile and in Triton
    compiles: int = 0  # by torch.compile and Triton within the timed runs: the times are valid only if 0
    launches_per_step: float | None = None  # kernels of one decode step, by torch's profiler; None on a CPU
    calls_per_step: float | None = None  # by which the host launches them: a graph of many kernels is one
    stages: Stages | None = None  # None on a CPU
    memory_before: Memory | None = None
    memory_peak: Memory | None = None  # in one run: what this case needs beyond memory_before
    graphs: Graphs | None = None  # None for an engine without them
    clocks: Clocks | None = None


class Turns(Record):
    """The timed runs so far of a case that is not finished."""

    case: Case
    generate_s: tuple[float, ...]
    ttft_s: tuple[float, ...]
    compiles: int  # by torch.compile and Triton within them


class Unfinished(Record):
    """What an interrupted run goes on with."""

    settings: dict[str, str]  # the preset's, options included: turns of other settings are not mixed
    turns: tuple[Turns, ...]


class Machine(Record):
    """Where it was measured."""

    device: str
    kind: Literal["cpu", "cuda"]
    capability: str | None = None
    memory_bytes: int
    l2_bytes: int | None = None
    driver: str | None = None
    cpu: str
    cores: int
    threads: int
    power: str  # mains, battery or unknown
    os: str
    python: str
    torch: str
    cuda: str | None = None
    triton: str | None = None
    transformers: str | None = None


class TokenCheck(Record):
    """The tokens of one engine, compared with naive's logits in float32 before anything is timed."""

    engine: str
    model: str
    batch: int
    tokens: int
    near_ties: int


class Saved(Record):
    """What is a file of its own."""

    JSON: ClassVar[dict[str, Any]] = {"indent": 1}  # how pydantic writes it

    schema_version: int = SCHEMA_VERSION

    def save(self, path: Path) -> None:
        """Write the file whole, or leave the old one as it was."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".tmp")
        draft.write_text(self.model_dump_json(**self.JSON) + "\n", encoding="utf-8")
        draft.replace(path)

    def add(self, path: Path, **parts: Any) -> Self:
        """The report with these parts, saved."""
        more = self.model_copy(update=parts)
        more.save(path)
        return more

    def fill(self, path: Path, **parts: Iterable[Record]) -> Self:
        """The report with more records of each part, which are printed as they come; saved after each part."""
        report = self
        for part, records in parts.items():
            found = list(getattr(report, part))
            for record in records:
                print(f"{part}: {record}", flush=True)  # a run takes minutes, and its output may be a pipe
                found.append(record)
            report = report.add(path, **{part: tuple(found)})
        return report

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file. ValueError where it is of another kind."""
        return cls.model_validate_json(path.read_bytes())


class ResultsFile(Saved):
    """What every file of measurements states; the subclasses add what was measured."""

    date: str
    commit: str
    machine: Machine


class Report(ResultsFile):
    """One run of the benchmark."""

    JSON: ClassVar = {"indent": 1, "exclude_none": True}

    preset: str
    dtype: str
    seed: int
    repeats: int
    copy_bytes_per_s: float  # read plus written, measured before anything else
    import_s: float  # `import torch` and the engine, in a fresh process
    load_s: dict[str, float] = {}  # seconds to have a model's weights on the device, by its name
    memory_start: dict[str, Memory] = {}  # before a model's weights, by its name
    memory_weights: dict[str, Memory] = {}  # after them
    proofs: tuple[TokenCheck, ...] = ()
    results: tuple[Result, ...] = ()
    unfinished: Unfinished | None = None  # None once every case that was begun is finished

    def find(self, **wanted: object) -> list[Result]:
        """Results whose case has these fields."""
        return [r for r in self.results if all(getattr(r.case, name) == value for name, value in wanted.items())]
