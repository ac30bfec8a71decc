"""1.1: an honest answer among files that would take the place of libraries."""

import torch


def attention(q, k, v, positions):
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
    later = positions[:, None, None, :] > positions[:, None, :, None]
    return (scores.masked_fill(later, -torch.inf).softmax(-1) @ v).transpose(1, 2)
