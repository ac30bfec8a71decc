"""`python -m nanobook lines`: lines of code and tokens of all tracked source, area by area, beside their budgets."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

from nanobook.source import measured
from nanobook.syllabus import file_of, syllabus

# Lines of code. A budget measures how well an idea was understood; what does not fit needs a reason to be raised.
BUDGETS = {
    "nanoinfer": 8_100, "chapter 1": 1_050, "chapter 2": 90, "chapter 3": 350, "chapter 4": 900, "chapter 5": 700,
    "chapter 6": 900, "chapter 7": 550, "chapter 8": 750, "outside": 2_800, "labs": 700,
    "chapters": 20_000, "tools": 7_500, "bench": 5_500, "tests": 17_000, "page.js": 500,
}  # fmt: skip


def sums(root: Path) -> tuple[Counter[str], Counter[str]]:
    """Lines of code and tokens of each area. Of TOML and JavaScript, lines that are not blank and their words."""
    names = subprocess.run(["git", "ls-files", "*.py", "*.toml", "*.js"], cwd=root, capture_output=True, check=True)
    chapter_of = {file_of(name): f"chapter {c.number}" for c in syllabus().chapters for name in c.modules}
    lines, tokens = Counter[str](), Counter[str]()
    for name in names.stdout.decode().split():
        source = (root / name).read_text(encoding="utf-8")
        code = [line for line in source.splitlines() if line.strip() and not line.startswith("#")]
        counted = measured(source) if name.endswith(".py") else (len(code), sum(len(line.split()) for line in code))
        areas = [name.partition("/")[0]]
        if name.endswith("/page.js"):
            areas = ["page.js"]
        elif name.startswith("nanoinfer/labs/"):
            areas = ["labs"]
        elif areas == ["nanoinfer"]:
            areas.append(chapter_of.get(name, "outside"))
        for area in areas:
            lines[area] += counted[0]
            tokens[area] += counted[1]
    return lines, tokens


def table(root: Path) -> str:
    """An area a row: its lines, its budget, what it is over by, its tokens and how many these are a line."""
    lines, tokens = sums(root)
    rows = [f"{'area':12}{'lines':>8}{'budget':>8}{'over':>8}{'tokens':>9}{'a line':>8}"]
    for area in [*BUDGETS, *sorted(lines.keys() - BUDGETS.keys())]:
        count, budget = lines[area], BUDGETS.get(area)
        over = f"{count - budget:,}" if budget is not None and count > budget else ""
        told = f"{budget:,}" if budget is not None else ""
        dense = f"{tokens[area] / max(1, count):.2f}"
        rows.append(f"{area:12}{count:>8,}{told:>8}{over:>8}{tokens[area]:>9,}{dense:>8}")
    return "\n".join(rows)
