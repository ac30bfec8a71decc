"""Submissions as students make them, and as attackers do: what is taken of a folder or a zip, and what is left out."""

from __future__ import annotations

import io
import os
import stat
import sys
import zipfile
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


def test_zips_in_too_many_zips(tmp_path: Path) -> None:
    data = zipped({NAME: b"x = 1"})
    for _ in range(MAX_DEPTH + 1):
        data = zipped({"a.zip": data})
    taken = of_zip(tmp_path, data)
    assert not taken.files
    assert "too many zips" in taken.notes[0]


@pytest.mark.parametrize("name", ["/etc/x.py", "a/../../x.py", "..\\..\\x.py", "C:\\x.py", "C:/x.py"])
def test_no_path_leads_out(tmp_path: Path, name: str) -> None:
    taken = of_zip(tmp_path, zipped({name: b"x = 1", NAME: b"y = 2"}))
    assert list(map(str, taken.files)) == [f"s/{NAME}"]
    assert "leads out" in taken.notes[0]
    assert [path.name for path in tmp_path.iterdir()] == ["s.zip"]  # nothing was unpacked


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


def test_a_bomb_is_read_up_to_the_limit(tmp_path: Path) -> None:
    """100 MB of zeros in 100 kB; and forty entries that are each within the limit."""
    taken = of_zip(tmp_path, zipped({NAME: bytes(100 << 20)}))
    assert not taken.files
    assert "KiB" in taken.notes[0]
    taken = of_zip(tmp_path, zipped({f"a{n}.py": bytes(MAX_FILE) for n in range(40)}))
    assert sum(map(len, taken.files.values())) <= MAX_TOTAL
    assert "the rest was left out" in taken.notes[-1]


def test_many_entries(tmp_path: Path) -> None:
    taken = of_zip(tmp_path, zipped({f"a{n}.txt": b"" for n in range(MAX_ENTRIES + 2)}))
    assert "the rest was left out" in taken.notes[-1]


@pytest.mark.parametrize("data", [b"", b"no zip at all", zipped({NAME: b"x"})[:-30]])
def test_what_is_no_zip(tmp_path: Path, data: bytes) -> None:
    taken = of_zip(tmp_path, data)
    assert not taken.files
    assert "no zip" in taken.notes[0]


def test_a_damaged_entry_costs_itself_alone(tmp_path: Path) -> None:
    data = bytearray(zipped({NAME: b"x = 1" * 50, "ex2_block.py": b"y = 2"}))
    at = data.index(NAME.encode()) + len(NAME)
    data[at : at + 4] = b"\xff\xff\xff\xff"
    taken = of_zip(tmp_path, bytes(data))
    assert list(map(str, taken.files)) == ["s/ex2_block.py"]


def test_links_and_encrypted_entries_of_zips_are_left_out(tmp_path: Path) -> None:
    taken = of_zip(tmp_path, zipped({NAME: b"/etc/passwd"}, e0=stat.S_IFLNK | 0o777))
    assert not taken.files
    assert "symbolic link" in taken.notes[0]
    data = bytearray(zipped({NAME: b"x = 1"}))
    for signature, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + at] |= 1
    taken = of_zip(tmp_path, bytes(data))
    assert not taken.files
    assert taken.notes


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
