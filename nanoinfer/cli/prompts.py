"""Where prompts come from: the argument, a file, or standard input. Bytes in, checked text out."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from nanoinfer.cli.errors import Refused, refusing
from nanoinfer.cli.terminal import is_terminal, remark
from nanoinfer.model.config import PRESETS
from nanoinfer.requests import SamplingParams

LIMIT_MIB = 16


def read_prompts(argument: str | None, file: str | None, lines: bool) -> list[str]:
    """The prompts asked for, none of them empty. Refused where they cannot be read."""
    if argument is not None and file is not None:
        raise Refused("there are two prompts, the argument and --file: give one of them")
    if argument not in (None, "-"):
        text, name = from_argument(argument), "the prompt"
    else:
        name = "standard input" if file in (None, "-") else str(file)
        text = _decode(_read(file), name)
    text = text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text
    if not text:
        raise Refused(f"{name} is empty: a prompt must have at least one character")
    if not lines:
        return [text]
    prompts = [line.removesuffix("\r") for line in text.split("\n")]
    if "" in prompts:
        raise Refused(f"line {prompts.index('') + 1} of {name} is empty: with --lines every line must be a prompt")
    return prompts


def from_argument(text: str) -> str:
    """An argument as the UTF-8 that was typed: in an ASCII locale Python hands it over as surrogates."""
    try:
        text.encode("utf-8")
        return text
    except UnicodeEncodeError:
        return _decode(os.fsencode(text), "the argument")


def _read(name: str | None) -> bytes:
    """The bytes of a file, or of standard input, and one too many where there are too many."""
    most = (LIMIT_MIB << 20) + 1
    if name in (None, "-"):
        if sys.stdin is None:
            raise Refused("there is no prompt, and standard input is closed: give a prompt as an argument")
        if is_terminal(sys.stdin):
            remark("nanoinfer: type the prompt and end it with Ctrl-D on a line of its own (Windows: Ctrl-Z, Enter)")
        return sys.stdin.buffer.read(most)
    try:
        with Path(str(name)).expanduser().open("rb") as file:
            return file.read(most)
    except IsADirectoryError:
        raise Refused(f"{name} is a folder: --file reads one text file") from None
    except OSError as error:
        raise Refused(f"{name} cannot be read: {error.strerror or error}") from None
    except (ValueError, RuntimeError) as error:  # a name that no file system takes; a ~user nobody knows
        raise Refused(f"{name!r} is no file: {error}") from None


def _decode(data: bytes, name: str) -> str:
    if len(data) > LIMIT_MIB << 20:
        raise Refused(f"{name} holds more than {LIMIT_MIB} MiB, which is the most that is read")
    try:
        return data.decode("utf-8").removeprefix("\ufeff")  # some editors begin every file with this mark
    except UnicodeDecodeError as error:
        raise Refused(f"{name} is not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}") from None


def check_lengths(prompts: list[str], lines: bool, model: str, max_len: int | None) -> None:
    """Refuse prompts too long for a model whose shape is known by its name, before torch and weights are loaded."""
    config = PRESETS.get(model.removeprefix("random:"))
    if config is None:
        return
    import random

    from nanoinfer.text.samples import SampleMaker
    from nanoinfer.text.tokenizer import gpt2_tokenizer

    context = max_len or config.n_positions
    if context > config.n_positions:
        raise Refused(f"--max-len must be at most the model's context of {config.n_positions} tokens, not {max_len}")
    with refusing(lines):
        maker = SampleMaker(gpt2_tokenizer(), context, config.vocab_size, random.Random(0))
        maker.requests(prompts, SamplingParams())
