"""Words that carry a value and the proof that it is there: what programs of one launch tell each other. Chapter 6.

A grid barrier makes all programs wait for the slowest, and then all of them read. Here who needs a value waits for that
value alone. A *stamped* word holds 32 bits of value under the number of its launch and layer; a *counted* word holds a
sum in fixed point under the number of summands that have come, and each comes by one atomic addition. Both are 64 bits,
which arrive whole. Idea: NCCL's "LL" protocol. All of it is inline assembly: a load of the language may be repeated by
its compiler in another layout, and the second reading is not the one that was checked.
"""

# ruff: noqa: RUF005  the compiler knows tuples by their sums

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.runtime.jit import constexpr_function

COUNT = gl.constexpr(56)  # from this bit on a counted word holds its count
STAMP = gl.constexpr(32)  # and a stamped one its stamp
ONE = gl.constexpr(1 << 56)  # a summand, in the count
SCALE = gl.constexpr(2.0**30)  # of the fixed point
RANGE = gl.constexpr(2.0**17)  # a summand lies within +-RANGE: 255 of them stay below the count


@constexpr_function
def _wait_text(words: int, shift: int, polls: int) -> str:
    """Read `words` words until each one's upper bits are as wanted; after `polls` readings leave a code and trap.

    All threads of a warp leave together: one that ran ahead would run by itself from there on.
    """
    each = range(words)
    pointer, used, wanted, where, code = (n * words for n in range(1, 6))  # operands, behind the words themselves
    half = 1 << shift - 1 if shift == 56 else 0  # a negative sum borrows from the count
    lines = [".reg .pred late, again, " + ", ".join(f"on{i}" for i in each) + ";", ".reg .b32 n; .reg .b64 h;"]
    lines += [f"setp.ne.b32 on{i}, ${used + i}, 0; mov.b64 ${i}, 0;" for i in each]
    lines += ["mov.b32 n, 0;", "AGAIN:"]
    lines += [f"@on{i} ld.relaxed.gpu.global.b64 ${i}, [${pointer + i}];" for i in each]
    if polls:
        lines.append("setp.ne.b32 late, 0, 0;")
        lines += [
            f"add.s64 h, ${i}, {half}; shr.u64 h, h, {shift}; setp.ne.and.u64 again, h, ${wanted + i}, on{i};\n"
            "or.pred late, late, again;"
            for i in each
        ]
        lines.append("vote.sync.any.pred late, late, 0xffffffff; @!late bra DONE;")
        lines.append(f"add.u32 n, n, 1; setp.lt.u32 again, n, {polls}; @again bra AGAIN;")
        lines.append(f"st.volatile.global.b32 [${where}], ${code}; fence.sc.sys; trap;")
    return "{ " + "\n".join([*lines, "DONE:"]) + " }"


@constexpr_function
def _wait_constraints(words: int) -> str:
    return ",".join(kind for kind in ("=&l", "l", "r", "l", "l", "r") for _ in range(words))


@gluon.jit
def wait(pointers, used, wanted, failed, code, WORDS: gl.constexpr, SHIFT: gl.constexpr, POLLS: gl.constexpr):
    """The words (int64) behind `pointers` once their upper bits are `wanted`; 0 where not `used`.

    WORDS: how many of them a thread holds: all are asked for at once. code: left behind `failed` if it takes too long.
    """
    used = used.to(gl.int32)
    zero = used * 0
    text: gl.constexpr = _wait_text(WORDS, SHIFT, POLLS)
    constraints: gl.constexpr = _wait_constraints(WORDS)
    wide = zero.to(gl.int64)
    arguments = [pointers, used, wide + wanted, wide + failed, zero + code]
    return gl.inline_asm_elementwise(text, constraints, arguments, dtype=gl.int64, is_pure=False, pack=WORDS)


@gluon.jit
def _once(INSTRUCTION: gl.constexpr, KINDS: gl.constexpr, COPIES: gl.constexpr, used, pointers, words):
    """An instruction in threads that use their element, and of whose number COPIES has no bit.

    For several threads may hold the same element: of those that hold a copy, one is to act.
    """
    guard: gl.constexpr = "mov.u32 t, %tid.x; and.b32 t, t, $3; setp.eq.b32 p, t, 0; setp.ne.and.b32 p, $2, 0, p;"
    text: gl.constexpr = "{ .reg .pred p; .reg .b32 t; " + guard + " @p " + INSTRUCTION + "; mov.u32 $0, 0; }"
    used = used.to(gl.int32)
    arguments = (pointers, used, used * 0 + COPIES) + words
    gl.inline_asm_elementwise(text, KINDS, arguments, dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def put(pointers, words, used, COPIES: gl.constexpr = 0):
    """Store words."""
    _once("st.relaxed.gpu.global.b64 [$1], $4", "=r,l,r,r,l", COPIES, used, pointers, (words,))


@gluon.jit
def add(pointers, words, used, COPIES: gl.constexpr = 0):
    """Add words, each once: a copy too many would be a summand too many."""
    _once("red.relaxed.gpu.global.add.u64 [$1], $4", "=r,l,r,r,l", COPIES, used, pointers, (words,))


@gluon.jit
def ahead(pointers, used, COPIES: gl.constexpr = 0):
    """Ask the second cache for the 128 bytes around each pointer: they will be loaded later."""
    _once("prefetch.global.L2 [$1]", "=r,l,r,r", COPIES, used, pointers, ())


@gluon.jit
def stamped(value, stamp):
    """A float32 under its stamp."""
    return (stamp << 32) | (value.to(gl.int32, bitcast=True).to(gl.int64) & 0xFFFFFFFF)


@gluon.jit
def value_of(word):
    """The float32 of a stamped word."""
    return word.to(gl.int32).to(gl.float32, bitcast=True)


@gluon.jit
def fixed(value):
    """A float32 in fixed point (int64). A NaN becomes a number: it must not touch a count."""
    held = gl.minimum(gl.maximum(value, -RANGE), RANGE)
    return (held * SCALE).to(gl.int64)


@gluon.jit
def delay(seed, DELAYS: gl.constexpr):
    """Sleep for up to DELAYS nanoseconds, by a hash of `seed` and of the program: for tests of who waits for whom."""
    if DELAYS > 0:
        x = (seed.to(gl.uint32) * 0x9E3779B9) ^ (gl.program_id(0).to(gl.uint32) * 0x85EBCA6B)
        x = (x ^ (x >> 15)) * 0x7FEB352D
        x = (x ^ (x >> 13)) % DELAYS
        gl.inline_asm_elementwise(
            "nanosleep.u32 $1; mov.u32 $0, 0;", "=r,r", [x.to(gl.int32)], dtype=gl.int32, is_pure=False, pack=1
        )
