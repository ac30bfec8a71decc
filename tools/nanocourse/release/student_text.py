"""The chapter's text as students get it: without the excerpts that the assignment's exercises ask for.

The book's own markers are removed too, and links to files of the package become plain names, since those files are
elsewhere on a student's machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from nanocourse.exercises.exercise import Exercise

EXCERPT = re.compile(r'<!--\[\[\[cog excerpt\("([^"]+)".*?\]\]\]-->\n.*?<!--\[\[\[end\]\]\]-->', re.S)
MARKERS = re.compile(r"<!--\[\[\[cog.*?\]\]\]-->\n|<!--\[\[\[end\]\]\]-->\n?|[ \t]*<!--(?:=| exempt:)[^>]*-->")
LINK = re.compile(r"(?<!!)\[([^\]\[]+)\]\((?!https?:|#|mailto:)([^)]+)\)")
SHOWS = re.compile(r"^(?:print\()?(?:\w+\.)?source\((.*?)\)\)?$", re.M)


def answers(exercises: Sequence[Exercise]) -> dict[str, str]:
    """Functions of the package that answer one of these exercises: "module:name" -> the exercise's id.

    Kernels are not included: the text explains the engine's line by line, and the exercise asks for another one.
    """
    found: dict[str, str] = {}
    for one in sorted(exercises, key=lambda one: len(one.spec.refuse)):  # the one about the function comes first
        reference = (one.spec.reference,) if isinstance(one.spec.reference, str) else ()
        for name in () if one.spec.kernel else (*reference, *one.spec.refuse):
            found.setdefault(name, one.id)
    return found


def released(text: str, left_out: dict[str, str], has: Callable[[str], bool]) -> str:
    """The text for students. left_out: answers by name. has: whether their tree has the file that a link names."""

    def without(match: re.Match[str]) -> str:
        id = left_out.get(match[1])
        return match[0] if id is None else f"> {where(match[1], id)}"

    def unlinked(match: re.Match[str]) -> str:
        return match[0] if has(match[2].partition("#")[0]) else match[1]

    return LINK.sub(unlinked, MARKERS.sub("", EXCERPT.sub(without, text)))


def where(name: str, id: str) -> str:
    """The sentence in place of what is left out."""
    module, _, function = name.partition(":")
    return f"Left out here: exercise {id} asks for it. The engine's own is `{function}` in `{module}`."


def released_cell(code: str, left_out: dict[str, str], ids: Sequence[str]) -> str:
    """A notebook's cell for students, without what would print an answer or a wrong answer."""
    named = {name.partition(":")[2]: id for name, id in left_out.items()}

    def without(match: re.Match[str]) -> str:
        asked = next((id for id in ids if match[1].startswith(f'"{id}"')), named.get(match[1]))
        return match[0] if asked is None else f"# Left out here: exercise {asked} asks for it."

    return SHOWS.sub(without, code)
