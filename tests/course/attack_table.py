"""`python -m tests.course.attack_table`: each hostile submission, what happened to it, and which layer stopped it.

Where the layer can be switched off, the attack is run once more without it, so that one sees what still holds.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from nanocourse.grade.isolation.confine import LAYERS
from nanocourse.grade.record import GradeRecord
from tests.course.attack_runs import ATTACKS, AttackRunner, exercise_of, graded, names

# Attack -> what stops it. In brackets: a layer that can be switched off.
STOPPED_BY = {
    "always_raises": "no points for what an answer without work gets", "counts_calls": "secret order of the calls",
    "daemon": "[seccomp]", "deaf": "time limit, SIGKILL", "hides_files": "the grader's eye; [limits] for removed files",
    "disk_bomb": "the grader's eye on the scratch folder; [limits] for one file",
    "floods": "bounds of messages, four of which wait; a reply names its question",
    "forged_reply": "bounds and types of messages", "fork_bomb": "[seccomp]", "frame_walk": "a process of its own",
    "grader_by_proc": "[landlock]", "hangs": "time limit, SIGKILL", "in_place": "the worker has copies",
    "leaves": "no message says passed; the end of a worker is no result",
    "lent_abuse": "bounds of what lent functions take", "memory_bomb": "[limits]; [seccomp] for memfd",
    "not_a_number": "comparison: NaN equals NaN alone", "oversized": "bounds of messages",
    "patched_torch": "the grader compares, in its own process", "prints_inputs": "output and messages are dropped",
    "privileges": "[seccomp]", "programs": "[seccomp]", "reads_checks": "[landlock]", "reads_memory": "[seccomp]",
    "remembers": "eight sets of inputs, in mixed order", "rewrites_worker": "nothing a worker says counts",
    "says_equal": "raw bytes: objects do not cross", "signals": "[seccomp]", "sockets": "[seccomp]",
    "thread_bomb": "[limits]", "torch_function": "raw bytes: objects do not cross", "writes_results": "[landlock]",
}  # fmt: skip
CALLS = {"floods": 2, "remembers": 10, "counts_calls": 18}
WIDTH = 150


def rows(attacker: AttackRunner, chosen: list[str]) -> list[tuple[str, str, str, int]]:
    """Attack, status, what it says, processes that it left."""
    found = []
    for name in chosen:
        run = attacker.run(name, CALLS.get(name, 1))
        said = " ".join(run.says.split())
        found.append((name, run.status, said if len(said) <= WIDTH else f"{said[: WIDTH - 3]}...", attacker.renew()))
    return found


def main() -> None:
    """Print the tables as Markdown."""
    begun = time.monotonic()
    with AttackRunner() as attacker:
        print(f"As user {os.getuid()}: {attacker.isolation.told()}.\n")
        print("| attack | outcome | what it says | stopped by |\n| --- | --- | --- | --- |")
        for name, status, said, _ in rows(attacker, names()):
            print(f"| {name} | {status} | {said} | {STOPPED_BY[name].replace('[', '').replace(']', '')} |")
    for layer in LAYERS:
        chosen = [name for name, by in STOPPED_BY.items() if f"[{layer}]" in by]
        if chosen and layer != "user":
            print(f"\nWithout {layer}:\n\n| attack | outcome | what it says | processes ended afterwards |")
            print("| --- | --- | --- | --- |")
            with AttackRunner(tuple(one for one in LAYERS if one != layer)) as attacker:
                for name, status, said, strays in rows(attacker, chosen):
                    print(f"| {name} | {status} | {said} | {strays} |")
    record = graded(ATTACKS / "shadows", "1.1")
    print(
        f"\nshadows (torch.py, sitecustomize.py and others beside an honest answer): {record.points:g} of {record.of:g}"
    )
    for name, id in (("always_raises", "1.8"), ("counts_calls", "1.8"), ("prints_inputs", "1.1")):
        record = _single(name, id)
        states = ", ".join(f"{check.name} {check.status}" for check in record.exercises[0].checks)
        print(f"{name}: {record.points:g} of {record.of:g} ({states}) {record.exercises[0].note}")
    print(f"\n{time.monotonic() - begun:.0f} s")


def _single(name: str, id: str) -> GradeRecord:
    """The record of an attack that is handed in alone."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / exercise_of(name).file).write_bytes((ATTACKS / f"{name}.py").read_bytes())
        return graded(Path(folder), id)


if __name__ == "__main__":
    main()
