"""What the chapters' running examples share: the small model in float64, its tokens as words, and labelled texts."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import load_model
from nanoinfer.text.tokenizer import gpt2_tokenizer
from nanoinfer.verify import verify_tokens


@cache
def model() -> GPT2:
    """The small model, in float64: every machine prints the same digits."""
    return load_model("small", torch.device("cpu"), torch.float64)


def encode(text: str) -> list[int]:
    """Token ids of a text."""
    return gpt2_tokenizer().encode(text)


def decode(ids: Sequence[int]) -> str:
    """The text of token ids."""
    return gpt2_tokenizer().decode(list(ids))


def word(token_id: int) -> str:
    """A token in quotation marks, so that a space before it is seen; in single ones where it has a double one."""
    text = decode([token_id]).replace("\n", "\\n")
    return f"'{text}'" if '"' in text else f'"{text}"'


def best(probs: Tensor, count: int = 3) -> str:
    """The most probable tokens, with their probabilities."""
    top = probs.topk(count)
    return "  ".join(f"{word(i)} {p:.3f}" for i, p in zip(top.indices.tolist(), top.values.tolist(), strict=True))


def output(file: Path, *words: str, **environment: str) -> str:
    """What a program prints, with these variables set before its Python starts."""
    command = [sys.executable, "-W", "ignore", str(file), *words]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True).stdout


def interpreted(file: Path, *words: str) -> None:
    """Print what a file of kernels prints in Triton's interpreter."""
    print(output(file, *words, TRITON_INTERPRET="1", OMP_NUM_THREADS="1"), end="")


def show(label: str, text: str) -> None:
    """Print a label and a text in quotation marks, wrapped."""
    text = '"' + text.replace("\n", "\\n") + '"'
    print(textwrap.fill(text, 100, initial_indent=f"{label:24}", subsequent_indent=" " * 24))


def show_fault(label: str, forward_logits: Any, done: Sequence[Any], params: Any) -> None:
    """Print what the oracle says of tokens that are not its own."""
    try:
        verify_tokens(forward_logits, done, params)
    except AssertionError as error:
        show(label, str(error))
