"""Which part of a model each rank holds: numbers alone, no tensor. Chapter 8.

A rank has some heads of attention, some columns of the MLP and some ids of the head, each in one run of the model's own
order. Shares may differ by one unit, since gpt2-xl has 25 heads. Where to cut: Shoeybi et al. 2019, "Megatron-LM",
section 3.
"""

from __future__ import annotations

from dataclasses import dataclass

from nanoinfer.model.config import ModelConfig

UNIT = 64  # columns and ids are cut at its multiples, where there are enough: matrix kernels are slow on odd widths


@dataclass(frozen=True)
class Shard:
    """Rank `rank` of `size`."""

    rank: int
    size: int

    def part(self, count: int, unit: int = 1) -> slice:
        """Its part of `count` things in a row, the first ranks having one unit more where it does not divide."""
        unit = unit if count % unit == 0 and count >= unit * self.size else 1
        each, more = divmod(count // unit, self.size)
        start = self.rank * each + min(self.rank, more)
        return slice(start * unit, (start + each + (self.rank < more)) * unit)

    def heads(self, config: ModelConfig) -> slice:
        return self.part(config.n_head)

    def inner(self, config: ModelConfig) -> slice:
        """Columns of the MLP."""
        return self.part(config.inner, UNIT)

    def vocab_width(self, config: ModelConfig) -> int:
        """Ids of the head that each rank has, the last ones fewer that exist, or none."""
        width = -(-config.vocab_size // self.size)
        return -(-width // UNIT) * UNIT if config.vocab_size >= UNIT * self.size else width

    def vocab(self, config: ModelConfig) -> slice:
        """Ids that exist, padding left out."""
        start, stop = (n * self.vocab_width(config) for n in (self.rank, self.rank + 1))
        return slice(min(start, config.vocab_size), min(stop, config.vocab_size))

    def config(self, whole: ModelConfig) -> ShardConfig:
        """The shape of this rank's part."""
        heads, inner = self.heads(whole), self.inner(whole)
        own = {"n_head": heads.stop - heads.start, "n_inner": inner.stop - inner.start}
        return ShardConfig(**vars(whole) | own, width_of_head=whole.head_size)

    def pieces(self, name: str, whole: ModelConfig) -> list[tuple[slice, ...]]:
        """Where a parameter of the whole model has this rank's part: indices of pieces, joined along the last side.

        The files hold queries, keys and values side by side in `c_attn`: a rank's heads lie in each third of it.
        """
        every, heads, inner = slice(None), self.heads(whole), self.inner(whole)
        D, C = whole.head_size, whole.n_embd
        thirds = [slice(third * C + heads.start * D, third * C + heads.stop * D) for third in range(3)]
        cuts: dict[str, list[tuple[slice, ...]]] = {
            "attn.c_attn.weight": [(every, third) for third in thirds],
            "attn.c_attn.bias": [(third,) for third in thirds],
            "attn.c_proj.weight": [(slice(heads.start * D, heads.stop * D),)],
            "mlp.c_fc.weight": [(every, inner)],
            "mlp.c_fc.bias": [(inner,)],
            "mlp.c_proj.weight": [(inner,)],
        }
        return cuts.get(name.split(".", 2)[-1], [(every,)])

    def adds(self, name: str) -> bool:
        """Whether this rank has the parameter. Biases of sums over all ranks are the first one's, to count once."""
        return self.rank == 0 or not name.endswith("c_proj.bias")


@dataclass(frozen=True)
class ShardConfig(ModelConfig):
    """The shape of one rank's part: n_head and n_inner are its own, all else is the model's."""

    width_of_head: int = 0

    def __post_init__(self) -> None:
        """The whole was checked, and heads of a part need not divide its width."""

    @property
    def head_size(self) -> int:
        return self.width_of_head
