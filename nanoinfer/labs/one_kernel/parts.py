"""The parts of the kernel that makes a token in one launch: tiles, products, norms, sums. Chapter 6."""

# ruff: noqa: RUF005  the compiler knows tuples by their sums

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from nanoinfer.kernels.sampling import random_bits
from nanoinfer.labs.one_kernel.words import COUNT, SCALE, ahead, wait

TILE = gl.constexpr(2048)  # numbers of one piece of a tile: 8 a thread
# Which thread holds what: of a tile's piece, 8 numbers a thread; of rows, one a warp; of a line, one a thread.
FLAT = gl.constexpr(gl.BlockedLayout([8], [32], [8], [0]))
ROWS = gl.constexpr(gl.BlockedLayout([1, 8], [1, 32], [8, 1], [1, 0]))
LINE = gl.constexpr(gl.BlockedLayout([1], [32], [8], [0]))
PLAIN = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
# Triton 3.9 renamed the function that loads from global into shared memory without passing through registers.
load_shared = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared


@gluon.jit
def gumbel(seed, step, ids):
    """`sampling.gumbel` of the given ids. Its logarithms may differ from PyTorch's in the last bit."""
    u = gl.minimum((random_bits(seed, step, ids) | 1).to(gl.float32) * 2.0**-32, 1 - 2.0**-24)
    return -gl.log(gl.where(u < 2.0**-10, u + 0.5 * u * u, -gl.log(1 - u)))


@gluon.jit
def room(element, PIECES: gl.constexpr, SIZE: gl.constexpr = TILE):
    """Shared memory for so many pieces: each by itself, so that the compiler sees that they do not overlap."""
    room = ()
    for _ in gl.static_range(PIECES):
        room = room + (gl.allocate_shared_memory(element, [SIZE], PLAIN),)
    return room


@gluon.jit
def ask(room, stream, layer, FIRST: gl.constexpr, T: gl.constexpr, OWN: gl.constexpr, S: gl.constexpr):
    """Ask for T tiles of a layer, from number FIRST on, of a matrix of which OWN rows are this program's."""
    at = gl.arange(0, TILE, FLAT)
    tile = (gl.program_id(0) * S.L + layer) * S.TILES + FIRST
    base = stream + tile.to(gl.int64) * (S.NC * TILE)
    for g in gl.static_range(T):
        for c in gl.static_range(gl.constexpr(S.NC)):
            mask = (g * 8 + at // 256 < OWN) & (layer < S.L)
            load_shared(room[g * S.NC + c], base + (g * S.NC + c) * TILE + at, mask=mask)
    if not S.AHEAD:
        async_copy.commit_group()
        async_copy.wait_group(0)


@gluon.jit
def ask_head(room, wte, tile, g: gl.constexpr, S: gl.constexpr):
    """Ask for one tile of the head, eight rows of the embedding, into place g of the room."""
    at = gl.arange(0, TILE, FLAT)
    row = (tile * S.G + gl.program_id(0)) * 8 + at // 256
    for c in gl.static_range(gl.constexpr(S.NC)):
        k = c * 256 + at % 256
        source = wte + row.to(gl.int64) * S.C + k
        load_shared(room[g * S.NC + c], source, mask=(row < S.V) & (k < S.C))


@gluon.jit
def take(room, FROM: gl.constexpr, T: gl.constexpr, S: gl.constexpr):
    """T tiles out of their room, from place FROM on, into registers."""
    tiles = ()
    for i in gl.static_range(FROM * S.NC, (FROM + T) * S.NC):
        tiles = tiles + (room[i].load(FLAT),)
    return tiles


@gluon.jit
def times(tiles, x, g: gl.constexpr, S: gl.constexpr):
    """Eight rows, group g of `tiles`, times x, one row a warp: (8,)."""
    acc = gl.zeros((8, 256), gl.float32, ROWS)
    for c in gl.static_range(gl.constexpr(S.NC)):
        tile = gl.convert_layout(gl.reshape(tiles[g * S.NC + c], (8, 256)), ROWS)
        acc += tile.to(gl.float32) * x[c][None, :]
    return gl.sum(acc, 1)


@gluon.jit
def pieces_of(held, S: gl.constexpr):
    """What all warps hold of a stored vector (NC power * 256,), by pieces."""
    pieces = ()
    for c in gl.static_range(gl.constexpr(S.NC)):
        pieces = pieces + (held.slice(c * 256, 256).load(gl.SliceLayout(0, ROWS)),)
    return pieces


@gluon.jit
def share(words, gain, held, totals, squares, S: gl.constexpr):
    """The stream from its words to all warps: gain * x by pieces, mean and 1 / deviation."""
    x = words.to(gl.float32) * (1.0 / SCALE)  # (NC power * 256,); 0 past C
    held.store(x * gain)
    THREE: gl.constexpr = gl.BlockedLayout([1, 1, 1], [1, 1, 32], [1, 8, 1], [2, 1, 0])
    parts = gl.convert_layout(gl.reshape(x, (S.NC_POWER, 8, 32)), THREE)
    total = gl.sum(gl.sum(parts, 0), 1)  # (8,), of each warp
    square = gl.sum(gl.sum(parts * parts, 0), 1)
    totals.store(total)
    squares.store(square)
    mean = gl.sum(totals.load(FLAT), 0) * (1.0 / S.C)
    variance = gl.sum(squares.load(FLAT), 0) * (1.0 / S.C) - mean * mean
    return pieces_of(held, S), mean, gl.rsqrt(variance + S.EPS)


@gluon.jit
def normed(tiles, norm, sums, g: gl.constexpr, T: gl.constexpr, S: gl.constexpr):
    """Eight rows, group g of T, times LayerNorm of the stream, and their bias. norm: what `share` returns.

    For a row w that is (gain * x) . w / deviation - mean / deviation * (gain . w), and so on: what hangs on the weights
    alone, `sums`, was computed once. So nobody waits for the mean before the products.
    """
    pieces, mean, scale = norm
    return times(tiles, pieces, g, S) * scale - mean * scale * sums[g] + sums[T + g]


@gluon.jit
def word_of(c, S: gl.constexpr):
    """Where the counted word of column c lies: sectors of four, SPREAD sectors apart."""
    return (c // 4) * (4 * S.SPREAD) + c % 4


@gluon.jit
def stream_of(sums, c, ADDERS: gl.constexpr, failed, code, S: gl.constexpr):
    """The stream at columns c, in fixed point, once ADDERS programs have added to each of its words."""
    inside = c < S.C
    words = wait(sums + word_of(c, S), inside, ADDERS, failed, code, S.NC_POWER, COUNT, S.POLLS)
    return words - (inside.to(gl.int64) * ADDERS << 56)


@gluon.jit
def layer_ahead(projections, row_sums, gains, biases, keys, values, layer, c, mine_too, known, S: gl.constexpr):
    """Ask the second cache for what a layer reads besides its tiles: small, and in time only if it is near."""
    line = gl.arange(0, 256, LINE)
    near: gl.constexpr = 1024 // projections.dtype.element_ty.primitive_bitwidth  # numbers in 128 bytes
    own = layer * S.G + gl.program_id(0)
    ahead(projections + own * (S.RJ_POWER * S.D) + line * near, line * near < S.RJ * S.D)
    ahead(row_sums + own * (2 * (S.TQ + S.TF) * 8) + line * 32, line * 32 < 2 * (S.TQ + S.TF) * 8)
    ahead(gains + 2 * layer * S.C + line * near, line * near < 2 * S.C)
    ahead(biases + 2 * layer * S.C + c, mine_too)
    ahead(biases + (2 * layer + 1) * S.C + c, mine_too)
    ahead(keys, known, S.D // 8 - 1)
    ahead(values, known, S.D // 8 - 1)


@gluon.jit
def half_layer(gains, biases, row_sums, layer, HALF: gl.constexpr, c, inside, mine_too, S: gl.constexpr):
    """What attention (HALF 0) or the MLP reads besides its tiles, not yet widened: that would wait for it."""
    gain = gl.load(gains + (2 * layer + HALF) * S.C + c, mask=inside, other=0.0)
    bias = gl.load(biases + (2 * layer + HALF) * S.C + c, mask=mine_too, other=0.0)
    numbers = row_sums + ((layer * S.G + gl.program_id(0)) * (2 * (S.TQ + S.TF) * 8)).to(gl.int64)
    numbers += gl.arange(0, 8, gl.SliceLayout(1, ROWS))
    sums = ()
    for g in gl.static_range(gl.constexpr(2 * (S.TF if HALF else S.TQ))):
        sums = sums + (gl.load(numbers + (HALF * 2 * S.TQ + g) * 8),)
    return gain, bias, sums
