"""A crowd before the command itself: each client that stays gets its own text, and one that leaves leaves nothing.

CROWD=1 in the environment runs it at full size: 2,000 requests over 200 connections. Without it, a tenth of that.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import struct
import sys
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

import httpx
import pytest

from nanoinfer import LLM, SamplingParams
from tests.serve.serving import PATH, command, joined, parsed, request, until

REQUESTS, CONNECTIONS = (2000, 200) if os.environ.get("CROWD") == "1" else (200, 40)
WORDS = ["fox", "crow", "king", "bird", "wood", "tree", "house", "night", "water", "stone"]
KINDS = {"stay": 14, "cancel": 2, "vanish": 2, "stall": 1, "garbage": 1}

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform == "win32", reason="signals")]


def asked(number: int) -> dict[str, Any]:
    """Each request is one of its kind."""
    draw = random.Random(number)
    prompt = f"{number}: the {' '.join(draw.choices(WORDS, k=draw.randint(1, 12)))}"
    fields = {"temperature": draw.choice([0, 0.8, 1]), "seed": number, "max_tokens": draw.randint(1, 12)}
    return {"model": "small", "prompt": prompt, "stream": draw.random() < 0.5, **fields}


async def answered(api: httpx.AsyncClient, fields: dict[str, Any]) -> str:
    """The text of one that stays. It may be told to come again."""
    while (answer := await api.post(PATH, json=fields)).status_code == 429:
        await asyncio.sleep(0.2 * random.random())
    assert answer.status_code == 200, answer.text
    return joined(parsed(answer.text)) if fields["stream"] else answer.json()["choices"][0]["text"]


async def bad(url: str, fields: dict[str, Any], kind: str) -> None:
    """One that cancels, vanishes, stalls or sends garbage."""
    host, port = url.removeprefix("http://").rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    whole = request({**fields, "max_tokens": 60, "ignore_eos": True})
    writer.write({"garbage": random.Random(fields["seed"]).randbytes(300), "stall": whole[:100]}.get(kind, whole))
    await writer.drain()
    if kind == "garbage":
        writer.write_eof()  # a server takes it for the beginning of a head, which a proxy gives some seconds
        await reader.read()
    else:
        await asyncio.sleep(random.random() * 0.5)
    if kind == "vanish":
        writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()


def metric(url: str, name: str) -> float:
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"nanoinfer_{name}"))


def test_nothing_is_lost_and_nobody_gets_anothers(tmp_path: Path) -> None:
    texts, left = dict[int, str](), iter(range(REQUESTS))

    async def one_after_another(api: httpx.AsyncClient, url: str) -> None:
        for number in left:
            (kind,) = random.Random(-number).choices([*KINDS], [*KINDS.values()])
            if kind == "stay":
                texts[number] = await answered(api, asked(number))
            else:
                await bad(url, asked(number), kind)

    async def crowd(url: str) -> None:
        limits = httpx.Limits(max_connections=CONNECTIONS)
        async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as api:
            await asyncio.gather(*(one_after_another(api, url) for _ in range(CONNECTIONS)))

    with command(tmp_path / "log", "--model", "small") as served:
        served.ready()
        asyncio.run(crowd(served.url))
        assert len(texts) > REQUESTS / 2
        until(lambda: metric(served.url, "requests_live") == 0)
        assert metric(served.url, "requests_submitted_total") == metric(served.url, "requests_total")
        assert metric(served.url, 'requests_total{outcome="finished"}') == len(texts)
        assert metric(served.url, 'requests_total{outcome="failed"}') == 0
        assert [metric(served.url, f"{name} ") for name in ("rows_running", "rows_waiting", "blocks_used")] == [0, 0, 0]
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(60) == 0
    with LLM("small", device="cpu", engine="dense") as alone:
        for number in sorted(texts):
            fields = {name: asked(number)[name] for name in ("temperature", "seed", "max_tokens")}
            (right,) = alone.generate(asked(number)["prompt"], SamplingParams(**fields))
            assert texts[number] == right.text, number
