"""Options, made of signatures and docstrings: those of `EngineConfig`, `SamplingParams`, `ServeConfig` and of commands.

A refused argument is answered before torch is imported, which takes seconds: the configs check what they are given,
and `ModelOptions` the names of models.
"""

from __future__ import annotations

import functools
import inspect
import re
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nanoinfer import records
from nanoinfer.cli.errors import CommandError
from nanoinfer.cli.terminal import from_argument
from nanoinfer.config import EngineConfig
from nanoinfer.docstrings import Told, described
from nanoinfer.llm import DEFAULT_MODEL, LLM
from nanoinfer.model.hub import HUB_NAMES, locate, random_config
from nanoinfer.requests import SamplingParams
from nanoinfer.speculate.drafts import LOOKUP, NGRAM

if TYPE_CHECKING:
    from nanoinfer.model.gpt2 import GPT2

TEMPERATURE, TOP_K = 0.8, 40  # pleasant to read rather than faithful; GPT-2's own published samples used top-k 40
TYPES = {"int": int, "float": float, "bool": bool, "Path": Path, "str": str, "FileBinaryRead": typer.FileBinaryRead}
Group = tuple[Callable[..., Any], list[inspect.Parameter]]  # options, and what makes one argument of a command of them
SHORT = {"model": ["-m"], "file": ["-f"], "out": ["-o"], "quiet": ["-q"], "verbose": ["-v"]}


def derived(owner: Any, *names: str, **more: Any) -> list[inspect.Parameter]:
    """Return typer's options for these arguments of a function, or fields of a config.

    more: arguments of `typer.Option`, for each of them; flags in place of the name, and another default.
    """
    arguments, (_, told, _) = inspect.signature(owner).parameters, described(owner)
    return [_option(arguments[name], told.get(name, Told()), more) for name in names]  # python -OO has no docstrings


def _option(given: inspect.Parameter, told: Told, more: dict[str, Any]) -> inspect.Parameter:
    """Return the option, or the argument, that typer makes of one parameter."""
    more = {"default": given.default, "help": told.help, "metavar": told.metavar, **more}
    hint, default = str(given.annotation), more.pop("default")
    kind: Any = next(TYPES[word] for word in re.findall(r"\w+", hint) if word in TYPES)
    if many := "[" in hint:
        kind, default = list[kind], None
    if given.kind is given.POSITIONAL_OR_KEYWORD and "rich_help_panel" not in more:
        made = typer.Argument(**more)
    else:
        name = given.name.removeprefix("as_").removesuffix("s" * many).replace("_", "-")
        flags = [f"--{name}/--no-{name}" if default is True else f"--{name}", *SHORT.get(given.name, ())]
        more["help"] += " May be given again." * many
        made = typer.Option(..., *more.pop("flags", flags), **{"show_default": told.unset or True, **more})
    annotation: Any = Annotated[kind | None if default is None else kind, made]
    return given.replace(annotation=annotation, kind=inspect.Parameter.KEYWORD_ONLY, default=default)


def with_options(**groups: Group) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a command for typer: each of its arguments becomes an option, or all those of its group."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        names = inspect.signature(command).parameters
        flat = [each for name in names for each in (groups[name][1] if name in groups else derived(command, name))]

        @functools.wraps(command)
        def run(**given: Any) -> Any:
            for name, (make, options) in groups.items():
                given[name] = make(**{option.name: given.pop(option.name) for option in options})
            return command(**given)

        run.__annotations__ = {option.name: option.annotation for option in flat}
        run.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
        return run

    return decorate


def sampling(
    temperature: float | None, greedy: bool = False, seed: int | None = None, stop: Any = (), stop_token_ids: Any = (),
    **given: Any,
) -> SamplingParams:  # fmt: skip
    """Return the checked parameters.

    greedy: always the likeliest token: temperature 0.
    seed: the same seed gives the same text; prompt number i of --lines gets SEED + i - 1. None: a new one each time.
    """
    if greedy and temperature:
        raise ValueError(f"greedy is temperature 0 and contradicts --temperature {temperature:g}: give one of them")
    given["temperature"] = 0.0 if greedy else TEMPERATURE if temperature is None else temperature
    stops = [from_argument(text) for text in stop or ()]
    return SamplingParams(seed=seed, stop=stops, stop_token_ids=stop_token_ids or (), **given)


def sampling_options(*ends: str) -> Group:
    """Return the options of how the next token is chosen, and these that end a text."""
    of = functools.partial(derived, records.SamplingParams, rich_help_panel="Sampling")
    chosen = of("max_tokens", flags=["--max-tokens", "-n"])
    chosen += of("temperature", default=None, show_default=str(TEMPERATURE)) + of("top_k", default=TOP_K) + of("top_p")
    chosen += derived(sampling, "greedy", "seed", rich_help_panel="Sampling")
    return sampling, chosen + of(*ends)


def with_seeds(params: SamplingParams, count: int) -> list[SamplingParams]:
    """Parameters for each prompt: seeds follow each other, so that each line can be repeated alone by its seed."""
    first = secrets.randbits(32) if params.seed is None else params.seed  # short enough to be typed again
    return [replace(params, seed=first + i) for i in range(count)]


def output_file(name: str | Path) -> Path:
    """The path of a file to write, for typer. Refused now where that cannot be, not when the work is done."""
    path = Path(name)
    try:
        if path.is_file() or path.is_dir():
            path.open("ab").close()
        elif not path.exists():  # its folders are made when it is written
            TemporaryFile(dir=next(folder for folder in path.parents if folder.exists())).close()
    except OSError as error:
        raise typer.BadParameter(f"{str(name)!r} cannot be written: {error.strerror or error}") from None
    return path


class ModelOptions:
    """A model, and what was chosen of its engine's settings: the arguments of an `LLM`.

    ValueError for whatever can be seen to be wrong without torch and without looking inside a file.

    model MODEL: a name: small, which ships with the package; gpt2, gpt2-medium, gpt2-large, gpt2-xl, distilgpt2, or
    OWNER/NAME on the hub; a folder or .safetensors file (./gpt2 for a folder of that name); or random:gpt2. None:
    small.
    revision: revision of a model on the hub.
    all_drafts: bring as many drafts as there may be to every step. None: as many as are faster.
    """

    def __init__(
        self, model: str | None = None, revision: str | None = None, all_drafts: bool = False, **settings: Any
    ) -> None:
        self.model, self.name = model, DEFAULT_MODEL if model is None else model
        given = {name: value for name, value in settings.items() if value is not None}
        if revision == "":
            raise ValueError("revision must name a branch, a tag or a commit, but is empty")
        if "speculate" not in given and (all_drafts or "draft_tokens" in given):
            raise ValueError(f"{'all_drafts' if all_drafts else 'draft_tokens'} needs --speculate")
        if all_drafts:
            given["adaptive_drafts"] = False
        EngineConfig(**given)
        for name in {self.name, given.get("speculate", LOOKUP)} - {LOOKUP, NGRAM, *HUB_NAMES}:
            if name.startswith("random:"):
                random_config(name)
            elif "/" not in name or name[0] in "./~" or Path(name).exists():  # else the hub is asked when it is loaded
                locate(name, None)
        self.settings = given if revision is None else {"revision": revision, **given}

    def but(self, **changed: Any) -> ModelOptions:
        """Return the same with some of it changed."""
        return ModelOptions(**{"model": self.model, **self.settings, **changed})

    def load(self, weights: GPT2 | None = None, kind: type[LLM] | None = None) -> LLM:
        """The LLM, or one of another kind, over weights that are loaded already or its own; imports torch."""
        try:
            import torch  # noqa: F401  to tell a broken torch from a refused argument
        except Exception as error:
            raise CommandError(f"torch cannot be imported ({error}): `nanoinfer doctor` says what to do") from error
        return (kind or LLM)(self.model if weights is None else weights, **self.settings)


of = functools.partial(derived, rich_help_panel="Model and engine")
one_row = of(ModelOptions, "model", "revision")
one_row += of(EngineConfig, "engine", "device", "dtype", "max_len", "threads", "speculate")
one_row += of(EngineConfig, "draft_tokens", default=None, show_default=str(EngineConfig.draft_tokens))
one_row += of(ModelOptions, "all_drafts")
MODEL = ModelOptions, one_row
BATCH = ModelOptions, one_row + of(EngineConfig, "max_batch", "max_graph_batch", "tensor_parallel")
