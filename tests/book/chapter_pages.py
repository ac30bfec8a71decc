"""The chapters as the tests of the book see them: their folders, their pages cut up, what their examples print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import pytest

from nanobook.examples import EXAMPLE, load, printed
from nanoinfer import LLM, SamplingParams

ROOT = Path(__file__).parents[2]
CHAPTERS = ROOT / "chapters"
FOLDERS = {int(folder.name[:2]): folder for folder in sorted(CHAPTERS.glob("[0-9][0-9]-*"))}
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")

checkout = pytest.mark.skipif(not FOLDERS, reason="not a checkout")


def module(chapter: int, name: str = "example") -> ModuleType:
    """A Python file of a chapter's folder."""
    return load(FOLDERS[chapter] / f"{name}.py")


def page(chapter: int) -> str:
    return (FOLDERS[chapter] / "README.md").read_text(encoding="utf-8")


def without_code(text: str) -> str:
    """The page without its code fences, in which a # begins a comment."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)


def slug(heading: str) -> str:
    """The anchor that GitHub, and the site, give a heading."""
    return re.sub(r"[^\w-]", "", LINK.sub(r"\1", heading).strip().lower().replace(" ", "-"))


@lru_cache
def by_anchor(path: Path) -> dict[str, str]:
    """The text under each heading of a page, up to the next heading."""
    parts = re.split(r"^#{1,6} (.+)$", without_code(path.read_text(encoding="utf-8")), flags=re.M)[1:]
    anchors = [slug(heading) for heading in parts[::2]]
    assert len(set(anchors)) == len(anchors), path
    return dict(zip(anchors, parts[1::2], strict=True))


def broken_links(path: Path) -> Iterator[str]:
    """Links of a page to files and to headings that are not there."""
    for _, target in LINK.findall(without_code(path.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        meant = (path.parent / file).resolve() if file else path
        if not meant.exists() or (anchor and meant.suffix == ".md" and anchor not in by_anchor(meant)):
            yield f"{path.relative_to(ROOT)}: {target}"


def words(text: str) -> int:
    """How many words the prose has, without code, tables, comments, pictures and folded answers."""
    other = r"```.*?```|<details>.*?</details>|<!--.*?-->|<img [^>]*>|^\|[^\n]*"
    return len(re.sub(other, " ", text, flags=re.S | re.M).split())


def shown(chapter: int, block: str) -> list[str]:
    """What a function of the example prints: as the page has it, which test_check_text.py holds to a fresh run."""
    found = re.search(rf'\[\[\[cog printed\("{block}"\) \]\]\]-->\n```text\n(.*?)\n```', page(chapter), re.S)
    return found[1].split("\n") if found else printed(FOLDERS[chapter] / EXAMPLE, block)


def told(chapter: int, block: str) -> dict[str, list[str]]:
    """The texts of a block by their labels, which fill 24 columns; each text as one line."""
    found: dict[str, list[str]] = {}
    label = ""
    for line in shown(chapter, block):
        if line[:24].strip():
            label = line[:24].strip()
            found.setdefault(label, []).append(line[24:])
        elif label:
            found[label][-1] += " " + line[24:]
    return found


def numbers(line: str) -> list[float]:
    """The numbers of a line, without their units; a percentage as it is written."""
    return [float(one.replace(",", "")) for one in re.findall(r"\d[\d,]*(?:\.\d+)?", line)]


def greedy(prompts: list[str], new: int, engine: str = "naive", **settings: int | bool | str) -> list[list[int]]:
    """Prompt and greedy new tokens of each row, by an engine in float32."""
    settings = {"device": "cpu"} | settings
    with LLM(engine=engine, dtype="float32", **settings) as llm:  # type: ignore[arg-type]
        done = llm.generate(prompts, SamplingParams(max_tokens=new, temperature=0, ignore_eos=True))
    return [[*one.prompt_token_ids, *one.token_ids] for one in done]
