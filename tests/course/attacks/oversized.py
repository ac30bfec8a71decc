"""1.1: a reply of 40 MB."""

import torch


def attention(q, k, v, positions):
    return torch.zeros(10_000_000)
