"""The README says what is so: its sample is what comes out, its code and its commands run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nanoinfer import cli
from tests.book.chapter_pages import ROOT, checkout

README = ROOT / "README.md"

pytestmark = checkout


def blocks(language: str) -> list[str]:
    text = README.read_text(encoding="utf-8") if README.is_file() else ""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def test_sample_is_what_comes_out(capsys: pytest.CaptureFixture[str]) -> None:
    first, *shown = blocks("text")[0].splitlines()
    command = shlex.split(first.removeprefix("$ "))
    assert command[0] == "nanoinfer"
    assert cli.run([*command[1:], "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    remark, *story = shown
    assert err.splitlines()[0] == remark
    assert out.split() == " ".join(story).split()  # the README breaks lines where a terminal would


def test_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("python")
    exec(compile(code, str(README), "exec"), {})
    assert len(capsys.readouterr().out.split()) > 40


def scripts() -> list[str]:
    """Blocks to be pasted, but for one that downloads from another index, and then the first, which `.ci/run` types."""
    return [block for block in blocks("sh") if "download.pytorch.org" not in block][1:]


# What a line may end with besides 0: a stub is no answer yet, and without an answer there is nothing to generate with.
NOT_YET = {"nanoinfer course check 1.1": 1, 'nanoinfer generate "The fox" --mine my-course': 2}


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of its own, with what is changed here and not committed yet."""
    place = tmp_path_factory.mktemp("readme") / "nanoinfer"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(place)], check=True)
    listed = subprocess.run(["git", "ls-files", "-z", "-m"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        shutil.copyfile(ROOT / name, place / name)
    return place


@pytest.mark.readme
@pytest.mark.parametrize("at", range(len(scripts())))
def test_a_block_runs_as_a_whole(clone: Path, tmp_path: Path, at: int) -> None:
    """Pasted into a shell, line by line; and the clone is as it was afterwards."""
    lines = scripts()[at].strip().splitlines()
    # An installation is only looked up: it would point this environment at the copy.
    pip = f"{shlex.quote(sys.executable)} -m pip install -q --dry-run "
    script = tmp_path / "block.sh"
    script.write_text("".join(f'{line.replace("pip install ", pip)}\necho "== $?"\n' for line in lines))
    environment = {
        **os.environ, "HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(str(clone / folder) for folder in (".", "bench", "tools")),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }  # fmt: skip
    status = ["git", "-C", str(clone), "status", "--porcelain", "--untracked-files=all"]
    before = subprocess.run(status, capture_output=True, text=True, check=True).stdout
    done = subprocess.run(
        ["bash", str(script)], stdin=subprocess.DEVNULL, cwd=clone, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    codes = [int(code) for code in re.findall(r"^== (\d+)$", done.stdout, re.M)]
    said = done.stdout[-2000:] + done.stderr[-2000:]
    assert codes == [NOT_YET.get(line.partition("#")[0].strip(), 0) for line in lines], said
    assert "Traceback" not in done.stderr
    assert subprocess.run(status, capture_output=True, text=True, check=True).stdout == before
