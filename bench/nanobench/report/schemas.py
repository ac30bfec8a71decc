"""JSON Schema of the results files, generated from the records; a test compares the files in schema/ with it."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from nanobench.core.records import Report, Saved
from nanobench.load.records import LoadReport
from nanobench.micro.attention import AttentionReport
from nanobench.micro.graphs import GraphsReport
from nanobench.micro.kv_usage import KVUsageReport
from nanobench.micro.one_kernel_records import OneKernelReport
from nanobench.micro.paged_kernel import KernelReport
from nanobench.micro.queue import QueueReport
from nanobench.micro.ragged import RaggedReport
from nanobench.micro.ranks import RanksReport
from nanobench.micro.recompiles import RecompileReport
from nanobench.micro.replicas import ReplicasReport
from nanobench.micro.sampling import SamplingReport
from nanobench.micro.sanitize import SanitizeReport
from nanobench.micro.speculation import SpeculationReport
from nanobench.micro.speculation_texts import SpeculationTextsReport
from nanobench.micro.timeline import Timeline
from nanobench.micro.turns import TurnsReport

KINDS: dict[str, type[Saved]] = {"report": Report} | {
    kind.model_fields["kind"].default: kind
    for kind in (
        AttentionReport, GraphsReport, KVUsageReport, KernelReport, LoadReport, OneKernelReport, QueueReport,
        RaggedReport, RanksReport, RecompileReport, ReplicasReport, SamplingReport, SanitizeReport, SpeculationReport,
        SpeculationTextsReport, Timeline, TurnsReport,
    )
}  # fmt: skip


def load(path: Path) -> Saved | None:
    """What a results file holds; None where it is of no known kind. ValueError for no such file."""
    if not path.is_file():
        raise ValueError(f"no results file {path}")
    content = path.read_bytes()
    with suppress(ValueError, AttributeError, KeyError):
        return KINDS[json.loads(content).get("kind", "report")].model_validate_json(content)
    return None


def schemas() -> dict[str, str]:
    """File name and content of each schema."""
    return {
        f"{name}.schema.json": json.dumps(kind.model_json_schema(), indent=1, sort_keys=True) + "\n"
        for name, kind in KINDS.items()
    }


def write(folder: Path) -> list[Path]:
    """Write the schemas into a folder; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in schemas().items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in schemas()]
