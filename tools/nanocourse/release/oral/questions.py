"""What can be asked about a learner's function: about single lines, and about the whole as seen from a line."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

from nanocourse.authoring.mutants import COMPARED
from nanocourse.exercises.exercise import Exercise
from nanocourse.release.templates import HERE

Place = tuple[int, int, int, int]
CALLS = {
    "dimension": {
        "softmax", "log_softmax", "cumsum", "sum", "max", "min", "amax", "amin", "mean", "sort", "argmax", "argsort",
        "flip", "gather", "topk", "any", "all", "logsumexp", "prod",
    },
    "layout": {
        "transpose", "permute", "view", "reshape", "flatten", "unflatten", "unbind", "chunk", "split", "expand",
        "unsqueeze", "squeeze", "stack", "cat", "repeat", "movedim",
    },
    "replaced values": {"masked_fill", "where", "clamp", "nan_to_num", "minimum", "maximum", "triu", "tril"},
    "precision": {"exp", "exp2", "log", "log1p", "log2", "sqrt", "rsqrt", "tanh", "expm1"},
    "library": {"layer_norm", "gelu", "scaled_dot_product_attention", "linear", "embedding", "addmm", "einsum", "bmm"},
}  # fmt: skip
PLAIN = (0, 1, -1, 2)  # numbers that need no reason
MODULES = ("torch", "F", "math", "tl")


@dataclass(frozen=True)
class Question:
    """One question. kind: what it is about. code: the learner's line. listen: what a good answer has in it.

    What is true is found by running it. last: where the code that is asked about ends. changed: the whole file with the
    proposed change; empty where none is proposed. seen: places of expressions whose values on the example tell the
    answer. known: lines that tell it, where nothing has to be run.
    """

    kind: str
    line: int
    code: str
    text: str
    listen: str
    last: int = 0
    changed: str = ""
    seen: tuple[Place, ...] = ()
    known: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """What can be asked. new: what `old` would read instead. seen: what to look at."""

    kind: str
    code: str
    old: ast.AST | None = None
    new: str = ""
    seen: tuple[ast.AST, ...] = ()


def about_lines(function: ast.FunctionDef, lines: Sequence[str]) -> Iterator[Question]:
    """All questions about the lines of one function, in order; annotations and docstrings are left out."""
    lent = {arg.arg for arg in function.args.args}
    for statement in function.body:
        for node in _inside(statement):
            yield from (question(found, node, lines) for found in _asked(node, lent))


def about_the_whole(exercise: Exercise, function: ast.FunctionDef, lines: Sequence[str]) -> Iterator[Question]:
    """One question for each invariant, and for each line whose result could be computed by hand."""
    end = next((node for node in reversed(function.body) if isinstance(node, ast.Return)), function.body[-1])
    given = (end.value,) if isinstance(end, ast.Return) and end.value is not None else ()
    for invariant in exercise.spec.invariants:
        yield question(Found("invariant", invariant, seen=given), end, lines)
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield question(Found("by hand", node.targets[0].id, seen=(node.value,)), node, lines)


def question(found: Found, node: ast.AST, lines: Sequence[str]) -> Question:
    """A question of this kind about the line where a node begins."""
    text, listen = wording()[found.kind]
    at, last, *_ = place(node)
    changed = _changed(found.old, found.new, lines) if found.old is not None else ""
    seen = tuple(place(one) for one in found.seen)
    text = text.format(code=found.code, new=found.new)
    return Question(found.kind, at, lines[at - 1].strip(), text, listen, last, changed, seen)


@cache
def wording() -> dict[str, tuple[str, str]]:
    """For each kind what is asked, and what a good answer contains."""
    page = (HERE / "questions.md").read_text(encoding="utf-8")
    sections = ([" ".join(part.split()) for part in text.split("\n\n")] for text in page.split("\n## ")[1:])
    return {kind: (asked, listen.removeprefix("Listen for: ")) for kind, asked, listen in sections}


def _changed(old: ast.AST, new: str, lines: Sequence[str]) -> str:
    """The file with `new` in the place of a node, in parentheses where they make a difference, quotes as they were."""
    if "'" not in lines[place(old)[0] - 1]:
        new = new.replace("'", '"')
    with_parentheses = replaced(lines, old, new if isinstance(old, ast.stmt) else f"({new})")
    plain = replaced(lines, old, new)
    try:
        same = ast.dump(ast.parse(plain)) == ast.dump(ast.parse(with_parentheses))
    except SyntaxError:
        same = False
    return plain if same else with_parentheses


def place(node: ast.AST) -> Place:
    """First and last line of a node, and its columns in bytes."""
    first, begin = int(getattr(node, "lineno", 1)), int(getattr(node, "col_offset", 0))
    return first, int(getattr(node, "end_lineno", first)), begin, int(getattr(node, "end_col_offset", begin))


def replaced(lines: Sequence[str], node: ast.AST, new: str) -> str:
    """The file with another text in place of a node, all else as it was written."""
    first, last, begin, end = place(node)
    before, behind = lines[first - 1].encode()[:begin].decode(), lines[last - 1].encode()[end:].decode()
    return "\n".join([*lines[: first - 1], before + new + behind, *lines[last:]]) + "\n"


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a statement except annotations, parameters, bare strings and what stands in f-strings."""
    if (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) or isinstance(node, ast.JoinedStr):
        return
    yield node
    skipped = ("annotation", "returns", "args") if isinstance(node, ast.FunctionDef | ast.Lambda) else ("annotation",)
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name not in skipped:
                yield from _inside(child)


def _asked(node: ast.AST, lent: set[str]) -> Iterator[Found]:
    """What can be asked about a node. lent: the names of the function's parameters."""
    match node:
        case ast.Compare(left, [first, *more], others):
            other = ast.Compare(left, [COMPARED[type(first)][0](), *more], others)
            yield Found("comparison", code(node), node, code(other), (node,))
        case ast.Subscript(ctx=ast.Load()):
            yield from _indexed(node)
        case ast.Call(ast.Attribute() as function):
            yield from _method(node, function)
        case ast.Call(ast.Name(name)) if name in lent:
            yield Found("lent function", name, seen=(*node.args, node))
        case ast.Call(ast.Name("min" | "max" | "range" as name), [_, *_] as args):
            stop = min(1, len(args) - 1)
            longer = [_one_more(arg) if at == stop and name == "range" else arg for at, arg in enumerate(args)]
            swapped = ast.Name({"min": "max", "max": "min"}.get(name, name), ast.Load())
            yield Found("bound", code(node), node, code(ast.Call(swapped, longer, node.keywords)), (node,))
        case ast.BinOp(left, ast.MatMult(), right):
            yield Found("product", code(node), seen=(left, right, node))
        case ast.BinOp(left, ast.FloorDiv() | ast.Mod() as how, right):
            turned = ast.BinOp(left, ast.Mod() if isinstance(how, ast.FloorDiv) else ast.FloorDiv(), right)
            yield Found("whole numbers", code(node), node, code(turned), (node,))
        case ast.BinOp(left, ast.Div() | ast.Pow()):
            yield Found("scale", code(node), node, code(left), (node,))
        case ast.For(iter=head, body=[first, *_]) | ast.While(head, [first, *_]):
            yield Found("loop", "", seen=(head, first))
        case ast.If(test) | ast.IfExp(test):
            yield Found("branch", code(test), test, "True", (test,))
        case ast.AugAssign(target, how, value):
            read = ast.parse(code(target), mode="eval").body  # the target, as it is read
            yield Found("in place", code(node), node, f"{code(target)} = {code(ast.BinOp(read, how, value))}", (value,))
        case ast.Constant(int() | float() as value) if not isinstance(value, bool) and value not in PLAIN:
            yield Found("number", repr(value), node, repr(2 * value))


def _indexed(node: ast.Subscript) -> Iterator[Found]:
    parts = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
    told, new = code(node), partial(_with_parts, node)
    nones = [at for at, part in enumerate(parts) if isinstance(part, ast.Constant) and part.value is None]
    picks = [at for at, part in enumerate(parts) if not isinstance(part, ast.Slice)]
    sliced = [at for at, part in enumerate(parts) if isinstance(part, ast.Slice) and (part.lower or part.upper)]
    if nones:
        rest = [part for at, part in enumerate(parts) if at != nones[0]]
        to = nones[0] + 1 if nones[0] + 1 < len(parts) or not rest else nones[0] - 1
        rest = rest or [ast.Slice()]
        yield Found("new dimension", told, node, new([*rest[:to], parts[nones[0]], *rest[to:]]), (node.value, node))
    elif len(picks) > 1:
        whole = [ast.Slice() if at == picks[0] else part for at, part in enumerate(parts)]
        yield Found("index", told, node, new(whole), (node,))
    elif sliced:
        part = parts[sliced[0]]
        assert isinstance(part, ast.Slice)
        lower, upper = (part.lower, _one_more(part.upper)) if part.upper else (_one_more(part.lower), None)
        parts[sliced[0]] = ast.Slice(lower, upper, part.step)
        yield Found("slice", told, node, new(parts), (node.value, node))
    elif _whole(parts[0]):
        yield Found("one of many", told, node, new([_one_more(parts[0])]), (node,))
    elif not isinstance(parts[0], ast.Slice | ast.Constant):
        yield Found("picked", told, node, new([_one_more(parts[0])]), (node,))


def _method(node: ast.Call, function: ast.Attribute) -> Iterator[Found]:
    """What can be asked of a call of something's method, or of a function of a module."""
    name, owner = function.attr.rstrip("_"), function.value
    module = isinstance(owner, ast.Name) and owner.id in MODULES
    before = owner if not module else node.args[0] if node.args else node
    for kind in (kind for kind, names in CALLS.items() if name in names):
        if kind != "replaced values":
            yield Found(kind, code(node), seen=(before, node))
        elif not module or (name == "where" and len(node.args) == 3):
            without = owner if not module else node.args[1]
            yield Found(kind, code(node), node, code(without), (before, node))


def _with_parts(node: ast.Subscript, parts: Sequence[ast.expr]) -> str:
    """A subscript with other parts."""
    index = parts[0] if len(parts) == 1 else ast.Tuple(list(parts), ast.Load())
    return code(ast.Subscript(node.value, index, ast.Load()))


def _one_more(node: ast.expr | None) -> ast.expr:
    """The next index in the same direction, or one more of anything else."""
    assert node is not None
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        value = None
    if not isinstance(value, int):
        return ast.BinOp(node, ast.Add(), ast.Constant(1))
    return ast.Constant(value - 1 if value < 0 else value + 1)


def _whole(node: ast.AST) -> bool:
    """Whether an index is a literal number."""
    node = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(node, ast.Constant) and isinstance(node.value, int)


def code(node: ast.AST) -> str:
    """A piece of code in one line."""
    return " ".join(ast.unparse(ast.fix_missing_locations(node)).split())
