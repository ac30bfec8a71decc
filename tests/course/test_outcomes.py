"""Values: how they are compared, drawn and shrunk, and sent by a protocol that is bounded and never unpickles."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nanocourse.checks import wire
from nanocourse.checks.shrink import smallest
from nanocourse.exercises.cases import Case
from nanocourse.exercises.outcomes import Difference, Returned, deviation, difference


def apart(expected: object, got: object, tolerance: float = 0.0, axes: Any = (), typed: bool = False) -> Difference:
    found = difference(Returned(expected), Returned(got), tolerance, axes, typed)
    assert found is not None
    return found


ZEROS = torch.zeros(2)
DIFFERENT = [
    (ZEROS, torch.zeros(2, 1)), (ZEROS.long(), ZEROS), (ZEROS.bool(), ZEROS.long()), (ZEROS, ZEROS + torch.nan),
    (ZEROS, ZEROS + torch.inf), (ZEROS, None), ([1], [1, 2]), ({"a": 1}, {"b": 1}), (2**60, 2**60 + 2**10),
    (None, 0), ("a", "b"),
]  # fmt: skip
LIMITS = torch.tensor([torch.nan, torch.inf, -torch.inf])
SAME = [
    (ZEROS, ZEROS.double()), (ZEROS.long(), ZEROS.int()), (LIMITS, LIMITS.clone()), ((1, 2), [1, 2]),
    (3, torch.tensor(3)), (3, 3.0),
]  # fmt: skip


@pytest.mark.parametrize(("expected", "got"), DIFFERENT)
def test_different_values_differ(expected: object, got: object) -> None:
    assert apart(expected, got, 1e-30)
    assert deviation(Returned(expected), Returned(got)) > 0


@pytest.mark.parametrize(("expected", "got"), SAME)
def test_values_are_the_same_in_another_form(expected: object, got: object) -> None:
    assert difference(Returned(expected), Returned(got), 0.0) is None
    assert deviation(Returned(expected), Returned(got)) == 0


OWNED = (("owned", "row", "block"), ("free", "place"))
SENT = (("blocks", "row"), ("sent", "place", ("row",), ("token",)))
PLACES = [
    ([1, 2], [1, 3], ("token",), "token 1"),
    (([[1], [2]], [3]), ([[1], [4]], [3]), OWNED, "owned, row 1, block 0"),
    (([[1]], [3, 5]), ([[1]], [3, 4]), OWNED, "free, place 1"),
    (([2, 2], [(0, 453)]), ([2, 2], [(0, 579)]), SENT, "sent, place 0, token"),
]


@pytest.mark.parametrize(("expected", "got", "axes", "where"), PLACES)
def test_differences_name_the_place(expected: object, got: object, axes: Any, where: str) -> None:
    assert apart(expected, got, 1e-9, axes).where == where


def test_differences_tell_numbers_types_and_parts_of_lists() -> None:
    other = torch.zeros(2, 3)
    other[1, 2] = 0.5
    found = apart(torch.zeros(2, 3), other, 1e-3, ("row", "head"))
    assert (found.where, found.expected, found.got, found.size) == ("row 1, head 2", "0", "0.5", 0.5)
    assert difference(Returned(torch.zeros(2, 3)), Returned(other), 0.6) is None
    typed = apart(torch.arange(2), torch.arange(2).int(), typed=True)
    assert (typed.where, typed.expected, typed.got) == ("", "the type int64", "int32")
    assert deviation(Returned(torch.arange(2)), Returned(torch.arange(2).int()), typed=True) > 1
    lists = apart([0] * 31 + [1] * 18, [0] * 31 + [2] * 19)
    assert lists.expected.startswith("49 items, from item 28 on: [0, 0, 0, 1, ")
    assert lists.got.startswith("50, from item 28 on: [0, 0, 0, 2, ")


def test_draws_depend_on_seed_and_name_alone() -> None:
    one, other = Case("s"), Case("s")
    other.size("b", 1, 100)
    assert one.size("a", 1, 10**6) == other.size("a", 1, 10**6)
    assert torch.equal(one.floats("x", 3), Case("s", {"a": 1}).floats("x", 3))
    assert not torch.equal(one.floats("x", 3), Case("t").floats("x", 3))
    assert not torch.equal(one.floats("x", 3), one.floats("y", 3))
    assert all(Case(str(seed)).permutation("p", 2).tolist() == [1, 0] for seed in range(50))  # never the order itself


def test_shrinking_finds_the_smallest_sizes_and_zeros() -> None:
    def fails(case: Case) -> bool:
        sizes = case.size("a", 1, 9) >= 3 and case.size("b", 1, 9) >= 2 and case.most("items", 1, 60) >= 7
        return sizes and bool(case.floats("x", 2).any()) and case.floats("y", 2).shape == (2,)

    case = next(one for one in (Case(str(seed)) for seed in range(100)) if fails(one) and one.drawn["b"][1] > 3)
    found = smallest(case, fails)
    assert (found.size("a", 1, 9), found.size("b", 1, 9), found.most("items", 1, 60)) == (3, 2, 7)
    assert found.zeros == {"y"}
    assert smallest(case, lambda candidate: candidate is case) is case  # where nothing smaller fails


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
