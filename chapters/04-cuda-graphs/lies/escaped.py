"""A kernel that escapes the capture: the graph lacks it, so the replay is faster, and wrong."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from .toy import Toy


class Escapes(Toy):
    """Attention is launched on a stream of its own, as by a kernel that was never told the current one."""

    def attend(self, B: int, longest: int) -> Tensor:
        if self.recorder is None:
            return super().attend(B, longest)
        out = self.onehot.new_empty(B, self.onehot.shape[0])
        with self.recorder.elsewhere():
            out.copy_(super().attend(B, longest))
        return out


def another_input(make: Callable[..., Toy]) -> list[str]:
    """What a replay reads changes, so its result must."""
    engine = make()
    engine.admit("wolf ")
    return engine.run(11)
