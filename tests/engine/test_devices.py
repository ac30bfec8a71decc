"""How much memory is left on the host, in a container or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanoinfer.capacity import free_host_memory

GB = 10**9


def system(root: Path, own: str, groups: dict[str, tuple[str, int, int]]) -> Path:
    """A file system whose meminfo has 64 GB available; of each group its limit, what it uses, and inactive_file."""
    files = {"proc/meminfo": f"MemTotal: {99 * GB} kB\nMemAvailable: {64 * GB // 1024} kB\n", "proc/self/cgroup": own}
    for name, (limit, used, inactive) in groups.items():
        folder = f"sys/fs/cgroup/{name}"
        files |= {
            f"{folder}/memory.max": f"{limit}\n",
            f"{folder}/memory.current": f"{used}\n",
            f"{folder}/memory.stat": f"anon {used - inactive}\ninactive_file {inactive}\nactive_file 0\n",
        }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


FULL = (str(8 * GB), 8 * GB - 10**8, 7 * GB)  # of files that were read, but for 0.9 GB


@pytest.mark.parametrize(
    "own, groups, free",
    [
        ("0::/", {}, 64 * GB),
        ("0::/", {"": FULL}, 7 * GB + 10**8),
        ("0::/", {"": ("max", 5 * GB, GB)}, 64 * GB),
        ("0::/", {"": (str(8 * GB), 9 * GB, 0)}, 0),
        ("12:cpu:/x\n0::/a/b", {"a/b": FULL, "a": (str(80 * GB), 20 * GB, 0)}, 7 * GB + 10**8),
        ("0::/not/mounted", {"": FULL}, 7 * GB + 10**8),
        ("4:memory:/v1", {"": FULL}, 7 * GB + 10**8),
    ],
)
def test_files_that_a_container_has_read_are_no_loss(
    tmp_path: Path, own: str, groups: dict[str, tuple[str, int, int]], free: int
) -> None:
    assert free_host_memory(system(tmp_path, own, groups)) == pytest.approx(free, abs=1024)


def test_a_system_that_does_not_say_what_is_free(tmp_path: Path) -> None:
    """As WSL 1, whose file has no such line."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 16 kB\nMemFree: 8 kB\n")
    assert free_host_memory(tmp_path) is None
