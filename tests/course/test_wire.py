"""The protocol between a parent and the process that runs a learner's code: bounded, and never unpickled."""

from __future__ import annotations

import io
import json
import math
import struct
from collections.abc import Callable, Generator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nanocourse.checks import wire
from nanocourse.exercises.outcomes import Foreign

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=12,
)


def crossed(value: object) -> object:
    """The value on the other side of a pipe."""
    packer, stream = wire.Packer(), io.BytesIO()
    wire.send(stream, {"value": packer.pack(value)}, packer.bodies)
    stream.seek(0)
    frame = wire.receive(stream)
    assert frame is not None
    header, body = frame
    assert stream.read() == b""
    return wire.Unpacker(body).unpack(header["value"])


@given(plain)
def test_plain_values_cross_as_they_are(value: object) -> None:
    came = crossed(value)
    assert repr(came) == repr(value)  # 1 is not True, and 0.0 is not -0.0


@pytest.mark.parametrize("dtype", wire.DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 4)])
def test_tensors_cross(dtype: str, shape: tuple[int, ...]) -> None:
    tensor = torch.arange(math.prod(shape)).view(shape).to(getattr(torch, dtype))
    (came, again) = crossed([tensor, tensor.T if tensor.dim() == 2 else tensor])  # type: ignore[misc]
    assert came.dtype == tensor.dtype
    assert torch.equal(came, tensor)
    assert torch.equal(again, tensor.T if tensor.dim() == 2 else tensor)


def test_what_no_exercise_asks_for_crosses_as_its_name() -> None:
    assert crossed(object()) == Foreign("object")
    assert crossed([1, {2: 3}]) == [1, Foreign("dict")]
    assert crossed(torch.zeros(2, dtype=torch.complex64)) == Foreign("Tensor")
    assert crossed(int) == Foreign("type")


def test_a_function_crosses_as_a_number() -> None:
    packer = wire.Packer()
    packed = packer.pack([len, print])
    assert packer.functions == [len, print]
    assert wire.Unpacker(b"", function=lambda number: number * 10).unpack(packed) == [0, 10]


def frame(header: object, body: bytes = b"") -> io.BytesIO:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return io.BytesIO(wire.HEAD.pack(wire.MAGIC, len(text), len(body)) + text + body)


STREAMS = {
    "short head": io.BytesIO(b"NIC"), "magic": io.BytesIO(b"XXXX" + bytes(12)),
    "header too long": io.BytesIO(struct.pack("<4sIQ", wire.MAGIC, wire.MAX_HEADER + 1, 0)),
    "body too long": io.BytesIO(struct.pack("<4sIQ", wire.MAGIC, 2, wire.MAX_BODY + 1)),
    "cut": io.BytesIO(frame({"a": 1}).getvalue()[:-1]), "no JSON": frame(b"{"), "no object": frame([1]),
    "no text": frame(b"\xff\xfe"), "deep list": frame(b"[" * 100_000), "deep object": frame(b'{"a": ' * 100_000),
    "NaN": frame(b'{"a": NaN}'), "huge number": frame(b'{"a": 1' + b"0" * 5000 + b"}"),
}  # fmt: skip


@pytest.mark.parametrize("stream", STREAMS)
def test_malformed_frames_are_refused(stream: str) -> None:
    with pytest.raises(wire.WireError):
        wire.receive(STREAMS[stream])


PACKED = [
    {"T": ["float32", [2], 4]},  # fewer bytes than the shape says
    {"T": ["float32", [2], 8]},  # more than the body holds
    {"T": ["float32", [0, 2**70], 0]},  # no elements, and more columns than torch can count
    {"T": ["float32", [-1], 4]}, {"T": ["object", [1], 8]}, {"T": ["float32", [True], 4]}, {"T": ["float32", 4, 4]},
    {"T": []}, {"T": "tensor"}, {"f": "1e999", "t": []}, {"f": "1e999"}, {"d": [[[], 1]]}, {"d": [[1, 2]]}, {"d": 5},
    {"t": 5}, {"x": 1}, {},
]  # fmt: skip


@pytest.mark.parametrize("packed", PACKED, ids=str)
def test_malformed_values_are_refused(packed: object) -> None:
    with pytest.raises(wire.WireError):
        wire.Unpacker(b"\0\0\0\0").unpack(packed)


def test_depth_and_number_of_values_are_bounded() -> None:
    deep: object = 1
    for _ in range(wire.MAX_DEPTH + 1):
        deep = {"t": [deep]}
    with pytest.raises(wire.WireError, match="too many"):
        wire.Unpacker(b"").unpack(deep)
    with pytest.raises(wire.WireError, match="too many"):
        wire.Unpacker(b"").unpack([0] * (wire.MAX_VALUES + 1))


def test_a_reader_may_set_closer_bounds() -> None:
    with pytest.raises(wire.WireError):
        wire.receive(frame({}, bytes(11)), wire.Bounds(body=10))
    assert wire.receive(frame({}, bytes(10)), wire.Bounds(body=10)) == ({}, bytes(10))
    assert wire.receive(io.BytesIO()) is None  # the end of the stream is no error


def test_what_is_too_large_is_not_sent() -> None:
    with pytest.raises(wire.WireError):
        wire.send(io.BytesIO(), {"a": "x" * wire.MAX_HEADER}, [])
    with pytest.raises(wire.WireError):
        wire.send(io.BytesIO(), {}, [bytes(wire.MAX_BODY + 1)])


def test_a_generator_crosses_in_a_scene_as_what_goes_on_with_it() -> None:
    def program() -> Generator[int, int, int]:
        return 1 + (yield 7)

    lent: list[Callable[..., Any]] = []
    assert wire.Packer(lent).pack([program()]) == [{"c": 0}]
    assert lent[0]([None]) == ([7], False)
    assert lent[0]([4]) == ([5], True)
    assert wire.Packer().pack(program()) == {"o": "generator"}
