"""The wording of oral questions: for each kind a question, and what a good answer contains.

Each names a change or an input, so that its answer can be tried out: `truth` does that. `{code}` is a piece of the
learner's own line, `{new}` what it would read instead.
"""

from __future__ import annotations

SHAPES = "both shapes in letters (B, T, H, D ...), and the line that depends on that order"
RESULT = "a concrete input, both results, and the check or invariant that would notice"

TEXTS: dict[str, tuple[str, str]] = {
    "comparison": (
        "What changes if `{code}` became `{new}`? Give the smallest input on which the result differs, or say why "
        "there is none.", RESULT,
    ),
    "new dimension": (
        "`{code}`: say the shape before the index and after it. Which line breaks, or goes wrong without an error, if "
        "it read `{new}`?", SHAPES,
    ),
    "index": (
        "`{code}`: how many numbers does it pick, and are they a list of places or a rectangle? What would come out of "
        "`{new}`?", SHAPES,
    ),
    "slice": (
        "`{code}`: what is left out by it? Take an input on which `{new}` leaves out another number of them: who "
        "notices?", RESULT,
    ),
    "one of many": ("`{code}`: which one is it, counted by hand, and why not its neighbour, `{new}`?", RESULT),
    "picked": (
        "`{code}`: what does it pick, for the example at the top of your file: its shape, and one number of it? What "
        "would come out of `{new}`?", "the shape in letters, a number, and what stands beside it",
    ),
    "lent function": (
        "How often is `{code}` called for the example at the top of your file, and with what? What would be different "
        "if it were called once more?", "a count, the arguments, and what a call costs",
    ),
    "dimension": (
        "`{code}`: along which dimension does it run, and what does one number of its result mean? What would it mean "
        "along another one?", "the dimension by its letter, and the meaning in words",
    ),
    "layout": (
        "`{code}`: say the shape before and after. Is there another call with the same resulting shape that would put "
        "other numbers into the same places?", SHAPES,
    ),
    "replaced values": (
        "`{code}`: which places does it change, for the example at the top of your file? What comes out of `{new}` "
        "alone?", RESULT,
    ),
    "precision": (
        "`{code}`: for which inputs would it overflow, or lose all its digits? Which of your lines keeps them away?",
        "a number that is dangerous, and the line that rules it out, or that none does",
    ),
    "library": (
        "`{code}`: write on paper what it computes. Which of its arguments could you leave out, and what would change?",
        "the formula, with its shapes",
    ),
    "bound": (
        "`{code}`: which values come out of it for the example at the top of your file? For which input would `{new}` "
        "be wrong?", RESULT,
    ),
    "product": (
        "`{code}`: say both shapes and the result's. Over which dimension does it sum, and what does one number mean?",
        SHAPES,
    ),
    "whole numbers": (
        "`{code}`: for which inputs is it 0? And `{new}`: what would the result be with that in its place?", RESULT,
    ),
    "scale": (
        "`{code}`: what is it there for? What does the result look like with `{new}`, on small and on large numbers?",
        "the reason, and a prediction that can be tried",
    ),
    "loop": (
        "How often does this loop run for the example at the top of your file? Say one thing that is true each time it "
        "begins, and what ends it.", "a count, an invariant that names the own variables, the end",
    ),
    "branch": (
        "Give an input on which `{code}` is true, and one on which it is false. What would go wrong if it were always "
        "true?", RESULT,
    ),
    "in place": (
        "`{code}`: does it change a value that somebody else holds too? What would be different with `{new}`?",
        "who else holds it (the caller, an earlier turn, nobody), and why",
    ),
    "number": (
        "Where does the number {code} come from? What would {new} in its place do to the result, and which check would "
        "say so?",
        "its source (the task, the format, a limit of float32), and a prediction",
    ),
    "invariant": (
        'It must always hold: "{code}". Point at the line of yours that sees to it. What would come out at the end, in '
        "this line, without it?", "one line, not all of them; an input on which it matters",
    ),
    "by hand": (
        "What does `{code}` hold after this line, for the example at the top of your file: its type or shape, and one "
        "number of it, computed by hand?", "the shape first, then a number with the way to it",
    ),
    "another form": (
        "Here is the task in a form that you have not seen: {code}. Which of your lines have to change, into what, and "
        "which stay as they are?",
        "the lines by number, and a reason for one that stays; not a new solution from the beginning",
    ),
    "a mistake": (
        'Somebody else\'s function looks right at a first glance. It assumes: "{code}" Give an input on which it goes '
        "wrong, and the line of yours that does otherwise.", RESULT,
    ),
}  # fmt: skip
