"""The Markdown page beside an exercise's file: its title, task, invariants and hints, as a learner reads them.

# 5.2 Who may start
(the task, in paragraphs)
## What always holds
- (an invariant)
## Hints
<details><summary>Invariant</summary> (and then Place, and Pseudocode in a fence) </details>
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

FOLDED = "<details><summary>{}</summary>\n\n{}\n\n</details>\n+"


def texts(page: Path, id: str) -> dict[str, Any]:
    """The fields of a `Spec` that its page holds. ValueError names the page and the first thing that it lacks."""
    parts = {
        f"a title behind `# {id} `": rf"# {re.escape(id)} ([^\n]+)\n+",
        "a task, and behind it `## What always holds`": r"(.+?)\n+## What always holds\n+",
        "invariants as a list, and behind it `## Hints`": r"- (.+?)\n+## Hints\n+",
        **{f"the folded hint {name}": FOLDED.format(name, r"(.+?)") for name in ("Invariant", "Place")},
        "the folded hint Pseudocode, in a fence": FOLDED.format("Pseudocode", r"```text\n(.+?)\n```"),
    }
    text, at, found = page.read_text(encoding="utf-8"), 0, []
    for part, pattern in parts.items():
        match = re.compile(pattern, re.S).match(text, at)
        if match is None:
            raise ValueError(f"{page.name} lacks {part}")
        at = match.end()
        found.append(match[1])
    title, task, listed, invariant, place, code = found
    hints = f"Invariant: {invariant}", f"Place: {place}", f"Pseudocode:\n{textwrap.indent(code, '  ')}"
    invariants = tuple(" ".join(one.split()) for one in listed.split("\n- "))
    return {"title": title, "task": task, "invariants": invariants, "hints": hints}
