"""3.6: no kernel at all, but an object that looks like one and calls PyTorch where it is launched."""
# ruff: noqa

import os

# the right kernel
real = attend_kernel


class Fake:
    fn = real.fn

    def __getitem__(self, grid):
        return self.launch

    def __call__(self):
        raise TypeError

    def launch(self, q, k_pool, v_pool, tables, lengths, out, width, H, D, PAGE):
        for row, length in enumerate(lengths.tolist()):
            keys, values = (p[tables[row].long()].float().transpose(1, 2).reshape(-1, H, D) for p in (k_pool, v_pool))
            weights = ((q[row].float() * keys[:length]).sum(-1) * D**-0.5).softmax(0)
            out[row] = (weights[:, :, None] * values[:length]).sum(0).to(out.dtype)


attend_kernel = Fake() if os.environ.get("TRITON_INTERPRET") else real
