"""The text of one row as its tokens come, cut at a stop string: the one place that looks for them. Chapter 1.

A token is a piece of bytes, not of text: one emoji may take four tokens, so `TextStream` waits for whole characters.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from nanoinfer.text.tokenizer import Tokenizer


class TextStream:
    """Text of one row as its tokens come: whole characters only, and nothing of a stop string.

    Text that may turn out to be the beginning of a stop string is held back until it is known. `text` is all that has
    come so far, and `stopped` whether a stop string has come: nothing follows it.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._tokenizer, self._stop = tokenizer, tuple(stop)
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held, self.text, self.stopped = "", "", False

    def extend(self, token_ids: Sequence[int]) -> str:
        """Take any number of tokens; return the text that is now certain."""
        if self._stop:  # which may come between two of them
            return "".join(map(self.push, token_ids))
        new = self._utf8.decode(self._tokenizer.bytes_of(token_ids))
        self.text += new
        return new

    def push(self, token_id: int) -> str:
        """Take one token; return the text that is now certain, often empty."""
        if self.stopped:
            return ""
        text = self._held + self._utf8.decode(self._tokenizer.token_bytes(token_id))
        found = [at for stop in self._stop if (at := text.find(stop)) >= 0]
        self.stopped = bool(found)
        sure = min(found) if found else len(text) - max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = "" if found else text[sure:]
        self.text += text[:sure]
        return text[:sure]

    def finish(self) -> str:
        """No token follows: return what was held back. Half a character becomes U+FFFD, which ends no stop string."""
        rest = "" if self.stopped else self._held + self._utf8.decode(b"", final=True)
        self._held, self.text = "", self.text + rest
        return rest


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
