"""`nanoinfer shell`: type a beginning, watch it continue, change a setting, try again."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from copy import copy
from dataclasses import asdict, replace
from typing import Annotated, Any

import typer

from nanoinfer.cli.errors import OutputFailed, Refused, explained, refusing
from nanoinfer.cli.generate import DEFAULT_NOTE
from nanoinfer.cli.guess import HOW, GuessedText
from nanoinfer.cli.line_input import read_lines
from nanoinfer.cli.options import BatchOptions, ModelOptions, SamplingOptions, with_options, with_seeds
from nanoinfer.cli.output import Writer, figures, where
from nanoinfer.cli.terminal import remark
from nanoinfer.config import LOOKUP, MOST_DRAFTS
from nanoinfer.requests import SamplingParams

EPILOG = """\
Examples:
nanoinfer shell -m gpt2
nanoinfer shell -m gpt2 --temperature 0.7 -n 60
nanoinfer shell --draft me --greedy
Inside, /help lists the commands. Lines are also read from a pipe."""

COMMANDS = {  # an example of its value, and what it does
    "more": ("", "go on with the last text"),
    "end": ("", "leave the text that you guess (--draft me)"),
    "temperature": ("0.7", "divides the logits; 0 is greedy"),
    "greedy": ("", "always the likeliest token"),
    "top-k": ("40", "keep the 40 likeliest tokens; 0 keeps all"),
    "top-p": ("0.9", "of those, the fewest that reach this probability; 1 keeps all"),
    "max-tokens": ("128", "new tokens at most"),
    "seed": ("7", "the same text each time; /seed none: a new one each time"),
    "engine": ("naive", "another engine over the same weights"),
    "model": ("gpt2", "another model: a name, a folder or a file"),
    "settings": ("", "all of these as they are now; one without a value shows itself"),
    "help": ("", "this list"),
    "quit": ("", "leave"),
}

HELP = """\
Type the beginning of a text and press Enter; the model continues it.
  Alt-Enter (or Esc, then Enter)  a new line within the text
  Ctrl-C                          stop a continuation, or clear the line
  Ctrl-D                          leave
  //text                          a text that begins with one slash
""" + "\n".join(f"  {f'/{name} {value}':<30}  {what}" for name, (value, what) in COMMANDS.items())

# The commands that set a sampling parameter of their name: how a value is read, and what it must be.
PARAMS: dict[str, tuple[Callable[[str], Any], str]] = {
    "temperature": (float, "a number"),
    "top-k": (int, "a whole number"),
    "top-p": (float, "a number"),
    "max-tokens": (int, "a whole number"),
    "seed": (lambda text: None if text == "none" else int(text), "a whole number or none"),
}


@with_options
def shell(
    *,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No figures after a continuation.")] = False,
    draft: Annotated[
        str | None,
        typer.Option(
            metavar="me", help="You guess the next words, 64 tokens at most; a step of the model verifies them."
        ),
    ] = None,
    sampling: SamplingOptions,
    model: ModelOptions,
) -> None:
    """Type a beginning, watch it continue.

    Settings can be changed in between: /help says how.
    Ctrl-C stops a continuation, Ctrl-D leaves.
    """
    params = sampling.params()
    if draft is not None:
        model = drafted_by(draft, model)
    session = Shell(BatchOptions(**asdict(model), max_batch=1, max_graph_batch=1), params, quiet, draft is not None)
    if model.model is None and not quiet:
        remark(DEFAULT_NOTE)
    if draft is not None and not quiet:
        remark(HOW)
    with closing(read_lines(COMMANDS)) as lines:
        for line in lines:
            if not session.obey(line):
                break
    session.llm.close()


def drafted_by(who: str, model: ModelOptions) -> ModelOptions:
    """The options for drafts that a person types: all of them are brought, in place of those of a look-up."""
    if who != "me":
        raise Refused(f"--draft must be me, not {who!r}: --speculate lets lookup or a model draft")
    if model.speculate is not None:
        raise Refused("--draft and --speculate contradict each other: give one of them")
    most = MOST_DRAFTS if model.draft_tokens is None else model.draft_tokens
    return replace(model, speculate=LOOKUP, adaptive_drafts=False, draft_tokens=most)


class Shell:
    """What a session holds: an LLM, the settings, the tokens of the last text, and the text that is being guessed."""

    def __init__(
        self, options: ModelOptions, params: SamplingParams, quiet: bool = False, guesses: bool = False
    ) -> None:
        self.options, self.params, self.quiet, self.guesses = options, params, quiet, guesses
        self.guessed: GuessedText | None = None
        self.llm = options.load()
        self.tokens: list[int] = []  # prompt and continuation of the last text, for /more

    def obey(self, line: str) -> bool:
        """Do what one line asks; False for /quit. What goes wrong is said in one sentence, and nothing has changed."""
        try:
            if line.startswith("/") and not line.startswith("//"):
                name, _, value = line[1:].strip().partition(" ")
                if name in ("quit", "exit"):
                    return False
                self._command(name, value.strip())
                return True
            text = line[line.startswith("//") :]
            if self.guessed and not self.guessed.ended:
                self.guessed.turn(text)
            elif line:
                with refusing():
                    tokens = self.llm.tokenizer.encode(text, context=self.llm.max_len)
                self._go_on(tokens, text)
        except OutputFailed:
            raise  # there is nowhere to write
        except (KeyboardInterrupt, Exception) as error:
            remark(re.sub("^--", "/", str(explained(error))))
        return True

    def _command(self, name: str, value: str) -> None:
        if name in PARAMS:
            self._set(name, value)
        elif name == "greedy":
            self._set("temperature", "0")
        elif name in ("engine", "model"):
            self._load(name, value)
        elif name == "settings":
            self._show_settings()
        elif name == "help":
            for line in HELP.splitlines():
                remark(line)
        elif name == "end":
            self.guessed = None
        elif name != "more":
            raise Refused(f"there is no command /{name}: /help lists them (// begins a text with a slash)")
        elif not self.tokens:
            raise Refused("there is no text yet that could go on: type a beginning first")
        else:
            self._go_on(self.tokens)

    def _go_on(self, tokens: list[int], text: str = "") -> None:
        """Continue these tokens; `text` is written before what comes."""
        if self.guesses:
            self.guessed = None  # it had the one row
            (params,) = with_seeds(self.params, 1)
            self.guessed = GuessedText(self.llm, tokens, params, text, self.quiet)
            self.tokens = self.guessed.token_ids
            return
        before = copy(self.llm.stats)
        writer = Writer([text])
        with refusing():
            pieces = self.llm.stream([tokens], with_seeds(self.params, 1))
        try:
            done = writer.run(pieces)
        finally:
            ended = writer.done and writer.done[0].finish_reason == "stop"  # by its last token, which is no text
            self.tokens = [*tokens, *(writer.token_ids[:-1] if ended else writer.token_ids)]
        if not self.quiet:
            remark(figures(done, self.llm, self.params.greedy, before))

    def _load(self, name: str, value: str) -> None:
        """Another engine over the loaded weights, or another model. The old LLM is closed once the new one is there."""
        if value:
            changed = {"engine": value} if name == "engine" else {"model": value, "revision": None}
            options = replace(self.options, **changed)
            llm = options.load(self.llm.model if name == "engine" else None)
            self.llm.close()
            self.llm, self.options, self.guessed = llm, options, None
        remark(f"{name} {self.llm.engine if name == 'engine' else self.options.model_name}")

    def _show_settings(self) -> None:
        params = self.params
        shown: dict[str, Any] = {"model": self.options.model_name, **where(self.llm), "max-len": self.llm.max_len}
        shown |= {name: self._shown(name) for name in PARAMS}
        shown["temperature"] = f"{params.temperature:g}{' (greedy)' * params.greedy}"
        for name, setting in shown.items():
            remark(f"  {name:<12} {setting}")

    def _shown(self, option: str) -> str:
        setting = getattr(self.params, option.replace("-", "_"))
        return "a new one each time" if setting is None else str(setting)

    def _set(self, option: str, value: str) -> None:
        """Change one sampling parameter, or just say what it is; the old one stays where the new one is refused."""
        name, (parse, kind) = option.replace("-", "_"), PARAMS[option]
        if value:
            try:
                parsed = parse(value)
            except ValueError:
                raise Refused(f"/{option} takes {kind}, not {value!r}") from None
            with refusing():
                self.params = replace(self.params, **{name: parsed})
        remark(f"{option} {self._shown(option)}")
