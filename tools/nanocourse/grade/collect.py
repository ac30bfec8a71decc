"""The files of one submission, from a folder or a zip as students make them, without writing any to disk.

Entries are read into memory, up to a limit, and known only by their path within the submission, so that no name leads
outside. What is left out becomes a note, never an error: a broken submission is graded for what it has.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
import unicodedata
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath

MAX_FILE, MAX_TOTAL, MAX_ENTRIES, MAX_DEPTH = 1 << 20, 16 << 20, 5000, 3
MAX_ZIP = 64 << 20
SKIPPED = {"__macosx", "__pycache__", "node_modules", "site-packages", ".git", ".venv", "venv", "env"}
PIECE = 64  # packed bytes that are unpacked at once: by bzip2 these make 100 MB at most
MAX_LISTED = 100_000  # entries of one archive's directory, which Python reads whole
NOTED = 12  # notes that are kept
QUESTIONS, PROGRESS = "questions.md", "progress.json"  # of a learner, beside their files
Listed = Iterable[tuple[str, Callable[[int], bytes]]]  # names, and what reads so many bytes, or raises the reason


@dataclass
class Collected:
    """Files by path. notes: what was left out, and why, safe to print."""

    files: dict[PurePosixPath, bytes] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    entries: int = 0
    size: int = 0

    @property
    def digest(self) -> str:
        """SHA-256 of names and contents, without what is told of a solution."""
        whole = hashlib.sha256()
        for path, data in sorted(one for one in self.files.items() if one[0].name not in (QUESTIONS, PROGRESS)):
            for part in (str(path).encode("utf-8", "surrogatepass"), data):
                whole.update(len(part).to_bytes(8, "little") + part)
        return whole.hexdigest()

    def note(self, text: str) -> None:
        """Add a note, up to a number of notes."""
        if len(self.notes) < NOTED and printable(text) not in self.notes:
            self.notes.append(printable(text))

    def full(self) -> bool:
        """Whether nothing more is accepted."""
        return self.entries > MAX_ENTRIES or self.size > MAX_TOTAL

    def find(self, name: str, chapter: str) -> PurePosixPath | None:
        """The file that answers an exercise, by its name or by what learning platforms make of it."""
        stem = re.escape(name.removesuffix(".py"))
        renamed = re.compile(rf"(?:.*[_ -])?{stem}(?:[-_ ]?\(?\d+\)?)?\.py", re.IGNORECASE)
        exact = [path for path in self.files if path.name == name]
        found = exact or [path for path in self.files if renamed.fullmatch(path.name)]
        found.sort(key=lambda path: (chapter not in path.parts, len(path.parts), str(path)))
        if len(found) > 1:
            self.note(f"{name} is there {len(found)} times: {found[0]} was graded")
        return found[0] if found else None


def collect(source: Path) -> Collected:
    """The Python files of a folder or a zip. Raises nothing, whatever the source is."""
    found = Collected()
    if source.is_symlink():
        found.note("the submission is a symbolic link, which is not followed")
    elif source.is_dir():
        _keep(PurePosixPath(), _in_folder(source), found, 0)
    else:
        try:
            with source.open("rb") as file:
                data = file.read(MAX_ZIP + 1)
        except OSError as error:
            found.note(f"the submission cannot be read: {error.strerror}")
        else:
            _take(PurePosixPath(source.name), data, found, 0)
    if found.full():
        found.note(f"more than {MAX_ENTRIES} entries or {MAX_TOTAL >> 20} MiB: the rest was left out")
    return found


def beside(found: Collected, path: PurePosixPath) -> dict[str, bytes]:
    """An exercise's file and the Python files next to it, if Python can import them by name."""
    near = {one.name: data for one, data in found.files.items() if one.parent == path.parent and one != path}
    return {name: data for name, data in near.items() if name.removesuffix(".py").isidentifier()}


def printable(text: str) -> str:
    """Text from a student, as one short line without control characters."""
    plain = "".join(c if c.isprintable() else "?" for c in unicodedata.normalize("NFC", text)[:400])
    return plain if len(plain) <= 200 else plain[:197] + "..."


def _keep(outer: PurePosixPath, listed: Listed, found: Collected, depth: int) -> None:
    """Keep what may be part of a submission.

    Every method of compression raises errors of its own for damaged data, so all errors mean the same here.
    """
    for name, read in listed:
        found.entries += 1
        if found.full():
            return
        inner = _inside(name)
        if inner is None:
            found.note(f"{name} was left out: its path leads out of the archive")
        elif _wanted(inner):
            zipped = inner.suffix.casefold() == ".zip"
            try:
                data = read((MAX_ZIP if zipped else MAX_FILE) + 1)
            except Exception as error:
                why = getattr(error, "strerror", None) or str(error) or type(error).__name__
                found.note(f"{inner} was left out: {why}")
                continue
            found.size += len(data) * (depth > 0 or not zipped)  # an archive in a folder counts unpacked
            _take(outer / inner, data, found, depth)


def _in_folder(source: Path) -> Listed:
    """The files of a folder. Links are not followed."""
    for folder, names, files in os.walk(source, followlinks=False):
        names[:] = sorted(name for name in names if name.casefold() not in SKIPPED)
        for name in sorted(files):
            path = Path(folder, name)
            yield path.relative_to(source).as_posix(), partial(_read, path)


def _read(path: Path, most: int) -> bytes:
    """So many bytes of a regular file. ValueError for anything else. The file inspected is the one that is read."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if not path.is_symlink():
        with os.fdopen(os.open(path, flags), "rb") as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return file.read(most)
    raise ValueError("it is no plain file")


def _take(path: PurePosixPath, data: bytes, found: Collected, depth: int) -> None:
    """Keep a Python file, or look into a zip."""
    if path.suffix.casefold() == ".zip":
        if len(data) > MAX_ZIP or depth >= MAX_DEPTH:
            found.note(f"{path} was left out: it is too large, or a zip in too many zips")
        else:
            _unzip(path, data, found, depth)
    elif len(data) > MAX_FILE:
        found.note(f"{path} was left out: it has more than {MAX_FILE >> 10} KiB")
    elif not found.full():
        found.files[path] = data


def _unzip(outer: PurePosixPath, data: bytes, found: Collected, depth: int) -> None:
    """Read a zip's entries one by one, without trusting the sizes in its directory."""
    try:
        if data.count(b"PK\1\2") > MAX_LISTED:
            raise ValueError(f"it lists more than {MAX_LISTED} entries")
        archive = zipfile.ZipFile(io.BytesIO(data))
    except Exception as error:
        found.note(f"{outer} is no zip that can be read: {error}")
        return
    listed = ((one.filename, partial(_unpacked, archive, one)) for one in archive.infolist() if not one.is_dir())
    _keep(outer.with_suffix(""), listed, found, depth + 1)


def _unpacked(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, most: int) -> bytes:
    """So many of an entry's bytes, or a few more. Only of deflated ones does zipfile bound the output."""
    if stat.S_ISLNK(entry.external_attr >> 16):
        raise ValueError("it is a symbolic link")
    with archive.open(entry) as file:
        if entry.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            return file.read(most)
        assert isinstance(file, zipfile.ZipExtFile)
        file.MIN_READ_SIZE = PIECE
        content = bytearray()
        while len(content) < most and (piece := file.read(PIECE)):
            content += piece
    return bytes(content)


def _inside(name: str) -> PurePosixPath | None:
    """An entry's path; None if it is absolute or leaves the folder. Some Windows tools write backslashes."""
    path = PurePosixPath(unicodedata.normalize("NFC", name.replace("\\", "/")))
    climbs = path.is_absolute() or ".." in path.parts or re.match(r"[A-Za-z]:", name) or "\0" in name
    return None if climbs or not path.parts else path


def _wanted(path: PurePosixPath) -> bool:
    """Whether an entry may be part of a submission, and not what systems and tools leave behind."""
    kept = not any(part.casefold() in SKIPPED for part in path.parts) and not path.name.startswith("._")
    return kept and (path.suffix.casefold() in (".py", ".zip") or path.name in (QUESTIONS, PROGRESS))
