"""Every field of OpenAI's completions API, and what this server does with it; a request's body into what is asked."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nanoinfer.requests import BOUNDS, TOP_LOGPROBS, SamplingParams
from nanoinfer.serve.config import ServeConfig
from nanoinfer.serve.errors import ApiError, bad
from nanoinfer.text.prompts import Prompt, prompt_list


def _field(default: Any, sentence: str, what: str = "served") -> Any:
    return Field(default, description=sentence, json_schema_extra={"what": what})


def _bounded(default: float, name: str, more: str = "") -> Any:
    return _field(default, f"{BOUNDS[name].allowed.capitalize()}{more}.")


class StreamOptions(BaseModel):
    """What `stream_options` may hold."""

    model_config = ConfigDict(strict=True, extra="forbid")
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class CompletionRequest(BaseModel):
    """The body of a request. `Any` is what the library checks, which knows the bounds; defaults stand for null, too."""

    model_config = ConfigDict(strict=True, extra="forbid")

    model: str = _field(..., "The name that `/v1/models` lists; 404 for any other.")
    prompt: Any = _field(..., "Text, token ids, or a list of these; null is the end-of-text token.")
    max_tokens: Any = _field(16, "0 only with `echo`. The context may end a text earlier.")
    temperature: Any = _bounded(1, "temperature", "; 0 is greedy")
    top_p: Any = _bounded(1, "top_p")
    n: Any = _field(1, "Samples of each prompt, 1 to 128.")
    seed: Any = _field(None, "0 to 2^63 - 1. The same seed gives the same text, whatever else runs.")
    stop: Any = _field(None, "A string or a list of strings; the text ends before the first that comes.")
    presence_penalty: Any = _bounded(0, "presence_penalty")
    frequency_penalty: Any = _bounded(0, "frequency_penalty")
    logprobs: Any = _field(None, f"0 to {TOP_LOGPROBS}: the model's own, whatever temperature and penalties.")
    echo: bool = _field(False, "The prompt comes before its text, and with `logprobs` has some, too.")
    stream: bool = _field(False, "Server-sent events, one for a token or for several that are ready.")
    stream_options: StreamOptions | None = _field(None, "`include_usage`; `include_obfuscation` has no effect.")
    best_of: Any = _field(None, "Accepted where it equals `n`: nothing is generated only to be dropped.", "400")
    logit_bias: Any = _field(None, "Accepted where it is empty: this engine has no biases.", "400")
    suffix: str | None = _field(None, "Accepted where it is empty: GPT-2 continues texts and fills no gaps.", "400")
    user: str | None = _field(None, "A string.", "accepted, no effect")
    top_k: Any = _field(0, "Keep the k likeliest tokens; 0 keeps all.")
    ignore_eos: bool = _field(False, "Go on past the end-of-text token.")
    stop_token_ids: Any = _field(None, "Token ids that end a text.")
    return_token_ids: bool = _field(False, "Each choice and event has its `token_ids`.")

    @cached_property
    def prompts(self) -> list[Prompt]:
        """The prompts, one or several. ValueError for what is none."""
        return list(prompt_list(self.prompt))

    @cached_property
    def params(self) -> SamplingParams:
        """How to sample. ValueError, one sentence that begins with the field, for what cannot be."""
        given = {name: getattr(self, name) for name in SAMPLED}
        given["stop"] = () if self.stop in (None, "") else self.stop
        given["stop_token_ids"] = () if self.stop_token_ids is None else self.stop_token_ids
        if self.echo and (self.logprobs is not None or self.max_tokens == 0):
            given["prompt_logprobs"] = self.logprobs or 0
        return SamplingParams(**given)

    @property
    def rows(self) -> int:
        """Completions that are asked for."""
        return len(self.prompts) * self.params.n

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the counts of tokens."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def check(self, config: ServeConfig) -> None:
        """ApiError, naming the field, for what is not supported or beyond a bound."""
        if self.max_tokens == 0 and not self.echo:
            raise bad("max_tokens", "max_tokens must be at least 1 where echo is false, not 0")
        stops, tokens, most = self.params.stop, self.params.max_tokens, config.max_tokens
        other = self.best_of is not None and (type(self.best_of) is not int or self.best_of != self.n)
        longest = max(map(len, stops), default=0)
        for wrong, name, what in (
            (self.suffix, "suffix", "is not supported: this model continues a text and fills no gap"),
            (self.logit_bias not in (None, {}), "logit_bias", "is not supported: it must be left out or empty"),
            (other, "best_of", "is not supported: it must be left out or equal n"),
            (self.stream_options and not self.stream, "stream_options", "must be left out where stream is false"),
            (most is not None and tokens > most, "max_tokens", f"must be at most {most} here, not {tokens}"),
            (len(stops) > config.max_stops, "stop", f"must have at most {config.max_stops} strings, not {len(stops)}"),
            (longest > config.max_stop_length, "stop", f"must be of at most {config.max_stop_length} characters each"),
            (not self.prompts, "prompt", "must hold at least one prompt"),
        ):
            if wrong:
                raise bad(name, f"{name} {what}", "unsupported" if what.startswith("is not") else None)
        if self.rows > config.max_rows:
            what = f"{len(self.prompts)} prompts with n = {self.params.n}"
            raise bad("prompt", f"{what} are more than the {config.max_rows} completions of one request")


FIELDS = CompletionRequest.model_fields
SAMPLED = {field.name for field in dataclasses.fields(SamplingParams)} & {*FIELDS} - {"stop", "stop_token_ids"}
KINDS = {"bool_type": "true or false", "string_type": "a string", "model_type": "an object"}


def parse(body: bytes) -> dict[str, Any]:
    """The JSON object of a body. ApiError for anything else."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    try:
        found = json.loads(body.decode("utf-8-sig"), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise bad(None, f"the body must be one JSON object, but is none: {error}") from None
    if not isinstance(found, dict):
        raise bad(None, "the body must be one JSON object")
    return found


def read(given: dict[str, Any], config: ServeConfig, end_of_text: Sequence[int]) -> CompletionRequest:
    """What a request asks for. ApiError, naming the field, for what cannot be served."""
    given = {name: value for name, value in given.items() if value is not None or name == "prompt"}
    if config.max_tokens is not None:
        given.setdefault("max_tokens", min(FIELDS["max_tokens"].default, config.max_tokens))
    if given.get("prompt", "") is None:
        given["prompt"] = list(end_of_text[:1])
    try:
        asked = CompletionRequest.model_validate(given)
        asked.check(config)
    except ValidationError as error:
        raise from_pydantic(error) from None
    except ValueError as error:
        raise from_library(error) from None
    return asked


def from_pydantic(error: ValidationError) -> ApiError:
    """The first thing that is wrong, as an answer."""
    first = error.errors(include_url=False)[0]
    *parents, last = (str(part)[:100] for part in first["loc"])
    name = ".".join([*parents, last])
    if first["type"] == "missing":
        return bad(name, f"{name} is missing", "missing_required_parameter")
    if first["type"] == "extra_forbidden":
        what = f"unknown field {last!r}" + "".join(f" of {parent}" for parent in parents)
        return bad(parents[0] if parents else last, what, "unknown_parameter")
    return bad(name, f"{name} must be {KINDS.get(first['type'], first['msg'])}, not {first['input']!r:.100}")


def from_library(error: ValueError) -> ApiError:
    """A sentence of the engine's as an answer: it begins with the field's name."""
    name = str(error).partition(" ")[0].removesuffix("s")
    return bad(next((known for known in FIELDS if name == known.removesuffix("s")), None), str(error))
