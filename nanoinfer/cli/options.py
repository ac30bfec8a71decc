"""The options that `generate` and `shell` share, and the checks on them that need no torch.

A refused argument is answered before torch is imported, which takes seconds: sampling by `SamplingParams`, the rest
here, as far as it can be known without loading anything.
"""

from __future__ import annotations

import functools
import inspect
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from nanoinfer.cli.errors import CommandError, Refused, refusing
from nanoinfer.config import LOOKUP, MAX_BATCH, NGRAM, EngineConfig
from nanoinfer.llm import DEFAULT_MODEL, LLM
from nanoinfer.model.hub import HUB_NAMES, locate, random_config
from nanoinfer.records import MAX_SEED
from nanoinfer.requests import SamplingParams

if TYPE_CHECKING:
    from nanoinfer.model.gpt2 import GPT2

TEMPERATURE = 0.8  # pleasant to read rather than faithful, as is top-k 40, which GPT-2's own published samples used

sampling_option = functools.partial(typer.Option, rich_help_panel="Sampling")
model_option = functools.partial(typer.Option, rich_help_panel="Model and engine")


def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command for typer: an argument that is a dataclass of options becomes one option for each of its fields."""
    hints = get_type_hints(command)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    flat = []
    for name in inspect.signature(command).parameters:
        owner: Any = groups.get(name, command)
        kinds, given = get_type_hints(owner, include_extras=True), inspect.signature(owner).parameters
        for option in given if name in groups else [name]:
            flat.append(given[option].replace(annotation=kinds[option], kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def run(**options: Any) -> Any:
        for name, kind in groups.items():
            with refusing():
                options[name] = kind(**{field.name: options.pop(field.name) for field in fields(kind)})
        return command(**options)

    run.__annotations__ = {one.name: one.annotation for one in flat}
    run.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    return run


@dataclass(frozen=True)
class SamplingOptions:
    """How the next token is chosen."""

    max_tokens: Annotated[int, sampling_option("--max-tokens", "-n", help="New tokens at most.")] = 128
    temperature: Annotated[
        float | None, sampling_option(help="Divides the logits; 0 is greedy.", show_default=str(TEMPERATURE))
    ] = None
    top_k: Annotated[int, sampling_option(help="Keep the K likeliest tokens; 0 keeps all.")] = 40
    top_p: Annotated[float, sampling_option(help="Of those, the fewest that reach this probability; 1 keeps all.")] = (
        1.0
    )
    greedy: Annotated[bool, sampling_option("--greedy", help="Always the likeliest token: temperature 0.")] = False
    seed: Annotated[
        int | None,
        sampling_option(
            help="The same seed gives the same text; prompt number i of --lines gets SEED + i - 1.",
            show_default="a new one each time",
        ),
    ] = None

    def params(self, **more: Any) -> SamplingParams:
        """Checked sampling parameters. Refused for what contradicts or is out of range."""
        if self.greedy and self.temperature:
            what = f"--temperature {self.temperature:g}"
            raise Refused(f"--greedy is temperature 0 and contradicts {what}: give one of them")
        temperature = 0.0 if self.greedy else TEMPERATURE if self.temperature is None else self.temperature
        with refusing():
            return SamplingParams(self.max_tokens, temperature, self.top_k, self.top_p, self.seed, **more)


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
    on_hub = name in HUB_NAMES or ("/" in name and name[0] not in "./~" and not Path(name).exists())
    if name.startswith("random:"):
        random_config(name)
    elif not on_hub:
        locate(name, None)


@dataclass(frozen=True)
class ModelOptions:
    """Which model runs where: arguments of an `LLM`."""

    model: Annotated[
        str | None,
        model_option(
            "--model",
            "-m",
            metavar="MODEL",
            help="small, which ships with the package; gpt2, gpt2-medium, gpt2-large, gpt2-xl, distilgpt2, or"
            " OWNER/NAME on the hub; a folder or .safetensors file (./gpt2 for a folder of that name); or random:gpt2.",
            show_default=DEFAULT_MODEL,
        ),
    ] = None
    revision: Annotated[str | None, model_option(help="Revision of a model on the hub.")] = None
    engine: Annotated[str, model_option(help="Which chapter's engine; `doctor` lists them.")] = "auto"
    device: Annotated[
        str | None, model_option(help="cpu, cuda or cuda:N.", show_default="a GPU where there is one")
    ] = None
    dtype: Annotated[
        str | None,
        model_option(help="float32, bfloat16 or float16.", show_default="float32 on a CPU, 16 bits on a GPU"),
    ] = None
    max_len: Annotated[
        int | None, model_option(help="Context in tokens, prompt included.", show_default="the model's own")
    ] = None
    threads: Annotated[
        int | None, model_option(help="Threads of a step on a CPU.", show_default="what is fastest, tried as it runs")
    ] = None
    speculate: Annotated[
        str | None,
        model_option(
            metavar="lookup|ngram|MODEL",
            help="Who drafts the next tokens, so that a step verifies several: lookup, which takes what followed the"
            " last time that the text went like this, ngram, which knows the small model's books as well, or a model as"
            " --model takes it, of the same vocabulary.",
            show_default="nobody",
        ),
    ] = None
    draft_tokens: Annotated[
        int | None, model_option(help="Drafts of a row in a step at most.", show_default=str(EngineConfig.draft_tokens))
    ] = None
    adaptive_drafts: Annotated[
        bool,
        model_option(
            " /--all-drafts",
            help="Bring as many drafts as there may be to every step.",
            show_default="as many as are faster",
        ),
    ] = True

    @property
    def model_name(self) -> str:
        """The name of the model, the default's too."""
        return DEFAULT_MODEL if self.model is None else self.model

    def check(self) -> None:
        """Refused for whatever can be seen to be wrong without torch and without looking inside a file."""
        if self.revision == "":
            raise Refused("--revision must name a branch, a tag or a commit, but is empty")
        if self.speculate is None and (self.draft_tokens is not None or not self.adaptive_drafts):
            raise Refused(f"--{'all-drafts' if self.draft_tokens is None else 'draft-tokens'} needs --speculate")
        with refusing():
            EngineConfig(**{name: value for name, value in self.settings.items() if name != "revision"})
            check_model(self.model_name)
            if self.speculate and self.speculate not in (LOOKUP, NGRAM):
                check_model(self.speculate)

    @property
    def settings(self) -> dict[str, Any]:
        """What is given besides the model, by the names that `LLM` knows."""
        return {name: value for name, value in asdict(self).items() if value is not None and name != "model"}

    def load(self, loaded: GPT2 | None = None, replicas: int = 1) -> LLM:
        """The LLM, over weights that are loaded already or its own; imports torch. Refused where there is none."""
        self.check()
        try:
            import torch  # noqa: F401  to tell a broken torch from a refused argument
        except Exception as error:
            raise CommandError(f"torch cannot be imported ({error}): `nanoinfer doctor` says what to do") from error
        given = self.settings | {"replicas": replicas}
        if loaded is not None:  # it lies on its device already, in its dtype
            given = {name: value for name, value in given.items() if name not in ("device", "dtype", "revision")}
        with refusing():
            return LLM(self.model if loaded is None else loaded, **given)


@dataclass(frozen=True)
class BatchOptions(ModelOptions):
    """Those of a model that runs several prompts at once."""

    max_batch: Annotated[
        int | None, model_option(help="Rows that run at once.", show_default=f"{MAX_BATCH}, or as many as fit")
    ] = None
    max_graph_batch: Annotated[
        int | None,
        model_option(
            help="Rows of the largest captured step, of the engines with graphs; 0 captures nothing.",
            show_default="what memory allows",
        ),
    ] = None
    tensor_parallel: Annotated[int, model_option(help="GPUs that hold the model together, or processes on a CPU.")] = 1
