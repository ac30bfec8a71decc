"""The options that `generate` and `shell` share, and the checks on them that need no torch.

A refused argument is answered before torch is imported, which takes seconds: sampling by `SamplingParams`, the rest
here, as far as it can be known without loading anything.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nanoinfer.cli.errors import Failed, Refused, refusing
from nanoinfer.llm import DEFAULT_MODEL, LLM, check_arguments
from nanoinfer.model.hub import HUB_NAMES, locate, random_config
from nanoinfer.requests import SamplingParams

if TYPE_CHECKING:
    from nanoinfer.model.gpt2 import GPT2

# Pleasant to read rather than faithful to the model's distribution: GPT-2's own published samples used top-k 40.
TEMPERATURE, TOP_K = 0.8, 40

_SAMPLING, _MODEL = "Sampling", "Model and engine"


def _option(*names: str, help: str, panel: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


MaxTokens = Annotated[int, _option("--max-tokens", "-n", help="New tokens at most.", panel=_SAMPLING)]
Temperature = Annotated[
    float | None,
    _option("--temperature", help="Divides the logits; 0 is greedy.", panel=_SAMPLING, show_default=str(TEMPERATURE)),
]
TopK = Annotated[int, _option("--top-k", help="Keep the K likeliest tokens; 0 keeps all.", panel=_SAMPLING)]
TopP = Annotated[
    float, _option("--top-p", help="Of those, the fewest that reach this probability; 1 keeps all.", panel=_SAMPLING)
]
Greedy = Annotated[bool, _option("--greedy", help="Always the likeliest token: temperature 0.", panel=_SAMPLING)]
Seed = Annotated[
    int | None,
    _option(
        "--seed",
        help="The same seed gives the same text; prompt number i of --lines gets SEED + i - 1.",
        panel=_SAMPLING,
        show_default="a new one each time",
    ),
]
Model = Annotated[
    str | None,
    _option(
        "--model",
        "-m",
        metavar="MODEL",
        help="small, which ships with the package; gpt2, gpt2-medium, gpt2-large, gpt2-xl, distilgpt2, or OWNER/NAME on"
        " the hub; a folder or .safetensors file (./gpt2 for a folder of that name); or random:gpt2.",
        panel=_MODEL,
        show_default=DEFAULT_MODEL,
    ),
]
Revision = Annotated[str | None, _option("--revision", help="Revision of a model on the hub.", panel=_MODEL)]
EngineName = Annotated[str, _option("--engine", help="Which chapter's engine; `doctor` lists them.", panel=_MODEL)]
Device = Annotated[
    str | None, _option("--device", help="cpu, cuda or cuda:N.", panel=_MODEL, show_default="a GPU where there is one")
]
Dtype = Annotated[
    str | None,
    _option(
        "--dtype",
        help="float32, bfloat16 or float16.",
        panel=_MODEL,
        show_default="float32 on a CPU, 16 bits on a GPU",
    ),
]
MaxLen = Annotated[
    int | None,
    _option("--max-len", help="Context in tokens, prompt included.", panel=_MODEL, show_default="the model's own"),
]
MaxGraphBatch = Annotated[
    int | None,
    _option(
        "--max-graph-batch",
        help="Rows of the largest captured step, of the engines with graphs; 0 captures nothing.",
        panel=_MODEL,
        show_default="what memory allows",
    ),
]

Mine = Annotated[
    Path | None,
    _option(
        "--mine",
        metavar="DIR",
        help="Run the functions of this course folder that pass their checks, beside the reference.",
        panel=_MODEL,
    ),
]


def sampling(temperature: float | None, greedy: bool, **params: Any) -> SamplingParams:
    """Checked sampling parameters from options; Refused for what contradicts or is out of range."""
    if greedy and temperature:
        raise Refused(f"--greedy is temperature 0 and contradicts --temperature {temperature:g}: give one of them")
    with refusing():
        return SamplingParams(
            temperature=0.0 if greedy else TEMPERATURE if temperature is None else temperature, **params
        )


def new_seed() -> int:
    """A seed nobody chose; short enough to be typed again."""
    return random.SystemRandom().getrandbits(32)


@dataclass(frozen=True)
class Place:
    """Which model runs where: the arguments of an `LLM`, as options gave them."""

    model: str | None = None
    revision: str | None = None
    engine: str = "auto"
    device: str | None = None
    dtype: str | None = None
    max_len: int | None = None
    max_batch: int | None = None
    max_graph_batch: int | None = None

    @property
    def model_name(self) -> str:
        """The name of the model, the default's too."""
        return DEFAULT_MODEL if self.model is None else self.model

    def check(self) -> None:
        """Refused for whatever can be seen to be wrong without torch and without looking inside a file."""
        with refusing():
            check_arguments(
                self.engine,
                self.device,
                self.dtype,
                1 if self.max_batch is None else self.max_batch,
                self.max_len,
                None,
                self.max_graph_batch,
            )
        if self.revision == "":
            raise Refused("--revision must name a branch, a tag or a commit, but is empty")
        if self.model is not None:
            _check_model(self.model)

    def load(self, loaded: GPT2 | None = None) -> LLM:
        """The LLM, over weights that are loaded already or its own. Refused where it cannot be had.

        Imports torch; Failed where that goes wrong.
        """
        self.check()
        try:
            import torch  # noqa: F401  to tell a broken torch from a refused argument
        except Exception as error:
            raise Failed(f"torch cannot be imported ({error}): `nanoinfer doctor` says what to do") from error
        given: dict[str, Any] = {
            "max_len": self.max_len, "max_batch": self.max_batch, "max_graph_batch": self.max_graph_batch,
        }  # fmt: skip
        if loaded is None:
            given |= {"device": self.device, "dtype": self.dtype, "revision": self.revision}
        more = {name: value for name, value in given.items() if value is not None}
        with refusing():
            return LLM(self.model if loaded is None else loaded, engine=self.engine, **more)


def _check_model(name: str) -> None:
    """Refused for a name that can be no model. What is on the hub is asked for when it is loaded."""
    on_hub = name in HUB_NAMES or ("/" in name and name[0] not in "./~" and not Path(name).exists())
    with refusing():
        if name.startswith("random:"):
            random_config(name)
        elif not on_hub:
            locate(name, None)
