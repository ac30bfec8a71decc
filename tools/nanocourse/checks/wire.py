"""The protocol between parent and worker: frames of a bounded JSON header and raw tensor bytes. Nothing is unpickled.

A frame is b"NIC1", the header's length (4 bytes), the body's length (8 bytes, both little endian), header, body.
Functions are sent as numbers: the receiver can only ask the other side to call them.
"""

from __future__ import annotations

import ctypes
import inspect
import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, BinaryIO

import torch
from torch import Tensor

from nanocourse.exercises.outcomes import Foreign
from nanocourse.exercises.scene import Lent, Resumed

MAGIC, HEAD = b"NIC1", struct.Struct("<4sIQ")
MAX_HEADER, MAX_BODY = 4 << 20, 64 << 20
MAX_DEPTH, MAX_VALUES = 24, 1 << 20
MOST_PACKED = 1 << 17  # items of one value that is sent
MAX_BITS = 1024  # of a whole number: longer ones cross as their kind alone
DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")


# What reading a message may raise: it was written in a process that runs anybody's code.
BROKEN = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)


class WireError(Exception):
    """The other side sent something malformed, or too much; the message is one sentence."""


@dataclass(frozen=True)
class Bounds:
    """The largest header and body that are accepted, in bytes."""

    header: int = MAX_HEADER
    body: int = MAX_BODY


def send(stream: BinaryIO, header: dict[str, Any], bodies: list[bytes]) -> None:
    """Write one frame. WireError if it is too large."""
    stream.write(frame(header, bodies))
    stream.flush()


def frame(header: dict[str, Any], bodies: list[bytes]) -> bytes:
    """One frame. WireError if it is too large."""
    text = json.dumps(header, allow_nan=False).encode()
    size = sum(map(len, bodies))
    if len(text) > MAX_HEADER or size > MAX_BODY:
        raise WireError(f"a message of {len(text) + size} bytes exceeds the limit")
    return b"".join([HEAD.pack(MAGIC, len(text), size), text, *bodies])


def receive(stream: IO[bytes], bounds: Bounds | None = None) -> tuple[dict[str, Any], bytes] | None:
    """Read one frame; None at the end of the stream. WireError for anything malformed or too large."""
    bounds = bounds or Bounds()
    head = stream.read(HEAD.size)
    if not head:
        return None
    if len(head) < HEAD.size:
        raise WireError("a message ended within its header")
    magic, length, size = HEAD.unpack(head)
    if magic != MAGIC or length > bounds.header or size > bounds.body:
        raise WireError("a message does not follow the protocol, or is too large")
    text, body = stream.read(length), stream.read(size)
    if len(text) < length or len(body) < size:
        raise WireError("a message is incomplete")
    try:
        header = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise WireError("a message's header is not JSON") from error
    if not isinstance(header, dict):
        raise WireError("a message's header is not a JSON object")
    return header, body


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


class Packer:
    """Turns a value into JSON and bytes. Functions stay here; the other side knows them by number.

    In a scene a generator crosses as the function that goes on with it: see `Resumed`.

    Containers are read as what they are, not by methods that a class of a learner's has in their place.
    """

    def __init__(
        self,
        functions: list[Callable[..., Any]] | None = None,
        refer: Callable[[Tensor], list[Any] | None] = lambda tensor: None,
        handles: list[Any] | None = None,
    ) -> None:
        """refer: where a tensor lies that both sides have. handles: objects that cross as their number alone."""
        self.functions, self._scene = [] if functions is None else functions, functions is not None
        self.bodies: list[bytes] = []
        self._refer, self._handles = refer, [] if handles is None else handles
        self._values = 0

    def pack(self, value: Any, depth: int = 0) -> Any:  # noqa: PLR0911, PLR0912  one for each kind of value
        """The JSON of a value; a value of an unknown type is sent as the name of its type."""
        self._values += 1
        if depth > 20 or self._values > MOST_PACKED:
            return {"o": "a value of too many levels or parts"}
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int):
            whole = int.__int__(value)
            return whole if whole.bit_length() <= MAX_BITS else {"o": f"int with {whole.bit_length()} bits"}
        if isinstance(value, float):
            number = float.__float__(value)
            return number if math.isfinite(number) else {"f": repr(number)}
        if isinstance(value, list):
            return [self.pack(item, depth + 1) for item in list.__iter__(value)]
        if isinstance(value, tuple):
            return {"t": [self.pack(item, depth + 1) for item in tuple.__iter__(value)]}
        if isinstance(value, dict) and all(isinstance(key, str) for key in dict.__iter__(value)):
            return {"d": [[str.__str__(key), self.pack(item, depth + 1)] for key, item in dict.items(value)]}
        if isinstance(value, Tensor) and (place := self._refer(value)) is not None:
            return {"M": place}
        if isinstance(value, Tensor) and _dtype(value) in DTYPES and value.layout == torch.strided:
            with torch._C.DisableTorchFunctionSubclass():
                plain = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
            self.bodies.append(ctypes.string_at(plain.data_ptr(), plain.nbytes) if plain.nbytes else b"")
            return {"T": [_dtype(plain), list(plain.shape), len(self.bodies[-1])]}
        if type(value) is Lent:
            return {"O": [[[name, self.pack(f)["c"]] for name, f in part.items()] for part in value.parts]}
        for number, handle in enumerate(self._handles):
            if value is handle:
                return {"h": number}
        if self._scene and inspect.isgenerator(value):
            value = Resumed(value)
        if callable(value) and not isinstance(value, type):
            self.functions.append(value)
            return {"c": len(self.functions) - 1}
        return {"o": type(value).__name__[:80]}


class Unpacker:
    """Turns JSON and bytes back into a value. function: makes a stand-in for a function from its number.

    most: the largest number of items (numbers, strings, lists and so on) that the value may contain in all.
    """

    def __init__(
        self,
        body: bytes,
        device: str = "cpu",
        function: Callable[[int], Any] | None = None,
        most: int = MAX_VALUES,
        other: Callable[[str, Any], Any] | None = None,
    ) -> None:
        """other: makes what crosses between the two sides of a scene, from its kind and what it carries."""
        self.body, self.device, self.function, self.other, self.at = body, device, function, other, 0
        self._values, self._most = 0, most

    def unpack(self, value: Any) -> Any:
        """The value. WireError for what `Packer` cannot have made: the other side may be running anybody's code."""
        try:
            return self._value(value, 0)
        except WireError:
            raise
        except BROKEN as error:
            raise WireError("a value in a message is malformed") from error

    def _value(self, value: Any, depth: int) -> Any:  # noqa: PLR0911
        self._values += 1
        if depth > MAX_DEPTH or self._values > self._most:
            raise WireError("a value in a message has too many levels or parts")
        if isinstance(value, list):
            return [self._value(item, depth + 1) for item in value]
        if isinstance(value, str):
            return plain(value)
        if not isinstance(value, dict):
            return value
        if len(value) != 1:
            raise WireError("a value in a message is malformed")
        ((kind, inside),) = value.items()
        if kind == "f":
            return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[inside]
        if kind == "t":
            return tuple(self._value(item, depth + 1) for item in inside)
        if kind == "d":
            return {self._key(key): self._value(item, depth + 1) for key, item in inside}
        if kind == "T":
            return self._tensor(*inside)
        if kind == "c" and self.function is not None and type(inside) is int:
            return self.function(inside)
        if kind in ("M", "O", "h") and self.other is not None:
            return self.other(kind, inside)
        if kind not in ("o", "c"):
            raise WireError("a value in a message is of an unknown kind")
        return Foreign(plain(str(inside), 80) if kind == "o" else "function")

    def _key(self, key: Any) -> str:
        if not isinstance(key, str):
            raise WireError("a key in a message is not a string")
        return plain(key)

    def _tensor(self, dtype: str, shape: list[int], size: int) -> Tensor:
        kind = getattr(torch, dtype) if dtype in DTYPES else None
        ints = all(type(n) is int and n >= 0 for n in [*shape, size])
        if kind is None or not ints or math.prod(shape) * kind.itemsize != size or self.at + size > len(self.body):
            raise WireError("a tensor in a message does not have the size that its shape says")
        data, self.at = bytearray(self.body[self.at : self.at + size]), self.at + size
        flat = torch.frombuffer(data, dtype=kind) if size else torch.empty(0, dtype=kind)
        return flat.view(shape).to(self.device)


def plain(text: str, most: int = MAX_HEADER) -> str:
    """A text that can be written anywhere: half of a surrogate pair, which no file takes, becomes a question mark."""
    return text[:most].encode("utf-8", "replace").decode()


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
