"""The corpus as tokens: text -> uint16 file -> shuffled windows on the device.

A text file holds documents, each followed by a line with nothing but `<|endoftext|>`. In tokens a document is
followed by that one token, and documents stand one behind the other: a window may hold the end of one and the
beginning of the next, as in GPT-2's own training.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import torch
import typer
from torch import Tensor

from nanoinfer.model.config import END_OF_TEXT
from nanoinfer.text.tokenizer import gpt2_tokenizer

MARK = "<|endoftext|>"


def documents(path: Path) -> list[str]:
    """The documents of a text file, plain or .xz, without the blank lines around the mark."""
    with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open(encoding="utf-8") as file:
        text = "\n" + file.read()
    return [stripped for document in text.split(f"\n{MARK}") if (stripped := document.strip("\n"))]


def tokenise(path: Path) -> np.ndarray:
    """(N,) uint16: each document's tokens, then END_OF_TEXT."""
    encode = gpt2_tokenizer().encode
    return np.concatenate([np.array([*encode(document), END_OF_TEXT], np.uint16) for document in documents(path)])


def load(path: Path) -> np.ndarray:
    """The tokens that `python -m training.data` wrote."""
    return np.fromfile(path, np.uint16)


class Epochs:
    """Batches of windows for ever: each epoch puts the documents in a new order and cuts the stream anew.

    Every epoch begins at a random place of its stream, so that windows do not begin where documents do. Batches
    depend on the seed and their number alone.
    """

    def __init__(self, tokens: np.ndarray, batch: int, context: int, seed: int, device: torch.device) -> None:
        self.documents = np.split(tokens, np.flatnonzero(tokens == END_OF_TEXT)[:-1] + 1)
        self.batch, self.context, self.seed, self.device = batch, context, seed, device
        self.per_epoch = (len(tokens) - 1) // (batch * context)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets, (batch, context) int64 each."""
        for epoch in count():
            random = np.random.default_rng((self.seed, epoch))
            order = random.permutation(len(self.documents))
            stream = np.concatenate([self.documents[i] for i in order])
            stream = np.roll(stream, random.integers(len(stream))).astype(np.int32)
            windows = random.permutation(self.per_epoch * self.batch)  # so that a batch holds windows from all over
            on_device = torch.from_numpy(stream).to(self.device)
            starts = torch.from_numpy(windows * self.context).to(self.device).view(self.per_epoch, self.batch, 1)
            columns = torch.arange(self.context + 1, device=self.device)
            for start in starts:
                window = on_device[start + columns].long()  # (batch, context + 1)
                yield window[:, :-1], window[:, 1:]


def main(text: Path, out: Path) -> None:
    """Tokenise TEXT (.txt or .txt.xz) with GPT-2's vocabulary into OUT, two bytes a token."""
    tokens = tokenise(text)
    tokens.tofile(out)
    ends, kinds = int((tokens == END_OF_TEXT).sum()), len(np.unique(tokens))
    print(f"{text.name}: {ends:,} documents, {len(tokens):,} tokens of {kinds:,} kinds -> {out}")


if __name__ == "__main__":
    typer.run(main)
