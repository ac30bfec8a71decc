"""One launch from token to next token: the kernel. Chapter 6.

Program (h, j) is one of P that serve head h, and one of G in all. Matrices whose inputs all programs need (queries,
keys and values; up) are cut by outputs; those whose inputs it has itself (projection; down) by inputs, and the parts
are added where they meet. So four times a layer a program waits for others, twice for those of its head alone. Cut so:
Shoeybi et al. 2019, "Megatron-LM", section 3. Weights come ahead of their use, as one stream of tiles through a ring in
shared memory. Gluon is Triton's lower level: which thread holds what is known here, since threads wait for themselves.
"""

# mypy: disable-error-code="assignment,attr-defined"
# ruff: noqa: PLR0912, PLR0915  one launch is one function

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from nanoinfer.labs.one_kernel import parts
from nanoinfer.labs.one_kernel.attention import attend, join
from nanoinfer.labs.one_kernel.parts import LINE, PLAIN, ROWS
from nanoinfer.labs.one_kernel.words import ONE, SCALE, add, delay, fixed, put, stamped, value_of, wait

ID_BITS = gl.constexpr(17)  # of a token id beside its score


@gluon.jit
def token_kernel(
    stream, projections, row_sums, gains, biases, wte, wpe, k_pool, v_pool, tables, table_stride, layer_stride,
    integers, integer_stride, floats, counter, sums_space, words_space, failed, S: gl.constexpr,
):  # fmt: skip
    """S: a `Shape`. See `persistent.Persistent` for what the tensors are."""
    ROW: gl.constexpr = gl.SliceLayout(1, ROWS)
    COLUMNS: gl.constexpr = gl.BlockedLayout([1, 8], [32, 1], [8, 1], [1, 0])  # a column a thread
    AT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // S.D, S.D // 8], [8, 1], [1, 0])  # tokens, and a head's numbers
    OUT: gl.constexpr = gl.BlockedLayout([1, S.D // 4], [8, 4], [8, 1], [1, 0])  # a row of the projection, four lanes
    D: gl.constexpr = S.D
    C: gl.constexpr = S.C
    pid = gl.program_id(0)
    head = pid // S.P
    j = pid % S.P
    element: gl.constexpr = stream.dtype.element_ty
    q_room = parts.room(element, S.TQ * S.NC)
    up_room = parts.room(element, S.TF * S.NC)
    down_room = parts.room(element, S.TF * S.NC)
    head_room = parts.room(element, S.STAGES * S.NC)
    held = gl.allocate_shared_memory(gl.float32, [S.NC_POWER * 256], PLAIN)
    totals, squares = parts.room(gl.float32, 2, 8)
    qkv = gl.allocate_shared_memory(gl.float32, [256], PLAIN)
    tops, weights = parts.room(gl.float32, 2, 8)
    outs = gl.allocate_shared_memory(gl.float32, [8, D], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    joined = gl.allocate_shared_memory(gl.float32, [S.JOIN], PLAIN)
    inner = parts.room(gl.float32, S.TF, 8)
    parts.ask(q_room, stream, pid * 0, 0, S.TQ, S.RQ, S)
    async_copy.commit_group()

    failed = failed.to(gl.int64)
    launch = gl.load(counter)
    token = gl.load(integers)
    position = gl.load(integers + integer_stride).to(gl.int32)
    step = gl.load(integers + 2 * integer_stride)
    live = gl.load(integers + 3 * integer_stride)
    seed = gl.load(integers + 4 * integer_stride)
    row = gl.load(integers + 6 * integer_stride)
    temperature = gl.load(floats)

    SPACE: gl.constexpr = C * S.SPREAD
    WORDS: gl.constexpr = S.sum_words // 2
    mine = sums_space + (launch % 2) * WORDS
    other = sums_space + ((launch + 1) % 2) * WORDS  # for the next launch
    line = gl.arange(0, 256, LINE)
    for start in range(pid * 256, WORDS, S.G * 256):
        gl.store(other + start + line, (line * 0).to(gl.int64), mask=start + line < WORDS)

    # Where the tokens of this program's part of the context lie, in every layer.
    per = gl.cdiv(position + 1, S.P)
    own = gl.arange(0, S.N, gl.SliceLayout(1, AT))
    t = j * per + own
    known = (own < per) & (t < position)
    new = (own < per) & (t == position)
    page = gl.load(tables + row * table_stride + t // S.PAGE, mask=known | new, other=0).to(gl.int64)
    at = (page * S.H + head) * (S.PAGE * D) + (t % S.PAGE) * D
    here = gl.max(new.to(gl.int32), 0) > 0  # whether the new token is of this part, and where it lies
    place = gl.sum(gl.where(new, at, 0), 0)

    c = gl.arange(0, S.NC_POWER * 256, LINE)
    inside = c < C
    x = gl.load(wte + token * C + c, mask=inside, other=0.0).to(gl.float32)
    x += gl.load(wpe + position * C + c, mask=inside, other=0.0).to(gl.float32)
    stream_words = fixed(x)
    parts.ask(up_room, stream, pid * 0, S.TQ, S.TF, S.RF, S)
    async_copy.commit_group()
    parts.ask(down_room, stream, pid * 0, S.TQ + S.TF, S.TF, S.TF * 8, S)
    async_copy.commit_group()
    mine_too = inside & (c // gl.cdiv(C, S.G) == pid)  # the columns that this program passes on
    q_words = words_space + head * 3 * D
    part_words = words_space + 3 * C
    finals = part_words + S.G * (D + 2)
    r8 = gl.arange(0, 8, ROW)
    out_row = gl.arange(0, S.RJ_POWER, gl.SliceLayout(1, OUT))
    out_k = gl.arange(0, D, gl.SliceLayout(0, OUT))
    d = gl.arange(0, D, gl.SliceLayout(0, AT))
    column = gl.arange(0, 256, gl.SliceLayout(1, COLUMNS))
    gain, bias, q_sums = parts.half_layer(gains, biases, row_sums, pid * 0, 0, c, inside, mine_too, S)
    for layer in range(S.L):
        stamp = (launch * (S.L + 1) + layer + 1) & 0xFFFFFFFF
        code = layer * 8
        k_here = k_pool + layer.to(gl.int64) * layer_stride
        v_here = v_pool + layer.to(gl.int64) * layer_stride
        # 1. Queries, keys and values: this program's rows of its head.
        async_copy.wait_group(2)
        tiles = parts.take(q_room, 0, S.TQ, S)
        if layer > 0:
            stream_words = parts.stream_of(mine + (layer - 1) * SPACE, c, S.G + 1, failed, code + 1, S)
        delay(launch * 131 + code, S.DELAYS)
        mask = known[:, None]
        keys = gl.load(k_here + at[:, None] + d[None, :], mask=mask, other=0.0)
        values = gl.load(v_here + at[:, None] + d[None, :], mask=mask, other=0.0)
        # Asked for after the wait, not before: the words would come behind them.
        parts.ask(q_room, stream, layer + 1, 0, S.TQ, S.RQ, S)
        if layer == S.L - 2:
            for g in gl.static_range(gl.constexpr(S.STAGES)):
                parts.ask_head(head_room, wte, g, g, S)
        async_copy.commit_group()
        norm = parts.share(stream_words, gain.to(gl.float32), held, totals, squares, S)
        for g in gl.static_range(gl.constexpr(S.TQ)):
            r = g * 8 + r8
            y = parts.normed(tiles, norm, q_sums, g, S.TQ, S)
            put(q_words + j * S.RQ + r, stamped(y, stamp), (r < S.RQ) & (j * S.RQ + r < 3 * D), 31)
        w = (layer * S.G + pid) * S.RJ_POWER + out_row[:, None]
        w = gl.load(projections + w * D + out_k[None, :])
        then = gl.minimum(layer + 1, S.L - 1)
        skip = (then - layer).to(gl.int64) * layer_stride
        parts.layer_ahead(
            projections, row_sums, gains, biases, k_here + skip + at, v_here + skip + at, then, c, mine_too, known, S
        )
        # 2. Attention over this program's part of the context.
        delay(launch * 131 + code + 1, S.DELAYS)
        attend(
            q_words, part_words + pid * (D + 2), keys, values, k_here + place, v_here + place, here, known, stamp,
            failed, code + 2, (qkv, tops, weights, outs), AT, S,
        )  # fmt: skip
        # 3. The parts joined; the projection, cut by heads.
        delay(launch * 131 + code + 2, S.DELAYS)
        middle = mine + (S.L + layer) * SPACE
        add(middle + parts.word_of(c, S), stream_words + fixed(bias) + ONE, mine_too)
        y = join(part_words + head * S.P * (D + 2), stamp, failed, code + 3, joined, S)
        y = gl.convert_layout(y, gl.SliceLayout(0, OUT))
        y = gl.sum(w.to(gl.float32) * y[None, :], 1)
        out_at = j * S.RJ + out_row
        add(middle + parts.word_of(out_at, S), fixed(y) + ONE, (out_row < S.RJ) & (out_at < C), 3)
        # 4. Up, GELU, and down: the inner numbers of this program go no further.
        up_gain, down_bias, up_sums = parts.half_layer(gains, biases, row_sums, layer, 1, c, inside, mine_too, S)
        async_copy.wait_group(2)
        tiles = parts.take(up_room, 0, S.TF, S)
        stream_words = parts.stream_of(middle, c, S.H + 1, failed, code + 4, S)
        delay(launch * 131 + code + 3, S.DELAYS)
        parts.ask(up_room, stream, layer + 1, S.TQ, S.TF, S.RF, S)
        async_copy.commit_group()
        norm = parts.share(stream_words, up_gain.to(gl.float32), held, totals, squares, S)
        for g in gl.static_range(gl.constexpr(S.TF)):
            y = parts.normed(tiles, norm, up_sums, g, S.TF, S)
            inner[g].store(y / (1 + gl.exp(-1.5957691216057308 * (y + 0.044715 * y * y * y))))
        after = mine + layer * SPACE
        async_copy.wait_group(2)
        tiles = parts.take(down_room, 0, S.TF, S)
        parts.ask(down_room, stream, layer + 1, S.TQ + S.TF, S.TF, S.TF * 8, S)
        async_copy.commit_group()
        gain, bias, q_sums = parts.half_layer(gains, biases, row_sums, then, 0, c, inside, mine_too, S)
        for p in gl.static_range(gl.constexpr(S.NC)):
            acc = gl.zeros((256, 8), gl.float32, COLUMNS)
            for g in gl.static_range(gl.constexpr(S.TF)):
                w8 = gl.convert_layout(gl.reshape(tiles[g * S.NC + p], (256, 8)), COLUMNS)
                acc += w8.to(gl.float32) * inner[g].load(gl.SliceLayout(0, COLUMNS))[None, :]
            add(after + parts.word_of(p * 256 + column, S), fixed(gl.sum(acc, 1)) + ONE, p * 256 + column < C)
        add(after + parts.word_of(c, S), stream_words + fixed(down_bias) + ONE, mine_too)
    # The head: one row of the embedding a warp.
    gain = gl.load(gains + 2 * S.L * C + c, mask=inside, other=0.0).to(gl.float32)
    shift = gl.load(gains + (2 * S.L + 1) * C + c, mask=inside, other=0.0).to(gl.float32)
    stream_words = parts.stream_of(mine + (S.L - 1) * SPACE, c, S.G + 1, failed, S.L * 8, S)
    _, mean, scale = parts.share(stream_words, gain, held, totals, squares, S)
    x = stream_words.to(gl.float32) * (1.0 / SCALE)
    held.store((x - mean) * scale * gain + shift)
    pieces = parts.pieces_of(held, S)
    best = gl.full((8,), -float("inf"), gl.float32, ROW)
    best_id = gl.full((8,), S.V - 1, gl.int32, ROW)
    for first in range(0, S.TH, S.STAGES):
        for g in gl.static_range(gl.constexpr(S.STAGES)):
            async_copy.wait_group(S.STAGES - 1)
            tiles = parts.take(head_room, g, 1, S)
            parts.ask_head(head_room, wte, first + S.STAGES + g, g, S)
            async_copy.commit_group()
            ids = ((first + g) * S.G + pid) * 8 + r8
            score = parts.times(tiles, pieces, 0, S)
            if temperature > 0:
                score = gl.div_rn(score, temperature) + parts.gumbel(seed, step, ids)
            better = (ids < S.V) & (score > best)
            best = gl.where(better, score, best)
            best_id = gl.where(better, ids, best_id)
    # Each program's best id is a word; the first program compares them.
    top = gl.max(best, 0)
    top_id = gl.min(gl.where(best == top, best_id, S.V - 1), 0)
    mark = launch & 0x7FFF
    word = stamped(top, (mark << ID_BITS) | top_id.to(gl.int64))
    put(finals + pid + line, (line * 0).to(gl.int64) + word, line < 1)
    if pid == 0:
        words = wait(finals + line, line < S.G, mark, failed, S.L * 8 + 1, 1, 32 + ID_BITS, S.POLLS)
        score = gl.where(line < S.G, value_of(words), -float("inf"))
        ids = gl.where(score == gl.max(score, 0), ((words >> 32) & ((1 << ID_BITS) - 1)).to(gl.int32), S.V - 1)
        gl.store(integers, gl.min(ids, 0).to(gl.int64) * live)
        gl.store(integers + integer_stride, position.to(gl.int64) + live)
        gl.store(integers + 2 * integer_stride, step + live)
        gl.store(counter, launch + 1)
