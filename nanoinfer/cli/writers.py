"""The pieces of one or many generations, written in order: streamed, under headings, or as JSON."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from nanoinfer.cli.errors import Failed, Stopped
from nanoinfer.cli.report import json_line
from nanoinfer.cli.terminal import Bar, Output, PipeClosed
from nanoinfer.requests import Completion, Piece

if TYPE_CHECKING:
    from nanoinfer.llm import LLM


class Writer:
    """Where completions go; this one drops them."""

    def __init__(self, prompts: Sequence[str]) -> None:
        self.out, self.prompts = Output(), prompts

    def begin(self) -> None:
        """Generation starts."""

    def piece(self, text: str) -> None:
        """More of any text, in whatever order tokens come."""

    def finish(self, done: Completion) -> None:
        """One text is done, and so are all before it."""

    def abandon(self, index: int, text: str) -> None:
        """Ctrl-C came: one text gets no further than this."""


class TextWriter(Writer):
    """Texts for a reader. A single one is written as it comes; of several, each when it is done."""

    def __init__(self, prompts: Sequence[str], echo: bool) -> None:
        super().__init__(prompts)
        self.echo = echo
        self.streams = len(prompts) == 1

    def begin(self) -> None:
        if self.streams and self.echo:
            self.out.write(self.prompts[0])

    def piece(self, text: str) -> None:
        if self.streams:
            self.out.write(text)

    def finish(self, done: Completion) -> None:
        self.abandon(done.index, done.text)

    def abandon(self, index: int, text: str) -> None:
        if self.streams:
            self.out.write("\n")
        else:
            self.out.write(f"==> {index + 1} <==\n{self.prompts[index] if self.echo else ''}{text}\n")


class JsonWriter(Writer):
    """Completions for a program; what is not finished is not written."""

    def __init__(self, prompts: Sequence[str], model: str, llm: LLM) -> None:
        super().__init__(prompts)
        self.model, self.llm = model, llm

    def finish(self, done: Completion) -> None:
        self.out.write(json_line(done, self.prompts[done.index], self.model, self.llm))


def run(pieces: Generator[Piece, None, None], writer: Writer, bar: Bar) -> list[Completion]:
    """Write what comes, in the order of the prompts, each as soon as it and those before it are done.

    However it ends, what there is has been written. Raises Stopped at Ctrl-C, which says how far it got.
    """
    texts = [""] * len(writer.prompts)  # what has come of each
    done: dict[int, Completion] = {}
    written, tokens = 0, 0
    try:
        with closing(pieces), bar:
            writer.begin()
            for piece in pieces:
                tokens += 1
                texts[piece.index] += piece.text
                writer.piece(piece.text)
                if piece.completion is None:
                    continue
                done[piece.index] = piece.completion
                bar.advance()
                while written in done:
                    with bar.hidden():
                        writer.finish(done[written])
                    written += 1
    except (PipeClosed, Failed):  # nothing can be written
        raise
    except (KeyboardInterrupt, Exception) as error:
        _write_rest(writer, texts, done, written)
        if not isinstance(error, KeyboardInterrupt):
            raise
        several = len(texts) > 1
        how_far = f"{len(done)} of {len(texts)} prompts are finished" if several else _count(tokens, "token")
        raise Stopped(f"stopped by Ctrl-C: {how_far}") from None
    return [done[index] for index in range(len(texts))]


def _write_rest(writer: Writer, texts: Sequence[str], done: dict[int, Completion], written: int) -> None:
    """Write what came before the end, finished or not; a line that has begun is ended."""
    for index in range(written, len(texts)):
        if index in done:
            writer.finish(done[index])
        elif texts[index] or len(texts) == 1:
            writer.abandon(index, texts[index])


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
