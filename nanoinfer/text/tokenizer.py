"""GPT-2's byte-level BPE through tiktoken. Chapter 1.

The ranks lie in the package (`data/gpt2.tiktoken`) and are checked by their hash, so nothing is ever downloaded.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

import tiktoken

from nanoinfer.model.config import END_OF_TEXT

RANKS_SHA256 = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"
# The pattern that cuts text into words before any merge; from openai/gpt-2, src/encoder.py.
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
LONGEST_TOKEN = 128  # bytes; so a text of more than 128 * context bytes cannot fit, and need not be tokenized


class Tokenizer:
    """Text to token ids and back."""

    def __init__(self) -> None:
        data = files("nanoinfer").joinpath("data/gpt2.tiktoken").read_bytes()
        if hashlib.sha256(data).hexdigest() != RANKS_SHA256:
            raise ValueError("nanoinfer/data/gpt2.tiktoken does not have its published hash; install nanoinfer again")
        ids = {base64.b64decode(token): int(id_) for token, id_ in (line.split() for line in data.splitlines())}
        special = {"<|endoftext|>": END_OF_TEXT}
        self._bytes = {id_: token for token, id_ in ids.items()} | {END_OF_TEXT: b"<|endoftext|>"}
        self._bpe = tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ids, special_tokens=special)

    def encode(self, text: str, *, context: int | None = None, name: str = "prompt") -> list[int]:
        """Token ids of `text`, which errors call `name`. `<|endoftext|>` is text like any other.

        `context`: the model's context in tokens; a text too long for it in any case is refused untokenized, since
        a million spaces overflow the stack of tiktoken's regular expression.
        Raises ValueError for such a text, and for one with a lone surrogate, which no UTF-8 can hold.
        """
        try:
            size = len(text.encode("utf-8"))
        except UnicodeEncodeError as error:
            bad = f"U+{ord(text[error.start]):04X} at character {error.start}"
            raise ValueError(f"{name} must be text that UTF-8 can hold, but has a lone surrogate, {bad}") from None
        if context is not None and size > LONGEST_TOKEN * context:
            raise ValueError(f"{name} has {size:,} bytes, more than a context of {context} tokens can hold")
        return self._bpe.encode_ordinary(text)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token. Ids past GPT-2's vocabulary, which some models add, read as `<|id|>`."""
        if token_id > END_OF_TEXT:
            return f"<|{token_id}|>".encode()
        return self._bytes[token_id]

    def bytes_of(self, token_ids: Sequence[int]) -> bytes:
        """The bytes of these tokens, side by side."""
        try:
            return b"".join(map(self._bytes.__getitem__, token_ids))  # tiktoken's own lets another thread run
        except KeyError:
            return b"".join(map(self.token_bytes, token_ids))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the tokens; bytes that are no UTF-8 become U+FFFD."""
        return self.bytes_of(token_ids).decode("utf-8", errors="replace")


@cache
def gpt2_tokenizer() -> Tokenizer:
    """The one tokenizer of this process: reading its ranks takes about 0.1 s."""
    return Tokenizer()
