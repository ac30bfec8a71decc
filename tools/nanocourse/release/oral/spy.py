"""Put behind a learner's file, so that expressions of it can be wrapped: what they are worth is noted."""

from typing import Any

NAME, LOG, MOST = "_spied", "_spied_log", 200


def _spied(number: int, value: Any = True) -> Any:
    """Note a value, and give it back."""
    import sys

    log = sys.__dict__.setdefault("_spied_log", [])  # it outlives this file, which is loaded again for `_spied_log`
    if len(log) < MOST:
        log.append((number, _told(value)))
    return value


def _spied_log() -> Any:
    """What was noted."""
    import sys

    return sys.__dict__.pop("_spied_log", [])


def _told(value: Any) -> str:
    """Shape, type and numbers of a tensor; anything else as Python shows it."""
    try:
        shape = getattr(value, "shape", None)
        if shape is None:
            return " ".join(repr(value).split())[:300]
        head = f"of shape {tuple(shape)}, {str(value.dtype).removeprefix('torch.')}"
    except Exception:
        return f"a {type(value).__name__}"
    try:
        numbers = value.detach()
        if numbers.numel() <= 24:
            return f"{head}: {numbers.tolist()}"
        return f"{head}, from {numbers.min().item():.6g} to {numbers.max().item():.6g}"
    except Exception:
        return head
