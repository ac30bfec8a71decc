"""Submissions as students make them, and as attackers do: what is taken of a folder or a zip, and what is left out."""

from __future__ import annotations

import io
import os
import stat
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from nanocourse.grade.collect import MAX_DEPTH, MAX_ENTRIES, MAX_FILE, MAX_TOTAL, Collected, beside, collect, printable

NAME, CHAPTER = "ex1_attention.py", "01-naive"


def zipped(entries: dict[str, bytes], **modes: int) -> bytes:
    """A zip of these entries. modes: of an entry by its number, `e0=0o120777` for a symbolic link."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for at, (name, data) in enumerate(entries.items()):
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = modes.get(f"e{at}", stat.S_IFREG | 0o644) << 16
            archive.writestr(info, data)
    return out.getvalue()


def of_zip(folder: Path, data: bytes) -> Collected:
    (folder / "s.zip").write_bytes(data)
    return collect(folder / "s.zip")


def test_a_folder(tmp_path: Path) -> None:
    for name in (f"a b/{NAME}", "ü/ex2_block.py", "notes.txt", ".git/ex3_last.py", "__MACOSX/x.py", "venv/y.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    assert set(map(str, collect(tmp_path).files)) == {f"a b/{NAME}", "ü/ex2_block.py"}


def test_nested_zips_and_what_systems_add(tmp_path: Path) -> None:
    inner = zipped({NAME: b"x = 1", f"__MACOSX/._{NAME}": b"\0", f"._{NAME}": b"\0"})
    taken = of_zip(tmp_path, zipped({"deep/inner.zip": zipped({"in/again.ZIP": inner})}))
    assert list(map(str, taken.files)) == [f"s/deep/inner/in/again/{NAME}"]
    assert taken.find(NAME, CHAPTER) is not None


@pytest.mark.skipif(sys.platform == "win32", reason="links and pipes of POSIX")
def test_links_and_pipes_in_folders_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / NAME).write_text("secret = 1")
    own = tmp_path / "own"
    own.mkdir()
    (own / NAME).symlink_to(tmp_path / "other" / NAME)
    (own / "folder").symlink_to(tmp_path / "other")
    os.mkfifo(own / "ex2_block.py")  # opened without care, it would be waited for
    taken = collect(own)
    assert not taken.files
    assert len(taken.notes) == 2


def nested(data: bytes, times: int) -> bytes:
    return nested(zipped({"a.zip": data}), times - 1) if times else data


LEADS_OUT = ("/etc/x.py", "a/../../x.py", "..\\..\\x.py", "C:\\x.py", "C:/x.py")
LEFT_OUT: dict[str, tuple[Callable[[], bytes], str]] = {
    **{name: (lambda name=name: zipped({name: b"x = 1"}), "leads out") for name in LEADS_OUT},  # type: ignore[misc]
    "a link": (lambda: zipped({NAME: b"/etc/passwd"}, e0=stat.S_IFLNK | 0o777), "symbolic link"),
    "a bomb": (lambda: zipped({NAME: bytes(100 << 20)}), "KiB"),  # in 100 kB
    "zips in zips": (lambda: nested(zipped({NAME: b"x = 1"}), MAX_DEPTH + 1), "too many zips"),
    "many entries": (lambda: zipped({f"a{n}.txt": b"" for n in range(MAX_ENTRIES + 2)}), "the rest was left out"),
    "nothing": (lambda: b"", "no zip"), "no zip at all": (lambda: b"no zip at all", "no zip"),
    "a part": (lambda: zipped({NAME: b"x"})[:-30], "no zip"),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_is_left_out_of_a_zip_is_told_and_nothing_is_unpacked(tmp_path: Path, name: str) -> None:
    make, says = LEFT_OUT[name]
    taken = of_zip(tmp_path, make())
    assert not taken.files
    assert says in taken.notes[0]
    assert [path.name for path in tmp_path.iterdir()] == ["s.zip"]


def test_entries_that_are_each_within_the_limit_are_not_all_taken(tmp_path: Path) -> None:
    taken = of_zip(tmp_path, zipped({f"a{n}.py": bytes(MAX_FILE) for n in range(40)}))
    assert sum(map(len, taken.files.values())) <= MAX_TOTAL
    assert "the rest was left out" in taken.notes[-1]


METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)


@pytest.mark.parametrize("method", METHODS)
def test_an_archive_with_any_byte_damaged_is_read_or_told(tmp_path: Path, method: int) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.writestr(NAME, b"x = 1\n" * 40)
    for at, byte in enumerate(out.getvalue()):
        for damage in (0x01, 0x80, 0xFF):
            data = bytearray(out.getvalue())
            data[at] = byte ^ damage
            taken = of_zip(tmp_path, bytes(data))
            assert taken.digest


@pytest.mark.parametrize("method", METHODS[2:])
def test_what_unpacks_to_much_is_left_out_without_being_unpacked(tmp_path: Path, method: int) -> None:
    with zipfile.ZipFile(tmp_path / "s.zip", "w", method) as archive, archive.open(NAME, "w") as entry:
        for _ in range(40):
            entry.write(bytes(10 << 20))
    tracemalloc.start()
    taken = collect(tmp_path / "s.zip")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "KiB" in taken.notes[0]
    assert peak < 200 << 20


def test_a_submission_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    assert "cannot be read" in collect(tmp_path / "gone.zip").notes[0]


def test_encrypted_entries_are_left_out(tmp_path: Path) -> None:
    data = bytearray(zipped({NAME: b"x = 1"}))
    for signature, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + at] |= 1
    taken = of_zip(tmp_path, bytes(data))
    assert not taken.files
    assert taken.notes


def test_a_damaged_entry_costs_itself_alone(tmp_path: Path) -> None:
    data = bytearray(zipped({NAME: b"x = 1" * 50, "ex2_block.py": b"y = 2"}))
    at = data.index(NAME.encode()) + len(NAME)
    data[at : at + 4] = b"\xff\xff\xff\xff"
    taken = of_zip(tmp_path, bytes(data))
    assert list(map(str, taken.files)) == ["s/ex2_block.py"]


RENAMED = ("doejane_1234_98765_ex1_attention-1.py", "ex1_attention (2).py", "EX1_Attention.PY", "late-ex1_attention.py")
OTHERS = ("ex11_attention.py", "ex1_attention_old.py", "ex1_attention.py.txt", "ex1.py")


@pytest.mark.parametrize("name", [*RENAMED, *OTHERS])
def test_files_are_found_as_platforms_rename_them(name: str) -> None:
    found = Collected({PurePosixPath(name): b""}).find(NAME, CHAPTER)
    assert found == (PurePosixPath(name) if name in RENAMED else None)


def test_the_nearest_of_several_is_graded_and_told() -> None:
    taken = Collected({PurePosixPath(p): b"" for p in (f"old/{NAME}", f"x/{CHAPTER}/{NAME}", f"my {NAME}")})
    assert taken.find(NAME, CHAPTER) == PurePosixPath(f"x/{CHAPTER}/{NAME}")
    assert "2 times" in taken.notes[0]


def test_helpers_are_those_beside_it() -> None:
    taken = Collected({PurePosixPath(p): p.encode() for p in (f"a/{NAME}", "a/own.py", "a/no-name.py", "b/far.py")})
    assert beside(taken, PurePosixPath(f"a/{NAME}")) == {"own.py": b"a/own.py"}


def test_notes_cannot_move_a_cursor() -> None:
    assert printable("a\x1b[2J\n\u202eb" + "x" * 500).startswith("a?[2J??b")
    assert len(printable("x" * 500)) == 200
