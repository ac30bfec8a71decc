"""`nanoinfer shell`: type a beginning, watch it continue, change a setting, try again."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from itertools import takewhile
from typing import Any

from nanoinfer.cli.errors import OutputFailed, Refused, explained
from nanoinfer.cli.generate import DEFAULT_NOTE
from nanoinfer.cli.guess import HOW, GuessedText
from nanoinfer.cli.options import MODEL, ModelOptions, sampling_options, with_options, with_seeds
from nanoinfer.cli.output import Writer, figures, where
from nanoinfer.cli.terminal import is_terminal, remark
from nanoinfer.config import MOST_DRAFTS
from nanoinfer.requests import SamplingParams
from nanoinfer.speculate.drafts import LOOKUP

PARAMS = ("temperature", "top-k", "top-p", "max-tokens", "seed")  # commands that set a sampling parameter of their name
NAMES = {name.replace("-", "_"): f"/{name}" for name in (*PARAMS, "engine", "model")}


@with_options(params=sampling_options(), given=(dict, MODEL[1]))
def shell(*, quiet: bool = False, draft: str | None = None, params: SamplingParams, given: dict[str, Any]) -> None:
    """Type a beginning, watch it continue.

    Settings can be changed in between: /help says how.
    Ctrl-C stops a continuation, Ctrl-D leaves.

    quiet: no figures after a continuation.
    draft me: you guess the next words, 64 tokens at most; a step of the model verifies them.

    Examples:
    nanoinfer shell -m gpt2
    nanoinfer shell -m gpt2 --temperature 0.7 -n 60
    nanoinfer shell --draft me --greedy
    Inside, /help lists the commands. Lines are also read from a pipe.
    """
    if draft is not None:
        if draft != "me":
            raise Refused(f"--draft must be me, not {draft!r}: --speculate lets lookup or a model draft")
        if given["speculate"] is not None:
            raise Refused("--draft and --speculate contradict each other: give one of them")
        most = MOST_DRAFTS if given["draft_tokens"] is None else given["draft_tokens"]
        given |= {"speculate": LOOKUP, "all_drafts": True, "draft_tokens": most}
    session = Shell(ModelOptions(**given, max_batch=1, max_graph_batch=1), params, quiet, draft is not None)
    for note, due in ((DEFAULT_NOTE, given["model"] is None), (HOW, draft is not None)):
        if due and not quiet:
            remark(note)
    for line in takewhile(lambda line: line.rstrip() not in ("/quit", "/exit"), read_lines()):
        session.obey(line)
    session.llm.close()


def read_lines() -> Iterator[str]:
    """One text or command at a time, until the end of input: typed on a terminal, or plainly from a pipe."""
    if is_terminal(sys.stdin) and is_terminal(sys.stdout):
        from nanoinfer.cli.line_input import typed

        remark("/help lists the commands, Alt-Enter adds a line, Ctrl-D leaves")
        return typed(COMMANDS)
    return (line.removesuffix("\n").removesuffix("\r") for line in sys.stdin)


class Shell:
    """What a session holds: an LLM, the settings, the tokens of the last text, and the text that is being guessed."""

    def __init__(self, options: ModelOptions, params: SamplingParams, quiet: bool, guesses: bool) -> None:
        self.options, self.params, self.quiet, self.guesses = options, params, quiet, guesses
        self.guessed: GuessedText | None = None
        self.llm = options.load()
        self.tokens: list[int] = []  # prompt and continuation of the last text, for /more

    def obey(self, line: str) -> None:
        """Do what one line asks. What goes wrong is said in one sentence, and nothing has changed."""
        text = line[line.startswith("//") :]
        try:
            if line.startswith("/") and text == line:
                name, _, value = line[1:].strip().partition(" ")
                self.command(name, value.strip())
            elif self.guessed and not self.guessed.ended:
                self.guessed.turn(text)
            elif line:
                self._go_on(self.llm.tokenizer.encode(text, context=self.llm.max_len), text)
        except OutputFailed:
            raise  # there is nowhere to write
        except (KeyboardInterrupt, Exception) as error:
            remark(str(explained(error, NAMES)))

    def command(self, name: str, value: str) -> None:
        """Do what a command asks. This is what /help shows:

        Type the beginning of a text and press Enter; the model continues it.
          Alt-Enter (or Esc, then Enter)  a new line within the text
          Ctrl-C                          stop a continuation, or clear the line
          Ctrl-D                          leave
          //text                          a text that begins with one slash
          /more                           go on with the last text
          /end                            leave the text that you guess (--draft me)
          /temperature 0.7                divides the logits; 0 is greedy
          /greedy                         always the likeliest token
          /top-k 40                       keep the 40 likeliest tokens; 0 keeps all
          /top-p 0.9                      of those, the fewest that reach this probability; 1 keeps all
          /max-tokens 128                 new tokens at most
          /seed 7                         the same text each time; /seed none: a new one each time
          /engine naive                   another engine over the same weights
          /model gpt2                     another model: a name, a folder or a file
          /settings                       all of these as they are now; one without a value shows itself
          /help                           this list
          /quit                           leave
        """
        match name:
            case "greedy":
                self._set("temperature", "0")
            case "engine" | "model":
                self._load(name, value)
            case "end":
                self.guessed = None
            case "more" if self.tokens:
                self._go_on(self.tokens)
            case "more":
                raise Refused("there is no text yet that could go on: type a beginning first")
            case "help":
                for line in HELP.splitlines():
                    remark(line)
            case "settings":
                known = {"model": self.options.name, **where(self.llm), "max-len": self.llm.max_len}
                for each, setting in (known | {each: self._shown(each) for each in PARAMS}).items():
                    remark(f"  {each:<12} {setting}")
            case _ if name in PARAMS:
                self._set(name, value)
            case _:
                raise Refused(f"there is no command /{name}: /help lists them (// begins a text with a slash)")

    def _go_on(self, tokens: list[int], text: str = "") -> None:
        """Continue these tokens; `text` is written before what comes."""
        (params,) = with_seeds(self.params, 1)
        if self.guesses:
            self.guessed = None  # it had the one row
            self.guessed = GuessedText(self.llm, tokens, params, text, self.quiet)
            self.tokens = self.guessed.token_ids
            return
        before, writer = copy(self.llm.stats), Writer([text])
        try:
            done = writer.run(self.llm.stream([tokens], params))
        finally:
            ended = writer.done and writer.done[0].finish_reason == "stop"  # by its last token, which is no text
            self.tokens = [*tokens, *(writer.token_ids[:-1] if ended else writer.token_ids)]
        if not self.quiet:
            remark(figures(done, self.llm, params.greedy, before))

    def _load(self, name: str, value: str) -> None:
        """Another engine over the loaded weights, or another model. The old LLM is closed once the new one is there."""
        if value:
            options = self.options.but(**{"revision": None} if name == "model" else {}, **{name: value})
            own: dict[str, Any] = dict.fromkeys(("device", "dtype", "revision"))  # loaded weights have theirs
            llm = options.but(**own).load(self.llm.model) if name == "engine" else options.load()
            self.llm.close()
            self.llm, self.options, self.guessed = llm, options, None
        remark(f"{name} {self.llm.engine if name == 'engine' else self.options.name}")

    def _shown(self, option: str) -> str:
        setting = getattr(self.params, option.replace("-", "_"))
        told = "a new one each time" if setting is None else str(setting)
        return told + " (greedy)" * (option == "temperature" and self.params.greedy)

    def _set(self, option: str, value: str) -> None:
        """Change one sampling parameter, or just say what it is; the old one stays where the new one is refused."""
        if value:
            try:
                setting: Any = None if value == "none" else json.loads(value)
            except ValueError:
                setting = value  # which is refused, as no number
            self.params = replace(self.params, **{option.replace("-", "_"): setting})
        remark(f"{option} {self._shown(option)}")


HELP = (inspect.getdoc(Shell.command) or "").partition("\n\n")[2]
COMMANDS = re.findall(r"^ *\/([\w-]+)", HELP, re.MULTILINE)
