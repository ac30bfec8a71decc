"""Options, made of signatures and docstrings: those of `EngineConfig`, `SamplingParams`, `ServeConfig` and of commands.

A refused argument is answered before torch is imported, which takes seconds: sampling by `SamplingParams`, the rest
here, as far as it can be known without loading anything.
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
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from nanoinfer import records
from nanoinfer.cli.errors import CommandError, Refused, refusing
from nanoinfer.cli.prompts import from_argument
from nanoinfer.config import EngineConfig
from nanoinfer.docstrings import Told, described
from nanoinfer.llm import DEFAULT_MODEL, LLM
from nanoinfer.model.hub import HUB_NAMES, locate, random_config
from nanoinfer.records import MAX_SEED
from nanoinfer.requests import SamplingParams
from nanoinfer.speculate.drafts import LOOKUP, NGRAM

if TYPE_CHECKING:
    from nanoinfer.model.gpt2 import GPT2

TEMPERATURE, TOP_K = 0.8, 40  # pleasant to read rather than faithful; GPT-2's own published samples used top-k 40
TYPES = {"int": int, "float": float, "bool": bool, "Path": Path, "str": str}
SHORT = {"model": ["-m"], "file": ["-f"], "out": ["-o"], "quiet": ["-q"], "verbose": ["-v"]}


class Group(NamedTuple):
    """Options that make one argument of a command."""

    make: Callable[..., Any]
    options: list[inspect.Parameter]


def derived(owner: Any, *names: str, **more: Any) -> list[inspect.Parameter]:
    """Return typer's options for these arguments of a function, or fields of a config.

    more: arguments of `typer.Option`, for each of them.
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
        made = typer.Option(*more.pop("flags", flags), **{"show_default": told.unset or True, **more})
    kind = kind | None if default is None else kind
    annotation: Any = Annotated[kind, made]
    return given.replace(annotation=annotation, kind=inspect.Parameter.KEYWORD_ONLY, default=default)


def with_options(**groups: Group) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a command for typer: each of its arguments becomes an option, or all those of its group."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        names = inspect.signature(command).parameters
        flat = [each for name in names for each in (groups[name].options if name in groups else derived(command, name))]

        @functools.wraps(command)
        def run(**given: Any) -> Any:
            for name, (make, options) in groups.items():
                with refusing():
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
    """Return the checked parameters. Refused for what contradicts or is out of range.

    greedy: always the likeliest token: temperature 0.
    seed: the same seed gives the same text; prompt number i of --lines gets SEED + i - 1. None: a new one each time.
    """
    if greedy and temperature:
        raise Refused(f"--greedy is temperature 0 and contradicts --temperature {temperature:g}: give one of them")
    given["temperature"] = 0.0 if greedy else TEMPERATURE if temperature is None else temperature
    stops = [from_argument(text) for text in stop or ()]
    return SamplingParams(seed=seed, stop=stops, stop_token_ids=stop_token_ids or (), **given)


def sampling_options(*ends: str) -> Group:
    """Return the options of how the next token is chosen, and these that end a text."""
    of = functools.partial(derived, records.SamplingParams, rich_help_panel="Sampling")
    chosen = of("max_tokens", flags=["--max-tokens", "-n"])
    chosen += of("temperature", default=None, show_default=str(TEMPERATURE)) + of("top_k", default=TOP_K) + of("top_p")
    chosen += derived(sampling, "greedy", "seed", rich_help_panel="Sampling")
    return Group(sampling, chosen + of(*ends))


def with_seeds(params: SamplingParams, count: int) -> list[SamplingParams]:
    """Parameters for each prompt: seeds follow each other, so that each line can be repeated alone by its seed."""
    first = secrets.randbits(32) if params.seed is None else params.seed  # short enough to be typed again
    if first + count - 1 > MAX_SEED:
        raise Refused(f"--seed must leave room for {count} seeds up to {MAX_SEED}, not {first}")
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


def check_model(name: str) -> None:
    """ValueError for a name that no model has; one on the hub is asked for when it is loaded."""
    if name.startswith("random:"):
        random_config(name)
    elif name not in HUB_NAMES and ("/" not in name or name[0] in "./~" or Path(name).exists()):
        locate(name, None)


class ModelOptions:
    """A model, and what was chosen of its engine's settings: the arguments of an `LLM`.

    Refused for whatever can be seen to be wrong without torch and without looking inside a file.

    model MODEL: a name: small, which ships with the package; gpt2, gpt2-medium, gpt2-large, gpt2-xl, distilgpt2, or
    OWNER/NAME on the hub; a folder or .safetensors file (./gpt2 for a folder of that name); or random:gpt2. None:
    small.
    revision: revision of a model on the hub.
    """

    def __init__(self, model: str | None = None, revision: str | None = None, **settings: Any) -> None:
        self.model, self.name = model, DEFAULT_MODEL if model is None else model
        self.settings = {name: value for name, value in settings.items() if value is not None}
        if revision == "":
            raise Refused("--revision must name a branch, a tag or a commit, but is empty")
        for name, option in (("draft_tokens", "draft-tokens"), ("adaptive_drafts", "all-drafts")):
            if name in self.settings and "speculate" not in self.settings:
                raise Refused(f"--{option} needs --speculate")
        with refusing():
            EngineConfig(**self.settings)
            check_model(self.name)
            if self.settings.get("speculate", LOOKUP) not in (LOOKUP, NGRAM):
                check_model(self.settings["speculate"])
        if revision is not None:
            self.settings["revision"] = revision

    def but(self, **changed: Any) -> ModelOptions:
        """Return the same with some of it changed."""
        return ModelOptions(**{"model": self.model, **self.settings, **changed})

    def load(self, weights: GPT2 | None = None) -> LLM:
        """The LLM, over weights that are loaded already or its own; imports torch. Refused where there is none."""
        try:
            import torch  # noqa: F401  to tell a broken torch from a refused argument
        except Exception as error:
            raise CommandError(f"torch cannot be imported ({error}): `nanoinfer doctor` says what to do") from error
        given = dict(self.settings)
        for name in () if weights is None else ("device", "dtype", "revision"):  # loaded weights have theirs
            given.pop(name, None)
        with refusing():
            return LLM(self.model if weights is None else weights, **given)


engine_options = functools.partial(derived, rich_help_panel="Model and engine")
chosen_drafts = engine_options(EngineConfig, "speculate", metavar=f"{LOOKUP}|{NGRAM}|MODEL")
chosen_drafts += engine_options(EngineConfig, "draft_tokens", default=None, show_default=str(EngineConfig.draft_tokens))
chosen_drafts += engine_options(
    EngineConfig, "adaptive_drafts", default=None, flags=[" /--all-drafts"], show_default="as many as are faster",
    help="Bring as many drafts as there may be to every step.",
)  # fmt: skip
one_row = engine_options(ModelOptions, "model", "revision")
one_row += engine_options(EngineConfig, "engine", "device", "dtype", "max_len", "threads") + chosen_drafts
MODEL = Group(ModelOptions, one_row)
BATCH = Group(ModelOptions, one_row + engine_options(EngineConfig, "max_batch", "max_graph_batch", "tensor_parallel"))
