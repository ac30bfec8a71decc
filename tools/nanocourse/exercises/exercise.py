"""What an exercise consists of, as its files declare it and as the rest of the package uses it.

`exN_name.py` declares EXERCISE (a `Spec`) and CHECKS. In `exN_name_answers.py` each function whose name does not begin
with an underscore is a correct variant, or an `edition`, and EQUIVALENT says which mutants are no mistakes. The text is
the page `exN_name.md`, see `page`, and wrong answers are rows of `wrong.toml`, see `bank`. `chapters.load` puts them
together as one `Exercise`.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from nanocourse.exercises.cases import Call, Case
from nanocourse.exercises.outcomes import Axes, Difference, Outcome, Returned, difference, local
from nanocourse.exercises.scene import keeping

Function = Callable[..., Any]
Places = Mapping[str, Any]  # of the engine, as "module:name" or "module:class.name": what takes them
IMPORTS = ("import torch", "import torch.nn.functional as F", "from torch import Tensor")
COMPILES = "it compiles"


@dataclass(frozen=True)
class Kernel:
    """What an exercise has in addition if its answer is a Triton kernel: see `kernels`.

    oracle: what a launch must return, in PyTorch; its signature is that of a call. launcher: the file that launches the
    kernel. The reference is the kernel without its decorator, so that Triton is not needed to show it.
    """

    oracle: Function
    launcher: Path


@dataclass(frozen=True)
class Spec:
    """What an exercise's file declares about it.

    reference: the right answer: a function of the exercise's file, or one of the engine as "module:name".
    lines: roughly how many an answer takes. example: a call with small numbers, shown with its result in the stub.
    axes: names of the result's dimensions, for "the first place that differs"; if the result is a tuple, or what stands
    in it, a tuple for each item: its name, and those of its dimensions. typed: a result must have the reference's
    dtype, and be a whole number where that is one.
    section: heading of the section to read.
    imports: of the stub, by default torch's where the signature names a Tensor.
    tolerance: allowed |difference| / max(1, |expected|), below 1; whole numbers must be equal. refuse: further
    functions that must not be called.
    swap: for a solution, what takes which places of the engine while it runs there; by default the solution takes the
    reference's, if the reference is the engine's.
    verdicts: results are yes or no, so that a mistake is recognised by its verdicts in all checks together.
    fixed: what a check asks depends on the number of its case alone and not on the seed, so that once is enough.
    pure: a call leaves its arguments and torch's random state as they were; the stub says so. In a scene that is what
    is handed over, tensors apart. It does not count for verdicts and kernels.
    exact: with typed, a list is no tuple and a whole number no tensor, and a dict has no other entries.
    contiguous: the arguments whose numbers lie end to end, as the contract says; in others they need not.
    displaced: for another exercise's id, why this answer is not called while that exercise's answer runs in the engine.
    scene: a function of a file beside the text that calls the answer: scene(answer, *arguments of a check) -> what is
    compared. For answers that write into tensors or keep their addresses, which no other process could see.
    title, task, invariants, hints: of the page beside the file. Hints are three: invariant, place, pseudocode.
    """

    reference: Function | str
    lines: int
    example: Callable[[], Call]
    section: str
    axes: Axes = ()
    typed: bool = False
    exact: bool = False
    tolerance: float = 1e-4
    imports: tuple[str, ...] | None = None
    refuse: tuple[str, ...] = ()
    swap: Callable[[Function], Places] | None = None
    limit_s: float = 10.0
    verdicts: bool = False
    fixed: bool = False
    contiguous: tuple[str, ...] = ()
    pure: bool = True
    kernel: Kernel | None = None
    scene: Function | None = None
    displaced: Mapping[str, str] = field(default_factory=dict)
    title: str = ""
    task: str = ""
    invariants: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check:
    """One check: `make` turns a case into a call on which solution and reference must agree.

    The function's docstring says in one sentence what the check requires; its name is the check's name. cases: number
    of seeds. part: if the result is a dict, the one entry that is compared. wide: it combines what the rules demand
    (see `rules`), and so sees most of what the others see; these stay, since they say what is wrong. tolerance: instead
    of the exercise's, where right answers part further.
    """

    make: Callable[[Case], Call]
    cases: int = 2
    part: str = ""
    wide: bool = False
    tolerance: float = 0.0

    @property
    def name(self) -> str:
        return self.make.__name__.replace("_", "-")

    @property
    def says(self) -> str:
        return _sentence(self.make)

    def looked_at(self, outcome: Outcome) -> Outcome:
        """The part of an outcome that is compared."""
        if self.part and isinstance(outcome, Returned) and isinstance(outcome.value, dict):
            return Returned({self.part: outcome.value.get(self.part)}, outcome.observed)
        return outcome


@dataclass(frozen=True)
class Wrong:
    """A plausible wrong answer: the reference with changes.

    says: the misconception in one sentence. origin: who made it, where; "" for an author's own slip. changes: a text
    that stands once in the reference, and what replaces it, by turns: see `bank`. lesson: if the answer turned out to
    be right, why. unnamed: the wrong answer that it equals wherever it is wrong, or is like where few inputs show it:
    it has no name of its own.
    """

    name: str
    says: str
    origin: str
    changes: tuple[str, ...]
    lesson: str = ""
    unnamed: str = ""


@dataclass(frozen=True)
class Right:
    """A correct variant, which must pass; its docstring says what is different about it."""

    answer: Function

    @property
    def name(self) -> str:
        return self.answer.__name__.replace("_", "-")


@dataclass(frozen=True)
class Edition:
    """The same idea in another form, which a release may ask for and no chapter prints.

    reference: the right answer in this form, with its own signature and docstring. args turns the arguments of the
    printed form into those of this form, back does the reverse, result turns the printed form's result and arguments
    into this form's result. played: of an exercise with a scene, in place of these three: an answer in this form, as
    the scene calls one in the printed form.
    """

    name: str
    says: str
    reference: Function
    args: Callable[..., tuple[Any, ...]] = lambda *args: args
    back: Callable[..., tuple[Any, ...]] = lambda *args: args
    result: Callable[..., Any] = lambda result, *args: result
    axes: tuple[str, ...] = ()
    played: Callable[[Function], Function] | None = None

    def of(self, answer: Function) -> Function:
        """A right or wrong answer to the printed form, in this form."""

        def adapted(*args: Any) -> Any:
            plain = self.back(*args)
            return self.result(answer(*plain), *plain)

        adapted.__name__ = answer.__name__
        return adapted

    def scene(self, scene: Function | None) -> Function | None:
        """The exercise's scene, for answers in this form."""
        if scene is None or self.played is None:
            return scene
        played = self.played

        @functools.wraps(scene)
        def adapted(answer: Function, *args: Any) -> Any:
            return scene(played(answer), *args)

        return adapted


def edition(name: str, says: str, **form: Any) -> Callable[[Function], Function]:
    """Declare a function the right answer in another form; `form` is that of `Edition`."""

    def declared(reference: Function) -> Function:
        vars(reference)["edition"] = Edition(name, says, reference, **form)
        return reference

    return declared


@dataclass(frozen=True)
class Exercise:
    """One exercise with everything that belongs to it."""

    id: str  # "1.4"
    slug: str  # "filters"
    path: Path  # of exN_name.py
    spec: Spec
    function: Function  # the right answer
    checks: tuple[Check, ...]
    wrong: tuple[Wrong, ...] = ()
    right: tuple[Right, ...] = ()
    equivalent: Mapping[str, str] = field(default_factory=dict)  # mutant -> why it is no mistake
    editions: tuple[Edition, ...] = ()
    edition: Edition | None = None
    original: Function | None = None  # of an edition, the plain form's right answer

    @property
    def chapter(self) -> int:
        return int(self.id.split(".")[0])

    @property
    def number(self) -> int:
        return int(self.id.split(".")[1])

    @property
    def plain(self) -> Function:
        """The right answer in the printed form, to which patches apply."""
        return self.original or self.function

    @property
    def name(self) -> str:
        """The name of the function that a learner writes."""
        return self.function.__name__

    @property
    def imports(self) -> tuple[str, ...]:
        """The lines that import what most answers need."""
        if self.spec.imports is not None:
            return self.spec.imports
        return IMPORTS if "Tensor" in str(inspect.signature(self.plain)) else ()

    @property
    def oracle(self) -> Function:
        """What defines the right result: the reference, or for a kernel its equivalent in PyTorch."""
        return self.spec.kernel.oracle if self.spec.kernel else self.staged(self.function)

    def staged(self, answer: Function) -> Function:
        """An answer as checks call it: directly, or in the exercise's scene."""
        return self._in(self.spec.scene, answer)

    def known(self, answer: Function) -> Function:
        """A right or wrong answer to the printed form, as checks of this edition call it."""
        if self.edition is None or self.spec.scene is not None:
            return self._in(inspect.unwrap(self.spec.scene) if self.spec.scene else None, answer)
        return self.edition.of(answer)

    def _in(self, scene: Function | None, answer: Function) -> Function:
        if scene is None:
            return answer
        return partial(scene, keeping(answer) if self.pure else answer)

    @property
    def file(self) -> str:
        """The name of the learner's file."""
        return self.path.name

    @property
    def mark(self) -> str:
        """Chapter and number as messages show them: ch01.ex4."""
        return f"ch{self.chapter:02d}.ex{self.number}"

    @property
    def pure(self) -> bool:
        """Whether a call must leave its arguments as they were; in a scene lists and dicts."""
        return self.spec.pure and not (self.spec.verdicts or self.spec.kernel)

    @property
    def undone(self) -> str:
        """The message of the untouched stub's error."""
        return f"{self.mark} {self.name}: {self.spec.title[:1].lower()}{self.spec.title[1:]}"

    @property
    def real_wrong(self) -> tuple[Wrong, ...]:
        """The wrong answers without those that turned out to be right."""
        return tuple(wrong for wrong in self.wrong if not wrong.lesson)

    def named(self, asked: Call) -> dict[str, Any]:
        """The arguments of a call by the names of the signature."""
        if asked.compiles:
            return dict(asked.args[0])
        return dict(inspect.signature(self.oracle).bind(*asked.args).arguments)

    def example(self) -> Call:
        """The worked example, in the form of this edition."""
        return self._formed(self.spec.example())

    def as_edition(self, name: str) -> Exercise:
        """The same exercise in another edition. ValueError where there is none of that name."""
        found = next((edition for edition in self.editions if edition.name == name), None)
        if found is None:
            raise ValueError(f"exercise {self.id} has no edition {name!r}")
        spec = replace(self.spec, axes=found.axes or self.spec.axes, scene=found.scene(self.spec.scene))
        return replace(self, function=found.reference, edition=found, spec=spec, original=self.function)

    def call(self, check: Check, case: Case) -> Call:
        """A check's call, in the form of this edition; the tensors of about every second one are strided."""
        names, strided = tuple(inspect.signature(self.function).parameters), tuple[int, ...]()
        if self.spec.kernel is None and self.spec.scene is None and case.turn((False, True, True, False)):
            strided = tuple(at for at, name in enumerate(names) if name not in self.spec.contiguous)
        return replace(self._formed(check.make(case)), strided=strided, kept=names if self.pure else ())

    def expected(self, asked: Call) -> Outcome:
        """The expected outcome of a call. Functions that it passes are called."""
        return Returned(COMPILES) if asked.compiles else local(self.oracle, replace(asked, strided=()))

    def compare(self, check: Check, expected: Outcome, got: Outcome) -> Difference | None:
        """Where an outcome differs from the expected one, in the part that the check compares."""
        pair = check.looked_at(expected), check.looked_at(got)
        try:
            if more := self.further_entries(expected, got):
                return Difference("", "no other entries", f"one more: {sorted(more)[0]}", math.inf)
            tolerance = check.tolerance or self.spec.tolerance
            return difference(*pair, tolerance, self.spec.axes, self.spec.typed, self.spec.exact)
        except (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError):
            return Difference("", "a result that can be compared", "one that cannot", math.inf)

    def further_entries(self, expected: Outcome, got: Outcome) -> set[str]:
        """Entries of a result that nobody asked for, where the exercise is exact."""
        return _entries(got) - _entries(expected) if self.spec.exact else set()

    def _formed(self, asked: Call) -> Call:
        return replace(asked, args=self.edition.args(*asked.args)) if self.edition else asked


def _entries(outcome: Outcome) -> set[str]:
    """The names in a result that is a dict."""
    return set(outcome.value) if isinstance(outcome, Returned) and isinstance(outcome.value, dict) else set()


def _sentence(function: Function) -> str:
    return " ".join((inspect.getdoc(function) or "").split())
