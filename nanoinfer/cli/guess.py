"""`nanoinfer shell --draft me`: a person guesses the next words, and the engine verifies them, as it does any draft.

Whoever types is as slow as they like, so steps run one by one in this thread, and not in the engine's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nanoinfer.cli.errors import Refused
from nanoinfer.cli.terminal import colours, remark, write
from nanoinfer.llm import LLM
from nanoinfer.requests import SamplingParams
from nanoinfer.speculate.drafts import GivenDrafts
from nanoinfer.text.stop import TextStream

HOW = "type a beginning, then guess the next words; Enter alone lets the model go on, /end leaves the text"


class GuessedText:
    """One text that a person and the model write by turns. The model chooses each token; a guess only saves steps.

    token_ids: all of its tokens. ended: whether no turn is left.
    """

    def __init__(
        self, llm: LLM, token_ids: Sequence[int], params: SamplingParams, text: str, quiet: bool = False
    ) -> None:
        self.stats, self.config, self.quiet = llm.stats, llm.config, quiet
        self.token_ids, self.text, self.ended = list(token_ids), text, False
        self._tokenizer, self._stream = llm.tokenizer, TextStream(llm.tokenizer)
        core: Any = llm.core
        self._drafter = GivenDrafts()
        core.begin_with(self._drafter)
        self._steps = core.generate(llm.requests([self.token_ids], params))
        self._new = 0  # tokens that have come
        self._right, self._wrong, self._turns = 0, 0, -1  # the prompt's own step is nobody's turn
        self.turn("")

    def turn(self, guess: str) -> None:
        """Let one step verify the guess, and write what came of it. Refused for a guess that is too long."""
        drafts = self._drafter.token_ids = self._tokens_of(guess)
        brought, accepted = self.stats.draft_tokens, self.stats.accepted_tokens
        self.ended = True  # if the step fails
        (row,) = next(rows for rows in self._steps if rows)  # a long prompt takes several steps
        new, self._new = row.token_ids[self._new :], len(row.token_ids)
        brought, accepted = self.stats.draft_tokens - brought, self.stats.accepted_tokens - accepted
        self.ended = row.ended
        self._right += accepted
        self._wrong += accepted < brought
        self._turns += 1
        self._write(new[:-1] if new[-1] in row.stop_ids else new, accepted)
        wrong = f", not {self._tokenizer.decode(drafts[accepted : accepted + 1])!r}" * (accepted < brought)
        said = [f"{accepted} of {brought} right{wrong}"] * bool(brought)
        said += [f"the text has ended ({row.finish_reason})"] * row.ended
        if guesses := self._right + self._wrong:  # what follows a wrong guess had no chance: it does not count
            score = f"so far {self._right} right, {self._wrong} wrong, alpha {self._right / guesses:.2f}"
            said.append(f"{score}, {(self._new - 1) / self._turns:.2f} tokens a step")
        if said and not self.quiet:
            remark("; ".join(said))

    def _tokens_of(self, guess: str) -> list[int]:
        """A word begins with a space, which need not be typed."""
        guess = guess.rstrip(" ")
        space = " " * (guess[:1].isalnum() and not self.text[-1:].isspace())
        drafts = self._tokenizer.encode(space + guess, context=self.config.draft_tokens, name="a guess")
        if len(drafts) > self.config.draft_tokens:
            raise Refused(f"a guess may have {self.config.draft_tokens} tokens (--draft-tokens), not {len(drafts)}")
        return drafts

    def _write(self, new: Sequence[int], accepted: int) -> None:
        """The text so far, with the new tokens marked: those that were guessed, and the model's own."""
        write(self.text)
        texts = list(map(self._stream.push, new))
        for at, text in enumerate(texts):
            (left, right), colour = ("[]", "green") if at < accepted else ("<>", "yellow")
            write(text if colours() else f"{left}{text}{right}", colour)
        write("\n")
        self.text += "".join(texts)
        self.token_ids += new
