"""JSON Schema of the results files, generated from the records; a test compares the files in schema/ with it."""

from __future__ import annotations

import json
from pathlib import Path

from nanobench.core.records import Record, Report
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

KINDS: dict[str, type[Record]] = {
    "report": Report, "timeline": Timeline, "kernels": KernelReport, "attention": AttentionReport,
    "memory": KVUsageReport, "recompiles": RecompileReport, "sanitize": SanitizeReport,
    "graphs": GraphsReport, "sampling": SamplingReport, "ragged": RaggedReport,
    "queue": QueueReport, "load": LoadReport, "speculation": SpeculationReport, "ranks": RanksReport,
    "replicas": ReplicasReport, "speculation-texts": SpeculationTextsReport, "one-kernel": OneKernelReport,
    "turns": TurnsReport,
}  # fmt: skip


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
