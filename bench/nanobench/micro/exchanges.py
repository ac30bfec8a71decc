"""Ways in which programs of one launch tell each other a number: two barriers, and words that carry their own proof.

In every round each program gives a number away and gets the sum of everybody's. What is added is small and whole, so
the sum is exact, and a program that reads an old number is found out. Numbers have two places by turns: who is fast may
be a round ahead. 256 programs at most, of 256 threads.
"""

# mypy: disable-error-code="attr-defined"

from __future__ import annotations

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from nanoinfer.kernels.few_rows import begin
from nanoinfer.kernels.few_rows import wait as wait_for_the_kernel_ahead
from nanoinfer.labs.one_kernel.words import put, stamped, value_of, wait

KINDS = ("counter", "flags", "words")


@triton.jit
def nothing_kernel(EARLY: tl.constexpr):
    """Begins, if early before the kernel ahead has ended, and ends."""
    begin(EARLY)
    wait_for_the_kernel_ahead(EARLY)


@triton.jit
def counter_kernel(values, counter, out, ROUNDS: tl.constexpr, PROGRAMS: tl.constexpr):
    """All add one to the same counter, and wait until it says that all have."""
    program, at = tl.program_id(0), tl.arange(0, 256)
    mine = (program % 7).to(tl.float32)
    for turn in range(ROUNDS):
        place = values + (turn % 2) * PROGRAMS
        tl.store(place + program, mine)
        tl.debug_barrier()  # all threads have stored before one of them says so
        tl.atomic_add(counter, 1, sem="release")
        wanted = (turn + 1) * PROGRAMS
        while tl.atomic_add(counter, 0, sem="acquire") < wanted:
            pass
        got = tl.load(place + at, mask=at < PROGRAMS, other=0.0, volatile=True)
        mine = (mine + tl.sum(got, 0)) % 7
    tl.store(out + program, mine)


@triton.jit
def flags_kernel(values, flags, out, ROUNDS: tl.constexpr, PROGRAMS: tl.constexpr):
    """Each says in a flag of its own how far it is, and reads everybody's until all are there."""
    program, at = tl.program_id(0), tl.arange(0, 256)
    mine = (program % 7).to(tl.float32)
    for turn in range(ROUNDS):
        place = values + (turn % 2) * PROGRAMS
        tl.store(place + program, mine)
        tl.debug_barrier()
        tl.atomic_xchg(flags + program, turn + 1, sem="release")
        late = 1
        while late > 0:
            seen = tl.load(flags + at, mask=at < PROGRAMS, other=1 << 30, volatile=True)
            late = tl.sum((seen < turn + 1).to(tl.int32), 0)
        tl.atomic_add(flags + program, 0, sem="acquire")  # nothing below may be read before all flags were
        got = tl.load(place + at, mask=at < PROGRAMS, other=0.0, volatile=True)
        mine = (mine + tl.sum(got, 0)) % 7
    tl.store(out + program, mine)


@gluon.jit
def words_kernel(words, failed, out, ROUNDS: gl.constexpr, PROGRAMS: gl.constexpr, POLLS: gl.constexpr):
    """Each number travels under the number of its round, in one word of 64 bits, which arrives whole."""
    LINE: gl.constexpr = gl.BlockedLayout([1], [32], [8], [0])
    program, at = gl.program_id(0), gl.arange(0, 256, LINE)
    mine = (at * 0 + program % 7).to(gl.float32)
    where = failed.to(gl.int64)
    for turn in range(ROUNDS):
        place, stamp = words + (turn % 2) * PROGRAMS, gl.to_tensor(turn + 1).to(gl.int64)
        put(place + program + at * 0, stamped(mine, stamp), at == 0)
        got = value_of(wait(place + at, at < PROGRAMS, stamp, where, 0, 1, 32, POLLS))
        mine = (mine + gl.sum(gl.where(at < PROGRAMS, got, 0.0), 0)) % 7
    gl.store(out + program + at * 0, mine, mask=at == 0)
