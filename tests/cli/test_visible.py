"""All that a user sees by name, as one list: visible.txt. `python -m tests.cli.test_visible` writes it anew.

A change of the list is a change for users: it belongs in CHANGELOG.md.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path
from textwrap import TextWrapper
from typing import Any

import typer
from prometheus_client.parser import text_string_to_metric_families

import nanoinfer
from nanoinfer.cli import app, shell
from nanoinfer.config import ENGINES, EngineConfig
from nanoinfer.requests import Completion, Metrics, Piece, SamplingParams
from nanoinfer.serve.fields import FIELDS
from tests.serve.serving import PATH, Served, engine, serving

LIST = Path(__file__).with_name("visible.txt")


def test_what_is_visible_is_on_the_list() -> None:
    assert written() == LIST.read_text(encoding="utf-8"), "python -m tests.cli.test_visible writes the list anew"


def written() -> str:
    """The list, as text: a heading and an indented paragraph for each part."""
    parts: dict[str, Iterable[str]] = {**commands(), "engines": ENGINES}
    parts |= {"nanoinfer shell, inside": [f"/{name}" for name in shell.COMMANDS]}
    parts |= {f"{name} --json": properties(schema(f"data/{name}.schema.json")) for name in ("generate", "doctor")}
    parts |= served() | {f"watch, {name}": found for name, found in events().items()}
    parts |= {made.__name__: [*arguments(made)] for made in (EngineConfig, SamplingParams, Completion, Piece, Metrics)}
    parts |= {"environment": sorted(variables())}
    shape = TextWrapper(118, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
    return "".join(f"{head}\n{shape.fill('; '.join(names))}\n" for head, names in parts.items())


def commands() -> dict[str, list[str]]:
    """Every command of the engine's own, with its arguments and options, as the parser knows them."""
    made = typer.main.get_group(app).commands
    return {f"nanoinfer {name}": [*map(option, command.params)] for name, command in made.items()}


def option(given: Any) -> str:
    """One option: its names, what it takes, and the default that --help tells."""
    names = " ".join([*(given.opts if given.param_type_name == "option" else []), *given.secondary_opts])
    told = given.show_default if isinstance(given.show_default, str) else given.default
    default = "required" if given.required else f"({told})" if told not in (None, False) else ""
    many = "..." if given.multiple or given.nargs != 1 else ""
    return " ".join(filter(None, [names, (given.metavar or "").removesuffix("..."), many, default]))


def served() -> dict[str, Iterable[str]]:
    """Endpoints, the fields of what they take, answer and log, and the names of metrics."""
    with serving(engine(), watch=True, watch_texts=True, classroom=True) as server:
        made: Any = server.server.config.app
        routes = [f"{' '.join(sorted(route.methods - {'HEAD'}))} {route.path}" for route in made.router.routes]
        answers = dict(answered(server))
        metrics = [
            f"{family.type} {family.name} {' '.join(name for name in family.samples[0].labels if name != 'le')}".strip()
            for family in text_string_to_metric_families(server.http.get("/metrics").text)
        ]
        logs = {f"log: {record['event']}": paths(record) for record in server.records}
    fields = [f"{name} ({'required' if one.is_required() else one.default})" for name, one in FIELDS.items()]
    return {"HTTP": routes, "a completion's request": fields, **answers, **logs, "metrics": metrics}


def answered(server: Served) -> Iterator[tuple[str, list[str]]]:
    """The fields of each kind of answer."""
    for path in ("/live", "/health", "/v1/models", "/v1/models/other"):
        yield f"GET {path}", paths(server.http.get(path).json())
    asked = {"logprobs": 1, "echo": True, "return_token_ids": True, "max_tokens": 2, "seed": 1}
    yield f"POST {PATH}", paths(server.post(**asked).json())
    *pieces, usage, _ = server.events(**asked, stream_options={"include_usage": True})
    yield f"POST {PATH}, stream", sorted({path for event in [*pieces, usage] for path in paths(event)})
    with server.http.stream("GET", "/watch/events") as answer:
        lines = (line for line in answer.iter_lines() if line.startswith("data: "))
        yield "GET /watch/events, first", paths(json.loads(next(lines)[6:]))
        yield "POST /watch/pace", paths(server.http.post("/watch/pace", json={"seconds": 0}).json())
    server.idle()


def paths(value: Any) -> list[str]:
    """The names in a JSON value, with dots between; tokens are not named."""
    if isinstance(value, list):
        return sorted({f"[]{path}" for one in value for path in paths(one)})
    if not isinstance(value, dict):
        return [""]
    return sorted(
        {f".{name}{path}" for name, one in value.items() for path in ([""] if "top_" in name else paths(one))}
    )


def schema(name: str) -> Any:
    return json.loads(files("nanoinfer").joinpath(name).read_text(encoding="utf-8"))


def events() -> dict[str, list[str]]:
    """The kinds of events, and their names."""
    kinds = schema("serve/events.schema.json")["$defs"]
    return {kind: [*properties(kinds["head"]), *properties(kinds[kind])] for kind in ("keyframe", "step")}


def properties(of: Any) -> list[str]:
    """The names in a schema, each with those inside it."""
    found = []
    for name, one in of.get("properties", {}).items():
        inside = properties(one.get("items", one))
        found.append(f"{name}: {', '.join(inside)}" if inside else name)
    return found


def arguments(of: Any) -> Iterator[str]:
    """What a part of the library is called with."""
    for name, given in inspect.signature(of).parameters.items():
        yield name if given.default is given.empty else f"{name} ({given.default!r})"


def variables() -> set[str]:
    """Environment variables that the package reads."""
    sources = Path(nanoinfer.__file__).parent.rglob("*.py")
    return {name for path in sources for name in re.findall(r"NANOINFER_[A-Z_]+", path.read_text(encoding="utf-8"))}


if __name__ == "__main__":
    LIST.write_text(written(), encoding="utf-8")
    sys.exit()
