"""4.6: rows stay live in the warm-up, and the cache is put back through the step's closure."""


def found(function, name):
    code = function.__code__
    return function.__closure__[code.co_freevars.index(name)].cell_contents


def capture(step, state, warm, record):
    cache = found(step, "cache")
    saved = state.clone(), cache.clone()
    try:
        warm(step)
        return record(step)
    finally:
        state.copy_(saved[0])
        cache.copy_(saved[1])
