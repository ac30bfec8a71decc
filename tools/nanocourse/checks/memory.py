"""Memory that two processes share, as far as an answer can tell: each has its own copy, and whenever control goes to
the other side, what has changed goes with it.

An answer that writes into tensors or keeps their addresses can so be asked by a process that runs none of its code.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nanocourse.checks.wire import DTYPES, WireError

MOST_REGIONS, MOST_BYTES, MOST_NUMBERS = 4096, 8 << 20, 1 << 18


@dataclass
class Region:
    """So many bytes from an address on, in a storage. known: what the other side has; None before it was told."""

    storage: torch.UntypedStorage
    address: int
    size: int
    writable: bool  # by the other side
    known: bytes | None = None

    @property
    def content(self) -> bytes:
        return ctypes.string_at(self.address, self.size)


class Shared:
    """One side of it. sign: 1 for the grader, whose regions have positive numbers; -1 for the answer's process.

    The grader shares what a tensor spans, and accepts writes where it said so; the other side shares whole storages.
    """

    def __init__(self, sign: int) -> None:
        self.sign = sign
        self.regions: dict[int, Region] = {}
        self._bytes = 0

    def refer(self, tensor: Tensor, writable: bool = False) -> list[Any] | None:
        """Where a tensor lies: region, offset in bytes, dtype, shape and strides. None for what has to be copied."""
        dtype = str(tensor.dtype).removeprefix("torch.")
        plain = tensor.layout == torch.strided and tensor.device.type == "cpu" and tensor.numel() > 0
        if not plain or dtype not in DTYPES or tensor.is_conj() or tensor.is_neg():
            return None
        shape, stride = list(tensor.shape), list(tensor.stride())
        address, size = tensor.data_ptr(), _span(shape, stride) * tensor.element_size()
        for number, one in reversed(self.regions.items()):
            if one.address <= address and address + size <= one.address + one.size:
                return [number, address - one.address, dtype, shape, stride]
        storage, begin = tensor.untyped_storage(), address
        if self.sign < 0:
            begin, size = storage.data_ptr(), storage.nbytes()
        if self._bytes + size > MOST_BYTES or len(self.regions) >= MOST_REGIONS:
            return None
        self._add(self.sign * (len(self.regions) + 1), Region(storage, begin, size, writable))
        return [self.sign * len(self.regions), address - begin, dtype, shape, stride]

    def news(self, bodies: list[bytes]) -> list[list[int]]:
        """Number and size of each region with other content than the other side has. bodies: gets the contents."""
        found = []
        for number, one in self.regions.items():
            content = one.content
            if content != one.known:
                one.known = content
                bodies.append(content)
                found.append([number, one.size])
        return found

    def take(self, news: Any, body: bytes) -> bytes:
        """Write down what the other side tells; the rest of the body. WireError for what it may not tell."""
        at = 0
        for number, size in news:
            if type(number) is not int or type(size) is not int or not 0 < size <= len(body) - at:
                raise WireError("it told of memory that is none")
            content, at = body[at : at + size], at + size
            if number not in self.regions and number * self.sign < 0 and self._bytes + size <= MOST_BYTES:
                storage = torch.UntypedStorage(size)  # type: ignore[no-untyped-call]
                self._add(number, Region(storage, storage.data_ptr(), size, writable=True))
            one = self.regions.get(number)
            if one is None or one.size != size:
                raise WireError("it told of memory that was not shared")
            if one.writable or self.sign < 0:
                ctypes.memmove(one.address, content, size)
                one.known = content
        return body[at:]

    def tensor(self, told: Any) -> Tensor:
        """The tensor that lies there. WireError where nothing can."""
        number, offset, dtype, shape, stride = told
        one, kind = self.regions.get(number), getattr(torch, dtype) if dtype in DTYPES else None
        ints = all(type(n) is int and 0 <= n < 2**40 for n in [offset, *shape, *stride])
        if one is None or kind is None or not ints or len(shape) != len(stride) or 0 in shape:
            raise WireError("a tensor is nowhere")
        size = _span(shape, stride) * kind.itemsize
        fits = offset + size <= one.size and math.prod(shape) <= MOST_NUMBERS
        if not fits or (one.address + offset - one.storage.data_ptr()) % kind.itemsize:
            raise WireError("a tensor reaches beyond its memory")
        from_its_begin = one.address + offset - one.storage.data_ptr()
        return torch.empty(0, dtype=kind).set_(one.storage, from_its_begin // kind.itemsize, shape, stride)  # type: ignore[call-overload]

    def _add(self, number: int, region: Region) -> None:
        self.regions[number] = region
        self._bytes += region.size


def _span(shape: list[int], stride: list[int]) -> int:
    """How many numbers lie between the first and the last of a tensor, both included."""
    return 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
