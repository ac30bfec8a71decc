"""The protocol between a parent and the process that runs a learner's code: bounded, and never unpickled."""

from __future__ import annotations

import io
import json
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nanocourse.checks import wire

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
def test_tensors_cross(dtype: str) -> None:
    whole = torch.arange(6).view(2, 3).to(getattr(torch, dtype))
    sent = [whole, whole.T, whole[0, 0], whole[:0]]
    for came, tensor in zip(crossed(sent), sent, strict=True):  # type: ignore[call-overload]
        assert came.dtype == tensor.dtype
        assert torch.equal(came, tensor)


def frame(header: object, body: bytes = b"") -> io.BytesIO:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return io.BytesIO(wire.HEAD.pack(wire.MAGIC, len(text), len(body)) + text + body)


STREAMS = {
    "short head": io.BytesIO(b"NIC"), "magic": io.BytesIO(b"XXXX" + bytes(12)),
    "header too long": io.BytesIO(struct.pack("<4sIQ", wire.MAGIC, wire.MAX_HEADER + 1, 0)),
    "body too long": io.BytesIO(struct.pack("<4sIQ", wire.MAGIC, 2, wire.MAX_BODY + 1)),
    "cut": io.BytesIO(frame({"a": 1}).getvalue()[:-1]), "no JSON": frame(b"{"), "no object": frame([1]),
    "no text": frame(b"\xff\xfe"), "deep list": frame(b"[" * 100_000), "NaN": frame(b'{"a": NaN}'),
    "huge number": frame(b'{"a": 1' + b"0" * 5000 + b"}"),
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
