"""JSON Schema of the results files, generated from the records; a test holds the files in schema/ to it."""

from __future__ import annotations

import json
from pathlib import Path

from .attention import AttentionReport
from .graphs import GraphsReport
from .kernels import KernelReport
from .recompiles import RecompileReport
from .records import Record, Report
from .sampling import SamplingReport
from .sanitize import SanitizeReport
from .timeline import Timeline
from .waste import WasteReport

KINDS: dict[str, type[Record]] = {
    "report": Report, "timeline": Timeline, "kernels": KernelReport, "attention": AttentionReport,
    "memory": WasteReport, "recompiles": RecompileReport, "sanitize": SanitizeReport,
    "graphs": GraphsReport, "sampling": SamplingReport,
}  # fmt: skip


def texts() -> dict[str, str]:
    """File name and content of each schema."""
    return {
        f"{name}.schema.json": json.dumps(kind.model_json_schema(), indent=1, sort_keys=True) + "\n"
        for name, kind in KINDS.items()
    }


def write(folder: Path) -> list[Path]:
    """Write them; returns where to."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in texts().items():
        (folder / name).write_text(text, encoding="utf-8")
        written.append(folder / name)
    return written
