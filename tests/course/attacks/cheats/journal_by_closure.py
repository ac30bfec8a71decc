"""4.6: the scene's own lists say that a warm-up was made, which was not."""


def found(function, name):
    for inner in (function, *(cell.cell_contents for cell in function.__closure__ or ())):
        code = getattr(inner, "__code__", None)
        if code is not None and name in code.co_freevars:
            return inner.__closure__[code.co_freevars.index(name)].cell_contents
    raise AssertionError(f"there is no {name}")


def capture(step, state, warm, record):
    found(step, "asked").append("warm")
    found(step, "compiled").append(1)
    if found(step, "fails") == "warm":
        raise MemoryError("out of memory")
    return record(step)
