"""`nanoinfer rung`: each chapter's package, cut out, is the package's own files, and runs alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nanobook.rung import reading_order, rung, write
from nanobook.syllabus import engine_root, syllabus
from nanoinfer import LLM, SamplingParams
from nanoinfer.cli.errors import Refused

ALONE = """
import os, sys
sys.path[:] = [".", *(each for each in sys.path if each and not os.path.exists(each + "/nanoinfer"))]
import nanoinfer, pytest
assert nanoinfer.__file__.startswith(sys.argv[1])
params = nanoinfer.SamplingParams(max_tokens=9, seed=1)
done = nanoinfer.LLM(engine=sys.argv[2]).generate(["Once upon a time", "The dog"], params)
print([one.token_ids for one in done])
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider"]))
"""
NEWEST = "naive", "dense", "paged", "paged-graph", "paged-graph", "fused", "fused", "paged-graph"


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number, engine", enumerate(NEWEST, 1))
def test_a_rung_runs_alone(number: int, engine: str, tmp_path: Path) -> None:
    """Its tests pass, its newest engine's tokens are the whole package's, and no other nanoinfer is in reach."""
    write(tmp_path, number)
    for path in tmp_path.glob("nanoinfer/**/*.py"):
        inner = path.relative_to(tmp_path)
        assert inner.name == "chapters.py" or path.read_bytes() == (engine_root() / inner).read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(tmp_path), engine], cwd=tmp_path, capture_output=True, text=True, check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    expected = LLM(engine=engine).generate(["Once upon a time", "The dog"], SamplingParams(max_tokens=9, seed=1))
    assert done.stdout.startswith(str([one.token_ids for one in expected]))
    (small,) = tmp_path.glob("chapters/*/small.py")
    told = subprocess.run([sys.executable, str(small)], capture_output=True, text=True, check=True)
    assert len(told.stdout.split()) > 20


def test_what_is_shown_and_refused(tmp_path: Path) -> None:
    assert [line.split()[1] for line in reading_order(syllabus(), 2, 2).splitlines()[:-1]] == [
        "nanoinfer/cache/dense.py", "nanoinfer/engines/dense.py",
    ]  # fmt: skip
    (tmp_path / "mine").write_text("")
    with pytest.raises(Refused, match="exists and is not empty"):
        rung(1, tmp_path)
