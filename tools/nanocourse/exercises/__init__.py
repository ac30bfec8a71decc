"""What an exercise is: its declaration, inputs, and right and wrong answers. Exercise files import from here."""

from nanocourse.exercises.cases import FAR, MANY, Call, Case, call, large_in_turn
from nanocourse.exercises.chapters import beside, run_folder
from nanocourse.exercises.exercise import IMPORTS, Check, Function, Kernel, Places, Spec

__all__ = [
    "FAR", "IMPORTS", "MANY", "Call", "Case", "Check", "Function", "Kernel", "Places", "Spec", "beside", "call",
    "large_in_turn", "run_folder",
]  # fmt: skip
