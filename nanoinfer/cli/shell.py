"""`nanoinfer shell`: type a beginning, watch it continue, change a setting, try again."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Annotated, Any

import typer

from nanoinfer.cli import options as opt
from nanoinfer.cli.errors import Failed, Refused, Stopped, failure, refusing
from nanoinfer.cli.generate import default_note
from nanoinfer.cli.lines import COMMANDS, HELP, reader
from nanoinfer.cli.report import figures, place
from nanoinfer.cli.terminal import Bar, PipeClosed, remark
from nanoinfer.cli.writers import TextWriter, run
from nanoinfer.llm import LLM
from nanoinfer.requests import Piece, SamplingParams

EPILOG = """\
Examples:

nanoinfer shell -m gpt2

nanoinfer shell -m gpt2 --temperature 0.7 -n 60

Inside, /help lists the commands. Lines are also read from a pipe."""


def shell(
    *,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No figures after a continuation.")] = False,
    max_tokens: opt.MaxTokens = 128,
    temperature: opt.Temperature = None,
    top_k: opt.TopK = opt.TOP_K,
    top_p: opt.TopP = 1.0,
    greedy: opt.Greedy = False,
    seed: opt.Seed = None,
    model: opt.Model = None,
    revision: opt.Revision = None,
    engine: opt.EngineName = "auto",
    device: opt.Device = None,
    dtype: opt.Dtype = None,
    max_len: opt.MaxLen = None,
) -> None:
    """Type a beginning, watch it continue.

    Settings can be changed in between: /help says how.
    Ctrl-C stops a continuation, Ctrl-D leaves.
    """
    params = opt.sampling(temperature, greedy, max_tokens=max_tokens, top_k=top_k, top_p=top_p, seed=seed)
    where = opt.Place(model, revision, engine, device, dtype, max_len, max_batch=1, max_graph_batch=1)
    where.check()
    session = Shell(where, params, quiet)
    if model is None and not quiet:
        remark(default_note(where.model_name))
    with closing(reader()) as lines:
        for line in lines:
            if not session.obey(line):
                break
    session.llm.close()


# Sampling parameters that a command of the same name sets: how its value is read, and what it must be.
_PARAMS: dict[str, tuple[Callable[[str], Any], str]] = {
    "temperature": (float, "a number"),
    "top-k": (int, "a whole number"),
    "top-p": (float, "a number"),
    "max-tokens": (int, "a whole number"),
    "seed": (lambda text: None if text == "none" else int(text), "a whole number or none"),
}


class Shell:
    """What a session holds: an LLM, the settings, and the tokens of the last text."""

    def __init__(self, where: opt.Place, params: SamplingParams, quiet: bool = False) -> None:
        self.where, self.params, self.quiet = where, params, quiet
        self.llm: LLM = where.load()
        self.tokens: list[int] = []  # prompt and continuation of the last text, for /more

    def obey(self, line: str) -> bool:
        """Do what one line asks; False for /quit. What goes wrong is said in one sentence, and nothing has changed."""
        try:
            if not line.startswith("/") or line.startswith("//"):
                self.go_on(line[line.startswith("//") :], None)
                return True
            name, _, value = line[1:].strip().partition(" ")
            if name in ("quit", "exit"):
                return False
            self._command(name, value.strip())
        except (Refused, Stopped) as sentence:
            remark(re.sub("^--", "/", str(sentence)))
        except KeyboardInterrupt:
            remark("stopped by Ctrl-C")
        except (PipeClosed, Failed):
            raise  # there is nowhere to write
        except Exception as error:
            remark(failure(error))
        return True

    def _command(self, name: str, value: str) -> None:
        if name not in COMMANDS:
            raise Refused(f"there is no command /{name}: /help lists them (// begins a text with a slash)")
        if name in _PARAMS:
            self._set(name, value)
        else:
            action: Callable[[str], None] = getattr(self, f"_do_{name}")
            action(value)

    def go_on(self, text: str, tokens: list[int] | None) -> None:
        """Continue `text`, or `tokens` of a text that stands above."""
        if not text and tokens is None:
            return
        seed = opt.new_seed() if self.params.seed is None else self.params.seed
        with refusing():
            ids = self.llm.tokenizer.encode(text, context=self.llm.max_len) if tokens is None else tokens
            pieces = self.llm.stream([ids], dataclasses.replace(self.params, seed=seed))
        self.tokens = list(ids)
        done = run(self._noting(pieces), TextWriter([text], echo=tokens is None), Bar(1, wanted=False))
        if not self.quiet:
            remark(figures(done, self.llm, self.params.greedy))

    def _noting(self, pieces: Generator[Piece, None, None]) -> Generator[Piece, None, None]:
        """Keep the tokens of the text as they pass, all but the one that ends it."""
        with closing(pieces):
            for piece in pieces:
                if piece.finish_reason != "stop":
                    self.tokens.append(piece.token_id)
                yield piece

    def _do_more(self, value: str) -> None:
        if not self.tokens:
            raise Refused("there is no text yet that could go on: type a beginning first")
        self.go_on("", self.tokens)

    def _do_greedy(self, value: str) -> None:
        self._set("temperature", "0")

    def _do_engine(self, value: str) -> None:
        """Another engine over the weights that are loaded."""
        if value:
            where = dataclasses.replace(self.where, engine=value)
            self._take(where, where.load(self.llm.model))
        remark(f"engine {self.llm.engine}")

    def _do_model(self, value: str) -> None:
        if value:
            # A revision belongs to the model it was given with.
            where = dataclasses.replace(self.where, model=value, revision=None)
            self._take(where, where.load())
        remark(f"model {self.where.model_name}")

    def _do_settings(self, value: str) -> None:
        params = self.params
        seed = "a new one each time" if params.seed is None else params.seed
        shown = {"model": self.where.model_name, **place(self.llm), "max-len": self.llm.max_len}
        shown |= {
            "temperature": f"{params.temperature:g}" + (" (greedy)" if params.greedy else ""),
            "top-k": params.top_k,
        }
        shown |= {"top-p": params.top_p, "max-tokens": params.max_tokens, "seed": seed}
        for name, setting in shown.items():
            remark(f"  {name:<12} {setting}")

    def _do_help(self, value: str) -> None:
        for line in HELP.splitlines():
            remark(line)

    def _set(self, option: str, value: str) -> None:
        """Change one sampling parameter, or just say what it is; the old one stays where the new one is refused."""
        name, (parse, kind) = option.replace("-", "_"), _PARAMS[option]
        if value:
            try:
                parsed = parse(value)
            except ValueError:
                raise Refused(f"/{option} takes {kind}, not {value!r}") from None
            try:
                self.params = dataclasses.replace(self.params, **{name: parsed})
            except ValueError as error:
                raise Refused(f"/{option}{str(error).removeprefix(name)}") from None
        setting = getattr(self.params, name)
        remark(f"{option} {'a new one each time' if setting is None else setting}")

    def _take(self, where: opt.Place, llm: LLM) -> None:
        """The new LLM is there: only now let the old one go."""
        self.llm, old = llm, self.llm
        self.where = where
        old.close()
