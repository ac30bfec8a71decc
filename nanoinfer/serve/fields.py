"""Every field of OpenAI's completions API, and what this server does with it; a request's body into what is asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from nanoinfer.requests import BOUNDS, TOP_LOGPROBS, SamplingParams
from nanoinfer.serve.config import ServeConfig
from nanoinfer.serve.errors import ApiError, bad
from nanoinfer.text.prompts import Prompt, prompt_list


class Field(NamedTuple):
    """A field of a request. default: JSON, what a missing field and null mean."""

    name: str
    what: Literal["served", "accepted, no effect", "400"]
    default: str
    sentence: str
    ours: bool = False  # beside OpenAI's


FIELDS = (
    Field("model", "served", "required", "The name that `/v1/models` lists; 404 for any other."),
    Field("prompt", "served", "required", "Text, token ids, or a list of these; null is the end-of-text token."),
    Field("max_tokens", "served", "16", "0 only with `echo`. The context may end a text earlier."),
    Field("temperature", "served", "1", f"{BOUNDS['temperature'].allowed.capitalize()}; 0 is greedy."),
    Field("top_p", "served", "1", f"{BOUNDS['top_p'].allowed.capitalize()}."),
    Field("n", "served", "1", "Samples of each prompt, 1 to 128."),
    Field("seed", "served", "null", "0 to 2^63 - 1. The same seed gives the same text, whatever else runs."),
    Field("stop", "served", "null", "A string or a list of strings; the text ends before the first that comes."),
    Field("presence_penalty", "served", "0", f"{BOUNDS['presence_penalty'].allowed.capitalize()}."),
    Field("frequency_penalty", "served", "0", f"{BOUNDS['frequency_penalty'].allowed.capitalize()}."),
    Field("logprobs", "served", "null", f"0 to {TOP_LOGPROBS}: the model's own, whatever temperature and penalties."),
    Field("echo", "served", "false", "The prompt comes before its text, and with `logprobs` has some, too."),
    Field("stream", "served", "false", "Server-sent events, one for a token or for several that are ready."),
    Field("stream_options", "served", "null", "`include_usage`; `include_obfuscation` has no effect."),
    Field("best_of", "400", "null", "Accepted where it equals `n`: nothing is generated only to be dropped."),
    Field("logit_bias", "400", "null", "Accepted where it is empty: this engine has no biases."),
    Field("suffix", "400", "null", "Accepted where it is empty: GPT-2 continues texts and fills no gaps."),
    Field("user", "accepted, no effect", "null", "A string."),
    Field("top_k", "served", "0", "Keep the k likeliest tokens; 0 keeps all.", True),
    Field("ignore_eos", "served", "false", "Go on past the end-of-text token.", True),
    Field("stop_token_ids", "served", "null", "Token ids that end a text.", True),
    Field("return_token_ids", "served", "false", "Each choice and event has its `token_ids`.", True),
)
DEFAULTS = {field.name: json.loads(field.default) for field in FIELDS if field.default != "required"}
SAMPLING = (
    "max_tokens", "temperature", "top_p", "n", "seed", "presence_penalty", "frequency_penalty", "logprobs", "top_k",
    "ignore_eos",
)  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """A request for completions, checked but for what only the tokenizer can tell."""

    model: str
    prompts: Sequence[Prompt]
    params: SamplingParams
    echo: bool
    stream: bool
    include_usage: bool
    token_ids: bool

    @property
    def rows(self) -> int:
        """Completions that are asked for."""
        return len(self.prompts) * self.params.n


def parse(body: bytes | bytearray) -> dict[str, Any]:
    """The JSON object of a body. ApiError for anything else."""
    try:
        found = DECODER.decode(body.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise bad(None, f"the body must be one JSON object, but is none: {error}") from None
    if not isinstance(found, dict):
        raise bad(None, "the body must be one JSON object")
    return found


def only(given: dict[str, Any], *names: str) -> dict[str, Any]:
    """The fields of a body. ApiError, naming it, for one that is none of `names`."""
    for name in given:
        if name not in names:
            raise bad(name[:100], f"unknown field {name[:100]!r}", "unknown_parameter")
    return given


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


DECODER = json.JSONDecoder(parse_constant=_refuse)


def read(given: dict[str, Any], config: ServeConfig, end_of_text: Sequence[int]) -> Asked:
    """What a request asks for. ApiError, naming the field, for what cannot be served."""
    only(given, *DEFAULTS, "model", "prompt")
    value = DEFAULTS | {name: each for name, each in given.items() if each is not None}
    for name in ("model", "prompt"):
        if name not in given or value.get("model") is None:
            raise bad(name, f"{name} is missing", "missing_required_parameter")
    for name in ("echo", "stream", "ignore_eos", "return_token_ids"):
        _check(name, value[name], "true or false", lambda x: type(x) is bool)
    for name in ("model", "user", "suffix"):
        if value.get(name) is not None:
            _check(name, value[name], "a string", lambda x: isinstance(x, str))
    if given.get("max_tokens") is None and config.max_tokens is not None:
        value["max_tokens"] = min(value["max_tokens"], config.max_tokens)
    _unsupported(value)
    try:
        asked = Asked(
            model=value["model"],
            prompts=prompt_list(value.get("prompt", list(end_of_text[:1]))),
            params=_params(value, config),
            echo=value["echo"],
            stream=value["stream"],
            include_usage=_include_usage(value),
            token_ids=value["return_token_ids"],
        )
    except ValueError as error:
        raise from_library(error) from None
    if not asked.prompts:
        raise bad("prompt", "prompt must hold at least one prompt")
    if asked.rows > config.max_rows:
        what = f"{len(asked.prompts)} prompts with n = {asked.params.n}"
        raise bad("prompt", f"{what} are more than the {config.max_rows} completions of one request")
    return asked


def from_library(error: ValueError) -> ApiError:
    """A sentence of the engine's as an answer: it begins with the field's name."""
    name = str(error).partition(" ")[0].removesuffix("s")
    param = next((known for known in ("prompt", *DEFAULTS) if name == known.removesuffix("s")), None)
    return bad(param, str(error))


def _unsupported(value: dict[str, Any]) -> None:
    if value["suffix"]:
        raise bad("suffix", "suffix is not supported: this model continues a text and fills no gap", "unsupported")
    if value["logit_bias"] not in (None, {}):
        raise bad("logit_bias", "logit_bias is not supported: it must be left out or empty", "unsupported")
    if value["best_of"] is not None and (type(value["best_of"]) is not int or value["best_of"] != value["n"]):
        raise bad("best_of", "best_of is not supported: it must be left out or equal n", "unsupported")


def _params(value: dict[str, Any], config: ServeConfig) -> SamplingParams:
    stops = () if value["stop"] in (None, "") else value["stop"]
    stops = [stops] if isinstance(stops, str) else stops
    _check("stop", stops, "a string or a list of strings", lambda x: isinstance(x, list | tuple))
    if len(stops) > config.max_stops:
        raise bad("stop", f"stop must have at most {config.max_stops} strings, not {len(stops)}")
    if any(isinstance(stop, str) and len(stop) > config.max_stop_length for stop in stops):
        raise bad("stop", f"stop must have strings of at most {config.max_stop_length} characters")
    given = {name: value[name] for name in SAMPLING}
    if value["max_tokens"] == 0 and not value["echo"]:
        raise bad("max_tokens", "max_tokens must be at least 1 where echo is false, not 0")
    if value["echo"] and (value["logprobs"] is not None or value["max_tokens"] == 0):
        given["prompt_logprobs"] = value["logprobs"] or 0
    params = SamplingParams(
        **given, stop=stops, stop_token_ids=() if value["stop_token_ids"] is None else value["stop_token_ids"]
    )
    if config.max_tokens is not None and params.max_tokens > config.max_tokens:
        raise bad("max_tokens", f"max_tokens must be at most {config.max_tokens} here, not {params.max_tokens}")
    return params


def _include_usage(value: dict[str, Any]) -> bool:
    options = value["stream_options"]
    if options is None:
        return False
    _check("stream_options", options, "an object", lambda x: isinstance(x, dict))
    if not value["stream"]:
        raise bad("stream_options", "stream_options must be left out where stream is false")
    for name, each in options.items():
        if name not in ("include_usage", "include_obfuscation"):
            raise bad("stream_options", f"unknown field {name[:100]!r} of stream_options", "unknown_parameter")
        _check(f"stream_options.{name}", each, "true or false", lambda x: x is None or type(x) is bool)
    return bool(options.get("include_usage"))


def _check(name: str, value: Any, allowed: str, right: Callable[[Any], bool]) -> None:
    if not right(value):
        raise bad(name, f"{name} must be {allowed}, not {value!r:.100}")
