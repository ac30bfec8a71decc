"""What a graded solution may use of the package: the names that its stub imports, each as self-contained source.

The real modules also hold the answers, and from a function one can reach everything in its module.
"""

from __future__ import annotations

import ast
import builtins
import inspect
from types import ModuleType

from nanocourse.exercises.chapters import resolve
from nanocourse.exercises.exercise import Exercise
from nanocourse.exercises.sources import function_source
from nanocourse.grade.isolation.confine import PACKAGES


def helper_modules(exercise: Exercise) -> dict[str, str]:
    """Sources of the modules, by name, that an exercise's stub imports from. ValueError if they hold the answer."""
    found: dict[str, dict[str, str]] = {}
    for node in (node for line in exercise.imports for node in ast.parse(line).body):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("nanoinfer."):
            for alias in node.names:
                _add(node.module, alias.name, found.setdefault(node.module, {}))
    for lent in found.values():
        if exercise.function.__name__ in lent:
            raise ValueError(f"exercise {exercise.id} lends the function that it asks for")
    return {module: "\n\n".join(lent.values()) for module, lent in found.items()}


def _add(module: str, name: str, lent: dict[str, str]) -> None:
    """Add one name of a module, after everything that it needs."""
    value = resolve(f"{module}:{name}")
    if isinstance(value, ModuleType):
        lent[name] = f"import {value.__name__} as {name}"
    elif isinstance(value, int | float | str | tuple):
        lent[name] = f"{name} = {value!r}"
    elif inspect.isfunction(value) and value.__module__ == module:
        source = function_source(value)
        (node,) = ast.parse(source).body
        used = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} - {name} - set(lent)
        for needed in sorted(used & value.__globals__.keys() - set(dir(builtins))):
            _add(module, needed, lent)
        lent[name] = source
    elif isinstance(getattr(value, "__module__", None), str) and not value.__module__.startswith(PACKAGES):
        lent[name] = f"from {value.__module__} import {value.__name__} as {name}"
    else:
        raise ValueError(f"{module}.{name} cannot be lent to a graded solution: it needs more of the package")
