"""Which files of a class are alike, and which are like an answer that is public: a list for a person to look at.

It is no verdict. Short functions are alike because there are few ways to write them; so the list says how much right
answers that were written to differ have in common, and shows what has more.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import combinations

from nanocourse.authoring.mutants import drop_inert
from nanocourse.exercises import chapters
from nanocourse.exercises.exercise import Exercise
from nanocourse.exercises.sources import answer_source, function_source, whole_file
from nanocourse.grade.collect import Collected
from nanocourse.release.verify import own_number

KINDS = (tokenize.NAME, tokenize.NUMBER, tokenize.OP, tokenize.STRING)
NAMES: dict[type[ast.AST], str] = {ast.FunctionDef: "name", ast.ClassDef: "name", ast.arg: "arg", ast.Name: "id"}
Words = tuple[str, ...]


@dataclass(frozen=True)
class Alike:
    """Two files, by whose they are. share: of words in the same order, from 0 to 1. usual: see `usual`."""

    one: str
    other: str
    share: float
    usual: float


def words(source: str) -> Words:
    """The words and signs of a file's functions, without comments, docstrings, annotations, and names of its own.

    Empty for what is no Python.
    """
    try:
        tree = ast.parse(source)
        drop_inert(tree)
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        _number_names(functions)
        text = "\n".join(map(ast.unparse, functions))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    return tuple(one.string for one in tokenize.generate_tokens(io.StringIO(text).readline) if one.type in KINDS)


def _number_names(functions: Sequence[ast.FunctionDef | ast.ClassDef]) -> None:
    """Give names that a file makes numbers instead, in the order in which they come, and drop decorators."""
    named = [(one, NAMES[type(one)]) for node in functions for one in ast.walk(node) if type(one) in NAMES]
    own: dict[str, str] = {}
    for node, field in named:
        if not isinstance(getattr(node, "ctx", None), ast.Load):
            own.setdefault(getattr(node, field), f"own{len(own)}")
    for node, field in named:
        setattr(node, field, own.get(getattr(node, field), getattr(node, field)))
        if hasattr(node, "decorator_list"):
            node.decorator_list = []


def share(one: Words, other: Words, least: float = 0.0) -> float:
    """How many of the words two files have in common, in the same order; 0 where it is less than `least`."""
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    if min(matcher.real_quick_ratio(), matcher.quick_ratio()) < least:
        return 0.0
    return matcher.ratio()


def public(exercise: Exercise) -> dict[str, Words]:
    """The answers that anybody can read: references of all forms, right ones, wrong ones."""
    plain = chapters.exercise(exercise.id)
    found = {"the reference": whole_file(plain, plain.function, function_source(plain.function))}
    found |= {f"the edition {one.name}": function_source(one.reference) for one in plain.editions}
    found |= {f"the right answer {one.name}": answer_source(plain, one) for one in plain.right}
    found |= {f"the wrong answer {one.name}": answer_source(plain, one) for one in plain.wrong}
    return {name: words(source) for name, source in found.items()}


def usual(exercise: Exercise) -> float:
    """The most that two right answers of the repository have in common, of those written to differ; at most 0.9."""
    plain = chapters.exercise(exercise.id)
    own = [answer_source(plain, one) for one in plain.right]
    texts = map(words, [*own, whole_file(plain, plain.function, function_source(plain.function))])
    return min(0.9, max((share(one, other) for one, other in combinations(texts, 2)), default=0.9))


def alike(exercise: Exercise, submissions: Mapping[str, Collected], stub: str) -> list[Alike]:
    """Pairs of a class, and of each and its nearest public answer, that have more in common than is usual."""
    untouched, texts = words(stub), dict[str, Words]()
    for name, found in submissions.items():
        path = found.find(exercise.file, exercise.path.parents[1].name)
        text = words(found.files[path].decode("utf-8-sig", "replace")) if path is not None else ()
        if text and text != untouched:
            texts[name] = text
    known = public(exercise)
    least = usual(exercise)
    pairs = [(one, other, share(texts[one], texts[other], least)) for one, other in combinations(texts, 2)]
    for name, text in texts.items():
        nearest = max(known, key=lambda one: share(text, known[one], least))
        pairs.append((name, nearest, share(text, known[nearest], least)))
    found_pairs = [Alike(one, other, found, least) for one, other, found in pairs if found > least]
    return sorted(found_pairs, key=lambda one: -one.share)


def copied_folders(submissions: Mapping[str, Collected]) -> Iterator[tuple[str, ...]]:
    """Submissions whose progress files have the same number, which is drawn at random for each learner."""
    owners: dict[str, list[str]] = {}
    for name, found in submissions.items():
        if number := own_number(found):
            owners.setdefault(number, []).append(name)
    yield from (tuple(names) for names in owners.values() if len(names) > 1)
