"""Exercise 4.1: twelve values sorted into baked, moving and key, and a step that keeps to it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nanocourse.exercises import Call, Case, Check, Spec, beside, call

scenes = beside(__file__, "scenes.py")


def decode_step(host: dict[str, Any], device: dict[str, Tensor]) -> tuple[Tensor, dict[str, str]]:
    """The next token of rows 0..rows-1, and for each of the twelve values "baked", "moving" or "key".

    host: what Python knows when this is called: lists token, position, seed, temperature, live (an entry a row), and
    rows, read, sampled, stride, vocab. device: tensors token, position, seed, temperature, live (N,), weights (V,),
    cache (N, room), and rows, read, sampled (no dimension), all int64 and right before every replay. N is 128 at most,
    V and room a thousand; tokens, seeds, temperatures, weights and the stride are any numbers, negative ones too, of
    which int64 holds all sums and products. This function is called once for each key that it says there is, and
    recorded; after that the recording alone runs. The cache's first `read` slots are read; whether to sample is a
    branch. The tokens (rows,) are left in token, and the positions advanced by live, for the next step; rows behind
    these, and all else, stay as they are. A row whose live is 0 is padding: its token becomes 0, its position stays.
    """
    rows, read = host["rows"], host["read"]
    token, position, live = device["token"][:rows], device["position"][:rows], device["live"][:rows]
    text = device["cache"][:rows, :read]
    text.scatter_(1, position[:, None], token[:, None])
    score = (text * (torch.arange(read) <= position[:, None])).sum(1) + host["stride"] * position
    if host["sampled"]:
        noise = (device["seed"][:rows] + position) % 7
        score = score + device["temperature"][:rows] * noise
    token.copy_(device["weights"][score % host["vocab"]] * live)
    position.add_(live)
    kinds = dict.fromkeys(("weights", "stride", "vocab"), "baked")
    kinds |= dict.fromkeys(("rows", "read", "sampled"), "key")
    return token, kinds | dict.fromkeys(("token", "position", "seed", "temperature", "live", "cache"), "moving")


def _script(shapes: list[tuple[int, int, int]], admitted: dict[int, list[list[int]]]) -> list[dict[str, Any]]:
    """Steps of these rows, read and sampled. admitted: before a step, rows with the values of OF_A_ROW."""
    names = ("rows", "read", "sampled")
    return [dict(zip(names, shape, strict=True)) | {"admitted": admitted.get(n, [])} for n, shape in enumerate(shapes)]


def _example() -> Call:
    batch = torch.tensor([[4, 2], [0, 1], [9, 9], [1, 1], [1, 1]])
    return call(torch.tensor([3, 1, 4, 1, 5, 9, 2, 6]), batch, 8, _script([(2, 8, 0)] * 3, {}), False)


EXERCISE = Spec(
    reference=decode_step,
    lines=14,
    example=_example,
    section="What is baked, and what moves",
    axes=("step", "row"),
    tolerance=1e-9,
    imports=("import torch", "from torch import Tensor"),
    pure=False,  # what it is handed is written to
    scene=scenes.decoded,
)


def _batch(case: Case, rows: int, position: int) -> Tensor:
    """Live rows of different texts, at positions of up to that many."""
    names = [("token", 0, 50), ("position", 0, position), ("seed", 0, 20), ("temperature", 1, 5)]
    return torch.stack([*(case.ints(name, low, high, rows) for name, low, high in names), torch.ones(rows).long()])


def _weights(case: Case) -> Tensor:
    return case.ints("weights", 1, 60, case.choice("vocab", (61, 53, 1000)))


def sorted_values(case: Case) -> Call:
    """Twelve values, each baked, moving or in the key."""
    rows, read, sampled = case.turn(((2, 8, 1), (1, 8, 0), (3, 4, 0), (2, 8, 1)))
    batch = _batch(case, 3, 3)
    batch[2:] *= case.turn((1, 1, 1, 0))
    return call(_weights(case), batch, 8, _script([(rows, read, sampled)], {}))


def one_graph(case: Case) -> Call:
    """Tokens and positions come out of one step and go into the next; rows of one graph come, move and leave, and
    what a row's earlier text has left behind its new one is not read.
    """
    rows, steps = case.size("rows", 1, 3), case.size("steps", 2, 6)
    values = [case.size("row", 0, rows - 1), 7, case.size("position", 0, 1), 1, 1]
    after = case.size("admitted after", 1, steps - 1)
    new = {after: [[*values, case.turn((1, 0, 0))]], after + 2: [[*values, 1]]}
    batch = _batch(case, rows, 1)
    batch[:2] += torch.tensor([[1], [2]])  # tokens that count, and positions behind the new text's
    return call(_weights(case), batch, 12, _script([(rows, 12, 0)] * steps, new))


def rows_of_nobody(case: Case) -> Call:
    """Positions: a live row goes on by one, and a padding row stays, also where it was live at the capture."""
    rows, steps = case.size("rows", 1, 3), case.size("steps", 2, 5)
    row, first = case.size("row", 0, rows - 1), case.choice("live first", (0, 0, 1))
    batch = _batch(case, rows, 3)
    batch[scenes.OF_A_ROW.index("live"), row] = first
    new = {case.size("after", 1, steps - 1): [[row, 7, case.size("position", 0, 3), 1, 1, 1 - first]]}
    return call(_weights(case), batch, 12, _script([(rows, 12, 0)] * steps, new))


def sampled(case: Case) -> Call:
    """Seed and temperature are those of the row that is there now."""
    rows, steps = case.size("rows", 1, 2), case.size("steps", 2, 4)
    new = [rows - 1, 5, 4, case.size("seed", 30, 36), case.size("temperature", 6, 9), 1]
    return call(_weights(case), _batch(case, rows + 1, 3), 12, _script([(rows, 12, 1)] * steps, {1: [new]}))


def other_keys(case: Case) -> Call:
    """Fewer rows, a longer context or sampling are another graph; and the first one is still right after that."""
    other = case.choice("other", ((1, 4, 0), (3, 4, 0), (2, 9, 0), (2, 4, 1)))
    tokens, position = case.ints("tokens", 1, 50, 6).tolist(), 6 if other[1] > 4 else 2
    new = {2: [[row, tokens[row], position, 3, 2, 1] for row in range(3)]}
    new[4] = [[row, tokens[3 + row], 3, 4, 3, 1] for row in range(2)]  # the third goes on where it stood
    return call(_weights(case), _batch(case, 3, 0), 9, _script([(2, 4, 0)] * 2 + [other] * 2 + [(2, 4, 0)], new))


def any_values(case: Case) -> Call:
    """What is 0, or equal, for all rows at the capture is not at a replay; steps go on; many rows, and some behind."""
    kinds = "temperature", "seed", "live", "token", "position", "live again", "behind", "many", "long", "one"
    kind = case.turn(kinds)
    rows = {"many": 128, "behind": 3, "long": 1, "one": 1}.get(kind, 2)
    batch, weights = _batch(case, rows, 1), _weights(case)
    if kind == "many":
        return call(weights, batch, 8, _script([(rows, 8, 1)] * 3, {}))
    if kind == "long":
        batch[1] = 998
        new = {2: [[0, 3, 600, 1, 1, 1]]}  # behind which tokens of an earlier row stand
        return call(weights, batch, 1000, _script([(1, 1000, 1)] * 5, new), False)
    if kind == "one":  # row, slot and weight; a padding row, and a live one
        batch[1], batch[4] = 0, 0
        return call(weights[:1], batch, 1, _script([(1, 1, 1)] * 3, {2: [[0, 5, 0, 1, 1, 1]]}), False)
    if kind == "behind":  # where there are fewer rows the last one stays as it is, and goes on later
        shapes = [(3, 12, 0)] * 2 + [(2, 8, 0)] * 3 + [(3, 12, 0)] * 3 + [(2, 12, 0)]
        new = {0: [[0, 5, 9, 1, 1, 1]], 2: [[0, 7, 0, 1, 1, 1]]}  # whose first text stands where the next is not read
        return call(weights, batch, 12, _script(shapes, new), False)
    if kind == "live again":  # what a padding row writes stands in the cache; and a last step fills it
        new = {at: [[row, 5 + at, at - 1, -3 - at, 6, int(at == 4)] for row in range(rows)] for at in (3, 4)}
        return call(weights, batch, 12, _script([(rows, 12, 1)] * 13, new), False)
    batch[scenes.OF_A_ROW.index(kind)] = 0
    if kind == "seed":  # a live row may have token 0
        weights[::2] = 0
    seed, heat = case.size("seed", 30, 34), case.size("temperature", 6, 9)
    new = [[row, 6 + row, 2 - row, seed + 3 * row, heat + row, int(row == 0 or kind != "live")] for row in range(rows)]
    script = _script([(rows, 24, int(kind != "position"))] * 18, {3: new})
    return call(weights, batch, 24, script, False)


def any_numbers(case: Case) -> Call:
    """Numbers of any size and sign, in rows that come and go at any time, through graphs that change at every step."""
    rows, room, steps = case.turn((5, 2, 7)), 16, 18
    sizes = torch.tensor([1, 9, 2**31, 2**40, 2**53, 2**57])[case.ints("sizes", 0, 5, steps, rows, 3)]
    numbers = (sizes * case.ints("signs", 0, 1, steps, rows, 3).mul(2).sub(1) + case.ints("more", -9, 9, 3)).tolist()
    drawn = case.ints("drawn", 0, 2**30, steps, rows + 3).tolist()
    at, lives, shapes, admitted = [0] * rows, [1] * rows, [], {}
    for step, (shape, sampled, part, *draws) in enumerate(drawn):
        now = 1 + shape % rows
        new = [row for row in range(rows) if step == 0 or at[row] == room or draws[row] % 5 == 0]
        for row in new:
            at[row], lives[row] = draws[row] // 5 % room, int(draws[row] % 3 > 0)
        admitted[step] = [
            [row, token, at[row], seed, heat, lives[row]] for row in new for token, seed, heat in [numbers[step][row]]
        ]
        least = 1 + max(at[:now])
        shapes.append((now, room if step % 2 else least + part % (room - least + 1), sampled % 2))
        at[:now] = [one + lives[row] for row, one in enumerate(at[:now])]
    weights, stride = _weights(case), case.turn((2**54 + 1, -(2**54) - 1, 0, -5))
    weights += torch.tensor([2**57, -(2**57), 0])[torch.arange(len(weights)) % 3]
    return call(weights, _batch(case, rows, 0), room, _script(shapes, admitted), False, stride)


CHECKS = (
    Check(any_values, 10, wide=True), Check(any_numbers, 3, wide=True), Check(sorted_values, 4, part="kinds"),
    Check(one_graph, 3, part="tokens"), Check(rows_of_nobody, 3, part="positions"), Check(sampled, 3, part="tokens"),
    Check(other_keys, 4, part="tokens"),
)  # fmt: skip
